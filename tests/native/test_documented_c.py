"""The pieces of C on docs/c.md compile as they stand there, one after another in one program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from children import LIMIT_S

from edgekv.config import folder

ROOT = Path(__file__).resolve().parents[2]
# what the page takes for granted, and what its `...` stands for
BEFORE = """
#include <edgekv.h>

int piece(struct edgekv_cache * cache, size_t lower_bytes, struct edgekv_compaction_params params);

int piece(struct edgekv_cache * cache, size_t lower_bytes, struct edgekv_compaction_params params) {
    char err[256];
"""
AFTER = """
    return (int) params.budget;
}
"""


def pieces():
    """Return the blocks of the page that are C: those with a call of the library and a semicolon."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt()
    blocks = [
        it.content for it in markdown.parse((ROOT / "docs" / "c.md").read_text("utf-8")) if it.type == "code_block"
    ]
    return [block.replace("...\n", "return 1;\n") for block in blocks if "edgekv_" in block and ";" in block]


def test_pieces_compile(tmp_path):
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no compiler of C is installed")
    assert len(pieces()) == 3
    (tmp_path / "pieces.c").write_text("\n".join([BEFORE, *pieces(), AFTER]))
    command = [
        compiler,
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        f"-I{folder('include')}",
        "pieces.c",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
