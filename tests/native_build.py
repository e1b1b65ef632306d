"""``pytest -p native_build --native-build PATH`` tests that build of the extension, not the installed one.

For ``make test-sanitize``: it is an error if that build is not instrumented, or if the tests import another.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

INSTRUMENTED = b"__asan_report_load"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-build", type=Path, required=True, help="a sanitized octavo._native to test")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any conftest.py, as those import octavo."""
    path = early_config.known_args_namespace.native_build.resolve()
    if INSTRUMENTED not in path.read_bytes():
        raise pytest.UsageError(f"{path} was not built with -fsanitize=address")
    if "octavo._native" in sys.modules:
        raise pytest.UsageError("octavo._native was imported too early to be replaced")
    spec = importlib.util.spec_from_file_location("octavo._native", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["octavo._native"] = module
    spec.loader.exec_module(module)


def pytest_collection_finish(session: pytest.Session) -> None:
    from octavo import _native
    from octavo.backends import cpu

    path = session.config.getoption("native_build").resolve()
    if not (cpu._native is _native and Path(_native.__file__) == path):
        raise pytest.UsageError(f"the tests import {_native.__file__}, not {path}")


def pytest_report_header(config: pytest.Config) -> str:
    return f"octavo._native: {config.getoption('native_build')}"
