#!/usr/bin/env bash
# Build the library for aarch64 Linux on another machine, and run its tests under qemu: the native ones, then some of Python's.
#   scripts/test_arm64.sh [native|python] [PYTEST_ARGUMENT...]
# One build is for any processor (native tuning off); in two more ggml is compiled for sdot and for smmla, as an install on a
# processor that has them compiles it, and repacks weights in orders of its own. Without `native` or `python` both parts run.
# Python's part needs a package index and Debian's archive. An emulator says nothing of speed or of a program's peak memory.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=(native python)
case "${1:-}" in native | python) parts=("$1") && shift ;; esac

missing=()
needs() { command -v "$1" >/dev/null || missing+=("$2"); } # a tool, its package of Debian's
needs aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
needs qemu-aarch64-static qemu-user-static
needs cmake cmake
needs ninja ninja-build
[ ${#missing[@]} -eq 0 ] || { echo "what it needs is not installed: apt-get install ${missing[*]}" >&2; exit 1; }
sources=(build/py3-none-*/llama.cpp-src)
[ -d "${sources[0]}" ] || { echo "edgekv is not installed in editable mode; run uv sync first" >&2; exit 1; }
python=$(uv run --no-sync python -c 'import sys; print(sys.executable)')

configure() { # BUILD ARCHITECTURE_OF_GGML
    mkdir -p "$1"
    if ! cmp -s "${sources[0]}/.edgekv-source" "$1/llama.cpp-src/.edgekv-source"; then
        rm -rf "$1/llama.cpp-src"
        cp -a "${sources[0]}" "$1/" # fetched and patched
    fi
    cmake -G Ninja -S native -B "$1" -DPython_EXECUTABLE="$python" -DEDGEKV_NATIVE_ARCH=OFF -DGGML_CPU_ARM_ARCH="$2" \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu" >"$1/configure.log" ||
        { cat "$1/configure.log"; exit 1; }
}

native() { # BUILD ARCHITECTURE_OF_GGML PROCESSOR...
    local build=$1
    configure "$build" "$2"
    for processor in "${@:3}"; do
        echo "native tests of ${build#build/}, on $processor:"
        EDGEKV_NATIVE_BUILD=$build QEMU_CPU=$processor uv run --no-sync pytest -q tests/native/test_native.py "${arguments[@]}"
    done
}

arguments=("$@")
for part in "${parts[@]}"; do
    if [ "$part" = native ]; then
        native build/arm64 armv8-a cortex-a72 cortex-a76 max # neither; sdot; smmla, too
        native build/arm64-dotprod armv8.2-a+dotprod cortex-a76
        native build/arm64-i8mm armv8.2-a+dotprod+i8mm max
    fi
done
