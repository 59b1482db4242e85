#!/usr/bin/env bash
# Build the library a second time, for another processor than this one, and run tests with it.
#   scripts/test_other_build.sh [avx2|portable] [PYTEST_ARGUMENT...]
# avx2 is what a processor with AVX2 and no AVX-512 makes of the sources; portable is EDGEKV_NATIVE_ARCH=OFF. Without a name,
# avx2 where this processor has AVX-512, else portable. Without arguments, the tests that say what is kept, and exactly.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    avx2 | portable) kind=$1 && shift ;;
    *) if grep -qsw avx512f /proc/cpuinfo; then kind=avx2; else kind=portable; fi ;;
esac
[ $# -gt 0 ] || set -- tests/runtime/test_{exactness,kept_sets,ragged,reposition}.py
march=
[ "$kind" = portable ] || march=x86-64-v3

# llama.cpp's source is there, fetched and patched: beside the library that tests use otherwise
sources=(build/py3-none-*/llama.cpp-src)
[ -d "${sources[0]}" ] || { echo "edgekv is not installed in editable mode; run uv sync first" >&2; exit 1; }
build=build/$kind
mkdir -p "$build"
if ! cmp -s "${sources[0]}/.edgekv-source" "$build/llama.cpp-src/.edgekv-source"; then
    rm -rf "$build/llama.cpp-src"
    cp -a "${sources[0]}" "$build/"
fi

tools=(uv run --no-sync --with "cmake>=3.24" --with ninja)
command -v cmake >/dev/null && command -v ninja >/dev/null && tools=()
python=$(uv run --no-sync python -c 'import sys; print(sys.executable)')
"${tools[@]}" cmake -G Ninja -S native -B "$build" -DPython_EXECUTABLE="$python" \
    -DEDGEKV_NATIVE_ARCH=OFF -DEDGEKV_MARCH="$march" >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
"${tools[@]}" cmake --build "$build" --target edgekv >"$build/build.log" || { cat "$build/build.log"; exit 1; }

echo "the $kind build: pytest $*"
EDGEKV_LIB_PATH=$PWD/$build uv run --no-sync pytest "$@"
