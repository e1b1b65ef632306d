#!/bin/sh
# check_exports.sh NM OBJECT...: fails unless each object exports its table of kernels, octavo::kernels_<isa>, and
# nothing else. A function with external linkage that was compiled for one instruction set could be the copy that the
# linker keeps for all of them, and end on a processor without it.
set -u
nm=$1
shift
bad=0
for object in "$@"; do
    symbols=$("$nm" -g --defined-only -P "$object") || exit 1
    tables=$(printf '%s\n' "$symbols" | grep -c '^_ZN6octavo[0-9]*kernels_[a-z0-9_]*E ')
    others=$(printf '%s\n' "$symbols" | grep -v '^_ZN6octavo[0-9]*kernels_[a-z0-9_]*E ' | cut -d ' ' -f 1)
    if [ "$tables" -ne 1 ] || [ -n "$others" ]; then
        echo "$object must export one table of kernels and nothing else; it has $tables, and:" >&2
        printf '%s\n' "$others" | { command -v c++filt >/dev/null && c++filt || cat; } | sed 's/^/    /' >&2
        bad=1
    fi
done
exit $bad
