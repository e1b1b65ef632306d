#!/bin/sh
# Says what is missing before a build fails half-way, and how to install it.
set -u
python=${PYTHON:-python3}
missing=""
command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
    missing="$missing g++"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Octavo needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo missing)." >&2
    echo "Name another one with: make PYTHON=/path/to/python3 ..." >&2
    exit 1
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
"$python" - 2>/dev/null <<'PY' || missing="$missing python3-dev"
import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists())
PY
if [ -n "$missing" ]; then
    echo "Octavo builds its kernels from C++ and needs:$missing" >&2
    echo "On Debian or Ubuntu: sudo apt-get install$missing" >&2
    exit 1
fi
