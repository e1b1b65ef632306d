#!/bin/sh
# test_sanitize.sh BIN: the kernels' tests with bounds, undefined behaviour and data races watched. BIN has python,
# cmake and ninja. One vector instruction set is enough: the others differ in a header of one-line functions.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/$1:$PATH"
case $(uname -m) in
x86_64 | amd64) one=avx2 ;;
*) one=neon ;;
esac

build() { # folder, sanitizers, instruction sets, targets...
    folder=build/$1 sanitizers=$2 isas=$3
    shift 3
    cmake -S . -B "$folder" -G Ninja -DPython_EXECUTABLE="$(command -v python)" -DOCTAVO_ONLY="$isas" \
        -DOCTAVO_SANITIZE="$sanitizers" >"$folder.log" || { cat "$folder.log" && exit 1; }
    cmake --build "$folder" --target "$@"
}
library() { ${CXX:-c++} -print-file-name="$1"; }

mkdir -p build
build address address,undefined $one selftest _native
# Leaks are left out: CPython keeps much until the end, and in containers they often cannot be looked for.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
build/address/selftest
# libstdc++ too, or exceptions would find no handler.
LD_PRELOAD="$(library libasan.so) $(library libubsan.so) $(library libstdc++.so.6)" PYTHONPATH=tests \
    python -m pytest -p native_build --native-build "$(echo build/address/_native*.so)" tests/kernels

# A late worker may read what others write, and then drops the result (team.hpp). The self-test has no operation whose
# input a later one overwrites, so that any race found is a mistake.
build thread thread generic selftest
build/thread/selftest
