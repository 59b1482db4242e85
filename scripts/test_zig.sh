#!/usr/bin/env bash
# Build the library by zig's clang for another platform, and run its native tests where its programs run here.
#   scripts/test_zig.sh [TARGET] [PYTEST_ARGUMENT...]
# TARGET is x86_64-linux-musl (without one), whose static programs run on Linux x86-64; or aarch64-macos or x86_64-macos, for which a
# C program is linked with the library, and nothing is run. Metal and Accelerate need Apple's SDK and are left out.
# The first build compiles zig's libraries for C and C++, too.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh

target=x86_64-linux-musl
case "${1:-}" in x86_64-linux-musl | aarch64-macos | x86_64-macos) target=$1 && shift ;; esac
needs cmake cmake
needs ninja ninja-build
needs_are_met

zig=$PWD/build/zig build=$PWD/build/$target
[ -d "$zig" ] || uv venv --quiet "$zig"
uv pip install --quiet --python "$zig" ziglang==0.17.1
mkdir -p "$build"
for tool in cc c++ ar ranlib; do # programs: CMake wants to name one without arguments; once, for ccache looks at their dates
    case $tool in c*) arguments="$tool -target $target" ;; *) arguments=$tool ;; esac
    [ -x "$build/$tool" ] || printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig/bin/python-zig" "$arguments" >"$build/$tool"
    chmod +x "$build/$tool"
done

flags=(-DEDGEKV_NATIVE_ARCH=OFF -DCMAKE_SYSTEM_PROCESSOR="${target%%-*}"
    -DCMAKE_C_COMPILER="$build/cc" -DCMAKE_CXX_COMPILER="$build/c++" -DCMAKE_AR="$build/ar" -DCMAKE_RANLIB="$build/ranlib")
case $target in
    *-musl) flags+=(-DCMAKE_SYSTEM_NAME=Linux) ;;
    *) flags+=(-DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_INSTALL_NAME_TOOL=true -DGGML_METAL=OFF -DGGML_ACCELERATE=OFF -DGGML_BLAS=OFF) ;;
esac
configure "$build" "${flags[@]}"
build_library "$build"

if [[ $target = *-musl ]]; then
    native_tests "$build" -k plain "$@"
else # the linker finds what the header declares and a C program uses
    headers=(native/include "$build"/llama.cpp-src/vendor/llama.cpp/{,ggml/}include)
    "$build/cc" -std=c11 -O1 "${headers[@]/#/-I}" examples/c/ask.c "$build/libllama.dylib" -o "$build/ask"
    echo "$build/libllama.dylib was linked, and examples/c/ask.c with it; nothing was run"
fi
