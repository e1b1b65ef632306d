"""Fixtures of the kernel tests."""

import pytest
from kernel_case import ISAS


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that this CPU has."""
    return str(request.param)
