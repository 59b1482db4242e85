#!/usr/bin/env bash
# Build the library for 64-bit Windows on Linux by mingw-w64, and run its native tests under wine.
#   scripts/test_windows.sh [PYTEST_ARGUMENT...]
# Wine is not Windows: it says nothing of speed or memory, and GCC is not the compiler of the wheels. There is no Python for Windows
# here, so nothing of the package is run; mypy checks its branches for Windows (.ci/run). docs/platforms.md lists what is not covered.
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/separate_build.sh
wine=/usr/lib/wine/wine64 # the program `wine` asks for 32-bit libraries, too
needs x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
needs "$wine" wine64
needs cmake cmake
needs ninja ninja-build
needs_are_met

build=$PWD/build/windows
# The C sources are compiled for Windows 7: headers of mingw-w64 before its release 11 lack what ggml asks of newer ones.
configure "$build" -DEDGEKV_NATIVE_ARCH=OFF \
    -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 -DCMAKE_C_FLAGS=-D_WIN32_WINNT=0x0601 \
    -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=$wine"
build_library "$build"

# The bindings and C programs find every function in the library, which needs nothing that Windows does not have.
exports=$(x86_64-w64-mingw32-objdump -p "$build/llama.dll" | sed -n '/Ordinal\/Name Pointer/,$ s/.* \([a-z0-9_]*\)$/\1/p')
for name in edgekv_cache_open edgekv_plan_make llama_model_load_from_file llama_decode ggml_init gguf_init_from_file; do
    grep -qx "$name" <<<"$exports" || { echo "llama.dll does not export $name" >&2; exit 1; }
done
needed=$(x86_64-w64-mingw32-objdump -p "$build/llama.dll" | sed -n 's/.*DLL Name: //p')
if grep -iE 'libstdc|libgcc|winpthread' <<<"$needed"; then echo "llama.dll needs a library of the compiler" >&2; exit 1; fi

export WINEPREFIX=$build/wine WINEDEBUG=-all
native_tests "$build" -k plain "$@"
