#!/usr/bin/env bash
# Build the library for aarch64 Linux on another machine, and run its tests under qemu: the native ones, then some of Python's; then
# build a wheel, and ask README's question with it.
#   scripts/test_arm64.sh [native|python|wheel] [PYTEST_ARGUMENT...]
# One build is for any processor (native tuning off); in two more ggml is compiled for sdot and for smmla, as an install on a
# processor that has them compiles it, and repacks weights in orders of its own. Without the name of a part all parts run.
# All but the native part need a package index and Debian's archive. An emulator says nothing of speed or of a program's peak memory.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=(native python wheel)
case "${1:-}" in native | python | wheel) parts=("$1") && shift ;; esac

. scripts/separate_build.sh
needs aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
needs qemu-aarch64-static qemu-user-static
needs cmake cmake
needs ninja ninja-build
needs_are_met

configure_for() { # BUILD ARCHITECTURE_OF_GGML
    configure "$1" -DEDGEKV_NATIVE_ARCH=OFF -DGGML_CPU_ARM_ARCH="$2" \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
        "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu"
}

native() { # BUILD PROCESSOR PYTEST_ARGUMENT...
    echo "native tests of $1, on $2:"
    QEMU_CPU=$2 native_tests "$1" "${@:3}"
    QEMU_CPU=$2 native_tests "$1" "${@:3}" -m nightly -k "alone and sanitized"
}

if [[ " ${parts[*]} " = *" native "* ]]; then
    configure_for build/arm64 ""
    configure_for build/arm64-dotprod armv8.2-a+dotprod
    configure_for build/arm64-i8mm armv8.2-a+dotprod+i8mm
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

emulated_python() { # PROGRAM FOLDER_OF_EDGEKV
    [ -d "$root" ] || unpack_python "$root"
    local numpy installed
    numpy=$(uv run --no-sync python -c 'import numpy; print(numpy.__version__)')
    installed=$(uv run --no-sync python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -rf "$root.packages"
    uv pip install -q --target "$root.packages" --python-platform aarch64-unknown-linux-gnu --python-version 3.11 \
        --only-binary :all: "numpy==$numpy" pyyaml
    echo 'import os, sys; sys.executable = os.environ["EDGEKV_EMULATED_PYTHON"]' >"$root.packages/sitecustomize.py"
    cat >"$1" <<END
#!/bin/sh
export EDGEKV_EMULATED_PYTHON="$1" QEMU_CPU="\${QEMU_CPU:-max}"
exec qemu-aarch64-static -L "$root" -E PYTHONHOME="$root/usr" -E PYTHONSAFEPATH=1 -E PYTHONPATH="$2:$root.packages:$installed" "$root/usr/bin/python3.11" "\$@"
END
    chmod +x "$1"
}

build=$PWD/build/arm64
root=$build/python
if [[ " ${parts[*]} " = *" python "* ]]; then
    configure_for "$build" ""
    build_library "$build"
    lay_out_checkout "$build/checkout"
    emulated_python "$build/python3" "$build/checkout"
    [ $# -gt 0 ] || set -- tests/runtime/test_exactness.py # the emulator takes half a minute for each of its tests
    for processor in max cortex-a72; do
        echo "pytest $* on $processor:"
        EDGEKV_LIB_PATH=$build QEMU_CPU=$processor "$build/python3" -m pytest -q -p no:cacheprovider "$@"
    done
fi

if [[ " ${parts[*]} " = *" wheel "* ]]; then
    mkdir -p "$build"
    wheel=$(scripts/build_wheel.sh "$build/dist" aarch64 | tail -n 1)
    rm -rf "$build/installed"
    uv pip install -q --target "$build/installed" --python-platform aarch64-manylinux_2_40 --python-version 3.11 --no-deps "$wheel"
    emulated_python "$build/wheel-python3" "$build/installed"
    text="The road to the City of Emeralds is paved with yellow brick." # an emulator reads few tokens a second
    for processor in max cortex-a72; do
        echo "$(basename "$wheel") on $processor:"
        QEMU_CPU=$processor "$build/wheel-python3" -m edgekv ask --memory 1GiB "What is the road to the City of Emeralds paved with?" \
            <<<"$text" | grep "yellow brick"
    done
fi
