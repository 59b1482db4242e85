#!/usr/bin/env bash
# Build the library by zig's clang for another platform, and run its native tests where something here runs that platform's programs.
#   scripts/test_zig.sh [TARGET] [PYTEST_ARGUMENT...]
# TARGET is x86_64-linux-musl (without one), whose static programs run on any Linux kernel of this processor; aarch64-linux-musl, which
# qemu runs; or aarch64-macos, x86_64-macos or aarch64-windows-gnu, for which a C program is linked with the library and not run.
# Metal and Accelerate need Apple's SDK and are left out. The first build compiles zig's libraries for C and C++, too.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh

target=x86_64-linux-musl
case "${1:-}" in *-linux-musl | *-macos | *-windows-gnu) target=$1 && shift ;; esac
needs cmake cmake
needs ninja ninja-build
[ "$target" != aarch64-linux-musl ] || needs qemu-aarch64-static qemu-user-static
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
    *-linux-musl) flags+=(-DCMAKE_SYSTEM_NAME=Linux) ;;
    *-macos) flags+=(-DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_INSTALL_NAME_TOOL=true -DGGML_METAL=OFF -DGGML_ACCELERATE=OFF -DGGML_BLAS=OFF) ;;
    *) flags+=(-DCMAKE_SYSTEM_NAME=Windows) ;;
esac
[ "$target" != aarch64-linux-musl ] || flags+=(-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static)
configure "$build" "${flags[@]}"
build_library "$build"

if [[ $target = *-musl ]]; then
    native_tests "$build" -k plain "$@"
else # where no program runs, the linker finds what the header declares and a C program uses
    library=$(compgen -G "$build/libllama.dylib" || compgen -G "$build/libllama.dll.a" || compgen -G "$build/llama.lib")
    headers=(native/include "$build"/llama.cpp-src/vendor/llama.cpp/{,ggml/}include)
    "$build/cc" -std=c11 -O1 "${headers[@]/#/-I}" examples/c/ask.c "$library" -o "$build/ask"
    echo "$library was linked, and examples/c/ask.c with it; nothing was run"
fi
