#!/bin/sh
# test_arm.sh BIN: the kernels' self-test on emulated Arm processors without and with dot products of bytes and of
# bfloat16; and here, as all must agree on every bit. BIN has python, cmake and ninja.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/$1:$PATH"
missing=""
command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
if [ -n "$missing" ]; then
    echo "Testing the kernels for Arm needs a cross compiler and an emulator; missing:$missing" >&2
    echo "On Debian or Ubuntu: sudo apt-get install$missing" >&2
    exit 1
fi
case $(uname -m) in
x86_64 | amd64) isas=avx2 ;;
*) isas=neon ;;
esac

build() { # folder, options...
    folder=build/$1
    shift
    cmake -S . -B "$folder" -G Ninja "$@" >"$folder.log" || { cat "$folder.log" && exit 1; }
    cmake --build "$folder" --target selftest
}

mkdir -p build
build arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
build here -DPython_EXECUTABLE="$(command -v python)" -DOCTAVO_ONLY="$isas"

run() { # name, the best instruction set that must be found or nothing, command...
    log=build/selftest-$1.log expected=$2
    echo "== $1"
    shift 2
    status=0
    "$@" >"$log" || status=$?
    cat "$log"
    [ $status -eq 0 ] || exit $status
    grep -q "^instruction sets: $expected" "$log" || { echo "the first must be $expected" >&2 && exit 1; }
    digests="${digests:-} $(sed -n 's/^digest: //p' "$log")"
}
arm="qemu-aarch64 -L /usr/aarch64-linux-gnu"
run cortex-a57 "neon generic" $arm -cpu cortex-a57 build/arm/selftest
run neoverse-n1 "neon_dotprod neon" $arm -cpu neoverse-n1 build/arm/selftest
run max "neon_bf16 neon_dotprod" $arm -cpu max build/arm/selftest
run here "" build/here/selftest

different=$(printf '%s\n' $digests | grep -v '^none$' | sort -u | wc -l)
if [ "$different" -ne 1 ]; then
    echo "the processors' results differ in some bits: digests$digests" >&2
    exit 1
fi
echo "All processors agree on every bit."
