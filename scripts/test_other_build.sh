#!/usr/bin/env bash
# Build the library a second time, for another processor than this one or for a GPU, and run tests with it.
#   scripts/test_other_build.sh [avx2|portable|one|vulkan] [PYTEST_ARGUMENT...]
# avx2 is for a processor with AVX2 and no AVX-512; portable is for any processor of its kind, x86-64's oldest too; one holds
# SSE4.2, AVX2 and AVX-512, and is tested with each that this processor has. Without a name, avx2 where this processor has
# AVX-512, else portable. Without arguments, the tests that say what is kept, and exactly.
# vulkan has ggml's Vulkan too. Models and caches of its tests lie on Mesa's software driver, lavapipe: no GPU is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh

case "${1:-}" in
    avx2 | portable | one | vulkan) kind=$1 && shift ;;
    *) if grep -qsw avx512f /proc/cpuinfo; then kind=avx2; else kind=portable; fi ;;
esac
[ $# -gt 0 ] || case $kind in
    vulkan) set -- -m "" tests/runtime/test_{exactness,ragged,reposition,row_graphs,lent_device,snapshot}.py ;;
    *) set -- -m "" tests/runtime/test_{exactness,kept_sets,ragged,reposition}.py ;;
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
    needs glslc glslc
    [ -e /usr/include/vulkan/vulkan.hpp ] || missing+=(libvulkan-dev)
    compgen -G '/usr/*/cmake/SPIRV-Headers' >/dev/null || missing+=(spirv-headers)
    driver=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json') || missing+=(mesa-vulkan-drivers)
    # ggml leaves drivers of the processor out unless they are named, and multiplies in f16 unless it is told not to
    export VK_ICD_FILENAMES=$driver GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_F16=1
    kernels=("")
    flags=(-DGGML_VULKAN=ON)
    set -- --device vulkan "$@"
fi

needs_are_met
build=build/$kind
command -v cmake >/dev/null && command -v ninja >/dev/null || tools=(uv run --no-sync --with "cmake>=3.24" --with ninja)
configure "$build" "${flags[@]}"
build_library "$build"

for set in "${kernels[@]}"; do
    echo "the $kind build${set:+ with $set}: pytest $*"
    EDGEKV_LIB_PATH=$PWD/$build EDGEKV_INSTRUCTIONS=$set uv run --no-sync pytest "$@"
done
