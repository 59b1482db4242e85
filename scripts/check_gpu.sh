#!/usr/bin/env bash
# Build the library with CUDA, and on a machine with a GPU run the tests and the tables of docs/results/devices.md there.
#   scripts/check_gpu.sh build [BUILD_DIR] [CUDA_ARCHITECTURE]   needs no GPU, and takes 35 minutes on two cores
#   scripts/check_gpu.sh run [BUILD_DIR] [BOOK]                  needs a GPU, and takes under ten minutes
# The compiler and its libraries come from a package index, so nothing of CUDA need be installed; a GPU's driver must be.
# They are of CUDA 13.0, which every driver for CUDA 13 runs.
# BUILD_DIR is build/cuda, and may be built elsewhere. It has code for the GPUs of this machine, or for the architecture that is
# named: 80 is an A100, 89 an RTX 4090, 90 an H100. The library has no symbols but those that it exports. Without a BOOK there are
# no tables.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh
part=${1:-}
build=$(realpath -m "${2:-build/cuda}")
cuda=13

gpus_say() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

# Architectures of this machine's GPUs, as CMake names them: machine code alone, which only these GPUs run.
architectures() { { gpus_say compute_cap || echo 8.0; } | sort -u | sed 's/\.//; s/$/-real/' | paste -sd ';'; }

# Run a command for so many seconds at most. One that is interrupted says what it found so far.
failed=0
within() { timeout --foreground --signal=INT --kill-after=20 "$@" || { failed=$? && echo "ended with status $failed: ${*:2}"; }; }

case $part in
    build)
        arch=${3:+$3-real}
        needs_are_met
        uv venv --quiet --clear "$build-env"
        uv pip install --quiet --python "$build-env" "cmake>=3.24" ninja nvidia-{cuda-{nvcc,crt,runtime,cccl},nvvm,cublas}=="$cuda.0.*"
        toolkit=$(echo "$build-env"/lib/python3*/site-packages/nvidia/cu$cuda)
        for library in cudart cublas cublasLt; do ln -sf "lib$library.so.$cuda" "$toolkit/lib/lib$library.so"; done
        ln -sfn lib "$toolkit/lib64"
        export PATH="$build-env/bin:$toolkit/bin:$PATH"

        configure "$build" \
            -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${arch:-$(architectures)}" -DGGML_CUDA_NCCL=OFF -DGGML_CUDA_NO_VMM=ON \
            -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" -DCUDAToolkit_ROOT="$toolkit" \
            -DCMAKE_BUILD_RPATH="$toolkit/lib"
        build_library "$build"
        strip --strip-unneeded "$build/libllama.so"
        symbols=$(nm -D "$build"/libllama.so)
        grep -q ' T edgekv_cache_open' <<<"$symbols"
        grep -q 'ggml_backend_cuda_reg' <<<"$symbols"
        ldd "$build"/libllama.so | awk '/cuda|cublas|not found/'
        echo "the CUDA build compiles and links: $build/libllama.so, $(($(stat -c %s "$build/libllama.so") / 1000000)) MB"
        ;;
    run)
        [ -e "$build/libllama.so" ] || { echo "there is no $build/libllama.so; run scripts/check_gpu.sh build first" >&2; exit 1; }
        gpus_say name || { echo "this machine has no GPU with a driver of NVIDIA's; run this on one that has" >&2; exit 1; }
        python=$(uv run --no-sync python -c 'import sys; print(sys.executable)') # uv would interrupt it a second time
        export EDGEKV_LIB_PATH=$build NVIDIA_TF32_OVERRIDE=0 # products of float32 in float32, as the tests' bounds have it
        "$python" -m edgekv devices

        # what is right: logits; kept sets; ragged heads; turned keys; graphs over rows, probes; snapshots; recurrent states; archives
        within 280 "$python" -m pytest -q --tb=line -rf --device cuda \
            tests/runtime/test_{exactness,ragged,reposition}.py tests/kinds/test_exact.py \
            tests/runtime/test_{kept_sets,row_graphs,snapshot,lent_device,archive}.py
        [ $# -ge 3 ] || exit "$failed"
        unset NVIDIA_TF32_OVERRIDE
        within 150 "$python" bench/gpu.py --book "$3" --pairs 2
        within 50 "$python" bench/gpu.py --book "$3" --pairs 1 --tokens 8000 --archive auto
        within 60 "$python" bench/gpu.py --book "$3" --memory
        exit "$failed"
        ;;
    *)
        sed -n '3,4s/^# *//p' "$0" >&2
        exit 2
        ;;
esac
