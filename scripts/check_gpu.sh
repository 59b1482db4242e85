#!/usr/bin/env bash
# Build the library with CUDA, and on a machine with a GPU run the tests and the table of docs/results/devices.md there.
#   scripts/check_gpu.sh build [BUILD_DIR] [CUDA_ARCHITECTURE]   needs no GPU, and takes 35 minutes on two cores
#   scripts/check_gpu.sh run [BUILD_DIR] [BOOK]                  needs a GPU, and takes under ten minutes
# The compiler and its libraries come from a package index, so nothing of CUDA need be installed; a GPU's driver must be.
# They are of CUDA 13.0, which every driver for CUDA 13 runs.
# BUILD_DIR is build/cuda, and may be built elsewhere. One architecture keeps it short: 80 is an A100, 89 an RTX 4090,
# 90 an H100. Without a BOOK there is no table.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh
part=${1:-}
build=$(realpath -m "${2:-build/cuda}")
cuda=13

case $part in
    build)
        arch=${3:-80}
        needs_are_met
        uv venv --quiet --clear "$build-env"
        uv pip install --quiet --python "$build-env" "cmake>=3.24" ninja nvidia-{cuda-{nvcc,crt,runtime,cccl},nvvm,cublas}=="$cuda.0.*"
        toolkit=$(echo "$build-env"/lib/python3*/site-packages/nvidia/cu$cuda)
        for library in cudart cublas cublasLt; do ln -sf "lib$library.so.$cuda" "$toolkit/lib/lib$library.so"; done
        ln -sfn lib "$toolkit/lib64"
        export PATH="$build-env/bin:$toolkit/bin:$PATH"

        configure "$build" \
            -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch" -DGGML_CUDA_NCCL=OFF -DGGML_CUDA_NO_VMM=ON \
            -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" -DCUDAToolkit_ROOT="$toolkit" \
            -DCMAKE_BUILD_RPATH="$toolkit/lib"
        build_library "$build"
        symbols=$(nm -D "$build"/libllama.so)
        grep -q ' T edgekv_cache_open' <<<"$symbols"
        grep -q 'ggml_backend_cuda_reg' <<<"$symbols"
        ldd "$build"/libllama.so | awk '/cuda|cublas|not found/'
        echo "the CUDA build compiles and links: $build/libllama.so"
        ;;
    run)
        export EDGEKV_LIB_PATH=$build
        uv run --no-sync edgekv devices
        # logits; kept sets; ragged heads; turned keys; graphs over rows, probes; snapshots; states of recurrent layers
        timeout 420 uv run --no-sync pytest -q --device cuda \
            tests/runtime/test_{exactness,ragged,reposition,row_graphs,lent_device,snapshot,kept_sets}.py tests/kinds/test_exact.py
        [ $# -lt 3 ] || timeout 170 uv run --no-sync python bench/gpu.py --book "$3"
        ;;
    *)
        sed -n '3,4s/^# *//p' "$0" >&2
        exit 2
        ;;
esac
