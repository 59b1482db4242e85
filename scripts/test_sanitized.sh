#!/usr/bin/env bash
# Run a program, or tests/stress/interleavings.py, with edgekv's own native sources under a sanitizer.
#   scripts/test_sanitized.sh [address|thread] [PROGRAM.py] [ARGUMENT...]
# For `thread` two threads of a batch say more (--threads 2), and a program with threads of its own (tests/stress/storm.py).
# Python, llama.cpp and ggml are as they are, and the sanitizer's runtime is loaded before them. It does not look for leaks,
# because it would report those of Python.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/separate_build.sh

case "${1:-}" in
    address | thread) kind=$1 && shift ;;
    *) kind=address ;;
esac
program=tests/stress/interleavings.py
case "${1:-}" in *.py) program=$1 && shift ;; esac
needs_are_met
build=build/$kind
command -v cmake >/dev/null && command -v ninja >/dev/null || tools=(uv run --no-sync --with "cmake>=3.24" --with ninja)
configure "$build" -DEDGEKV_SANITIZE="$kind"
build_library "$build"

of_compiler() { "${CXX:-c++}" -print-file-name="$1"; }
# the runtime looks for the functions of the C++ library that throw when it is loaded, and Python loads none
preloaded="$(of_compiler "lib${kind:0:1}san.so") $(of_compiler libstdc++.so)"
EDGEKV_LIB_PATH=$PWD/$build LD_PRELOAD=$preloaded ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1 \
    "$python" "$program" "$@"
