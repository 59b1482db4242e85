#!/usr/bin/env bash
# What .ci/run leaves out, before a release and every night: types for macOS and Windows, tests that are dear and seldom find
# anything, and the same results from the library as another processor's compiler makes it.
#   scripts/nightly.sh [PYTEST_ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # the tests start hundreds of processes that import the same modules

uv sync
scripts/check_types.sh darwin win32
uv run --no-sync pytest -n auto -m nightly "$@"
scripts/test_other_build.sh
