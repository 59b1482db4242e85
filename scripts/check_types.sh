#!/usr/bin/env bash
# mypy of the package as an install lays it out, for each platform that is named: all of them have branches of their own.
#   scripts/check_types.sh PLATFORM...
set -euo pipefail
cd "$(dirname "$0")/.."

# edgekv.models and edgekv.cli lie beside edgekv/ in the repository. Each platform has its own cache, without which every run
# would check everything anew.
rm -rf build/types && mkdir -p build/types/edgekv
ln -s "$PWD"/edgekv/* "$PWD"/models "$PWD"/cli build/types/edgekv/
printf '%s\n' "$@" | MYPYPATH=build/types xargs -P 2 -I{} uv run --no-sync mypy --platform {} --cache-dir .mypy_cache/{} -p edgekv
