from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from octavo.backends.base import Backend
from octavo.backends.cpu import CpuBackend
from octavo.backends.oracle import OracleBackend


@pytest.fixture(params=["oracle", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend[Any, Any]:
    """Each backend in full precision."""
    return OracleBackend() if request.param == "oracle" else CpuBackend(activations="float32")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """The named tiny model of transformers, and the directory it is saved in; made once per session."""
    made: dict[str, tuple[Any, Path]] = {}

    def get(name: str) -> tuple[Any, Path]:
        if name not in made:
            model = tiny.make(name)
            made[name] = model, tiny.save(model, tmp_path_factory.mktemp(name))
        return made[name]

    return get
