#!/usr/bin/env bash
# Configure and compile the CUDA build; no GPU is needed, only nvcc. One architecture, to keep it short.
#   scripts/check_cuda_build.sh [BUILD_DIR] [CUDA_ARCHITECTURE]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath -m "${1:-build/cuda}")
arch=${2:-80}

command -v nvcc >/dev/null || { echo "nvcc is not installed; nothing to check" >&2; exit 1; }
uv venv --quiet --clear "$build-env"
cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
uv pip install --quiet --python "$build-env" pip patch-ng==1.19.1 "cmake>=3.24" ninja "nvidia-cublas==$cuda.0.*"
blas=$(echo "$build-env"/lib/python3*/site-packages/nvidia/cu"$cuda") # toolkits are often installed without cuBLAS
PATH="$build-env/bin:$PATH"

cmake -G Ninja -S native -B "$build" -DPython_EXECUTABLE="$build-env/bin/python" \
    -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$arch" -DGGML_CUDA_NCCL=OFF -DGGML_CUDA_NO_VMM=ON \
    -DCUDA_cublas_LIBRARY="$(echo "$blas"/lib/libcublas.so.*)" \
    -DCUDA_cublasLt_LIBRARY="$(echo "$blas"/lib/libcublasLt.so.*)" \
    -DCMAKE_CXX_FLAGS="-I$blas/include" -DCMAKE_CUDA_FLAGS="-I$blas/include"
cmake --build "$build" --target edgekv
symbols=$(nm -D "$build"/libllama.so)
grep -q ' T edgekv_cache_open' <<<"$symbols"
grep -q 'ggml_backend_cuda_reg' <<<"$symbols"
echo "the CUDA build compiles: $build/libllama.so"
