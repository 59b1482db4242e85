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

native() { # BUILD PROCESSOR PYTEST_ARGUMENT...
    echo "native tests of $1, on $2:"
    EDGEKV_NATIVE_BUILD=$1 QEMU_CPU=$2 uv run --no-sync pytest -q tests/native/test_native.py "${@:3}"
}

if [[ " ${parts[*]} " = *" native "* ]]; then
    configure build/arm64 ""
    configure build/arm64-dotprod armv8.2-a+dotprod
    configure build/arm64-i8mm armv8.2-a+dotprod+i8mm
    native build/arm64 cortex-a72 -k alone "$@" # without sdot: products are ggml's
    native build/arm64 cortex-a76 -k alone "$@" # with sdot, and without smmla
    native build/arm64 max -k "alone or plain" "$@"
    native build/arm64-dotprod cortex-a76 -k alone "$@"
    native build/arm64-i8mm max -k alone "$@"
fi

# ---- Python's: Debian's for arm64 in a folder, with numpy's wheel; other packages are this environment's, as far as they are Python ----

packages=(libc6 libgcc-s1 libstdc++6 libgomp1 libbz2-1.0 liblzma5 zlib1g libssl3 libexpat1 libffi8 libcrypt1 libtinfo6 libncursesw6
    libreadline8 libsqlite3-0 libuuid1 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal python3.11)

unpack_python() { # ROOT
    local apt=$1.apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/debs"
    local options=(-qq -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oAPT::Sandbox::User=root
        -oDir::State::Lists="$apt/lists" -oDir::State::status=/dev/null -oDir::Cache="$apt")
    apt-get "${options[@]}" update
    (cd "$apt/debs" && apt-get "${options[@]}" download "${packages[@]}")
    for package in "$apt"/debs/*.deb; do dpkg -x "$package" "$1.new"; done
    mv "$1.new" "$1"
}

if [[ " ${parts[*]} " = *" python "* ]]; then
    build=$PWD/build/arm64
    root=$build/python root_of_packages=$build/packages
    configure "$build" ""
    cmake --build "$build" --target edgekv >"$build/build.log" || { cat "$build/build.log"; exit 1; }
    [ -d "$root" ] || unpack_python "$root"
    numpy=$(uv run --no-sync python -c 'import numpy; print(numpy.__version__)')
    rm -rf "$root_of_packages"
    uv pip install -q --target "$root_of_packages" --python-platform aarch64-unknown-linux-gnu --python-version 3.11 \
        --only-binary :all: "numpy==$numpy" pyyaml
    mkdir "$root_of_packages/edgekv" # as an install lays it out
    ln -s "$PWD"/edgekv/* "$PWD"/models "$PWD"/cli "$root_of_packages/edgekv/"
    echo 'import os, sys; sys.executable = os.environ["EDGEKV_EMULATED_PYTHON"]' >"$root_of_packages/sitecustomize.py"
    installed=$(uv run --no-sync python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cat >"$build/python3" <<END
#!/bin/sh
export EDGEKV_EMULATED_PYTHON="$build/python3" EDGEKV_LIB_PATH="$build" QEMU_CPU="\${QEMU_CPU:-max}"
exec qemu-aarch64-static -L "$root" -E PYTHONHOME="$root/usr" -E PYTHONSAFEPATH=1 -E PYTHONPATH="$root_of_packages:$installed" "$root/usr/bin/python3.11" "\$@"
END
    chmod +x "$build/python3"
    [ $# -gt 0 ] || set -- tests/runtime/test_exactness.py # the emulator takes half a minute for each of its tests
    for processor in max cortex-a72; do
        echo "pytest $* on $processor:"
        QEMU_CPU=$processor "$build/python3" -m pytest -q -p no:cacheprovider "$@"
    done
fi
