"""Damaged model files give typed errors, or load; none of them takes the process down."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edgekv

# in a process of its own, so that a native crash is a failed test and not the end of the run
LOAD_DAMAGED = """
import random, sys
from pathlib import Path
import edgekv

source, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
header_bytes = int(sys.argv[3])
rng = random.Random(0)
refused = loaded = 0
for i in range(200):
    raw = bytearray(source)
    place = rng.randrange(header_bytes if i % 4 else len(raw))
    raw[place] ^= 1 << rng.randrange(8)
    path = folder / "damaged.gguf"
    path.write_bytes(raw)
    try:
        with edgekv.Runtime(path, memory="4GiB", budget=64, block=32, recent=8, threads=1) as rt:
            list(rt.session().chat("Hello", max_tokens=2))
        loaded += 1
    except edgekv.EdgeKVError:
        refused += 1
print(refused, loaded)
"""


def test_flipped_bits_never_crash(tiny_model, tmp_path):
    from edgekv.models import read_header

    path = tiny_model(n_layer=1, vocab_size=300)
    arguments = [str(path), str(tmp_path), str(read_header(path).data_offset)]
    result = subprocess.run(
        [sys.executable, "-c", LOAD_DAMAGED, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    refused, loaded = map(int, result.stdout.split())
    assert refused + loaded == 200
    assert refused > 20


@pytest.mark.parametrize("n_bytes", [0, 3, 24, 1000, 20_000, -1])
def test_truncated_files_are_refused(tiny_model, tmp_path, n_bytes):
    path = tmp_path / "truncated.gguf"
    path.write_bytes(tiny_model(n_layer=1, vocab_size=300).read_bytes()[:n_bytes])
    with pytest.raises(edgekv.InvalidModelError):
        edgekv.Runtime(path, memory="4GiB")
