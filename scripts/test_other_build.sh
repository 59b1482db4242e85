#!/usr/bin/env bash
# Build the library a second time, for another processor than this one or for a GPU, and run tests with it.
#   scripts/test_other_build.sh [avx2|portable|one|vulkan] [PYTEST_ARGUMENT...]
# avx2 is for a processor with AVX2 and no AVX-512; portable is for any processor of its kind, x86-64's oldest too; one holds
# SSE4.2, AVX2 and AVX-512, and is tested with each that this processor has. Without a name, avx2 where this processor has
# AVX-512, else portable. Without arguments, the tests that say what is kept, and exactly.
# vulkan has ggml's Vulkan too. Models and caches of its tests lie on Mesa's software driver, lavapipe: no GPU is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
    avx2 | portable | one | vulkan) kind=$1 && shift ;;
    *) if grep -qsw avx512f /proc/cpuinfo; then kind=avx2; else kind=portable; fi ;;
esac
[ $# -gt 0 ] || case $kind in
    vulkan) set -- tests/runtime/test_{exactness,ragged,reposition,row_graphs,lent_device,snapshot}.py ;;
    *) set -- tests/runtime/test_{exactness,kept_sets,ragged,reposition}.py ;;
esac
kernels=(avx2)
flags=(-DEDGEKV_NATIVE_ARCH=OFF)
if [ "$kind" = one ]; then
    kernels=(baseline)
    for set in avx2 avx512; do
        if grep -qsw "${set/avx512/avx512f}" /proc/cpuinfo; then kernels+=("$set"); fi
    done
    flags=(-DEDGEKV_PORTABLE=ON)
elif [ "$kind" = portable ]; then
    kernels=(baseline)
    for set in SSE42 AVX AVX2 FMA F16C BMI2; do flags+=("-DGGML_$set=OFF"); done
elif [ "$kind" = vulkan ]; then
    missing=()
    needs() { [ -e "$2" ] || missing+=("$1"); } # a package of Debian's, one of its files
    needs glslc "$(command -v glslc)"
    needs libvulkan-dev /usr/include/vulkan/vulkan.hpp
    needs spirv-headers "$(compgen -G '/usr/*/cmake/SPIRV-Headers')"
    driver=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json') || missing+=(mesa-vulkan-drivers)
    [ ${#missing[@]} -eq 0 ] || { echo "what it needs is not installed: apt-get install ${missing[*]}" >&2; exit 1; }
    # ggml leaves drivers of the processor out unless they are named, and multiplies in f16 unless it is told not to
    export VK_ICD_FILENAMES=$driver GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_F16=1
    kernels=("")
    flags=(-DGGML_VULKAN=ON)
    set -- --device vulkan "$@"
fi

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
"${tools[@]}" cmake -G Ninja -S native -B "$build" -DPython_EXECUTABLE="$python" "${flags[@]}" >"$build/configure.log" ||
    { cat "$build/configure.log"; exit 1; }
"${tools[@]}" cmake --build "$build" --target edgekv >"$build/build.log" || { cat "$build/build.log"; exit 1; }

for set in "${kernels[@]}"; do
    echo "the $kind build${set:+ with $set}: pytest $*"
    EDGEKV_LIB_PATH=$PWD/$build EDGEKV_INSTRUCTIONS=$set uv run --no-sync pytest "$@"
done
