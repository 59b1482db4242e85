"""A session with a log holds no more memory than one without: tokens and checkpoints lie on the disk."""

from __future__ import annotations

import pytest
from logged_chat import chat, grow

MIB = 1 << 20


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_chat_that_goes_back_stays_under_a_ceiling_that_its_cells_fill(memory_ceiling, default_model):
    """One checkpoint in memory would exceed it."""
    options = {"memory": "208MiB", "threads": 1, "kv_type": "f16", "focus": False}
    ended = memory_ceiling("208MiB").run(chat, default_model, "the old house by the river " * 60, 2, 1, **options)
    _, largest, planned = ended.value
    assert largest > 16 * MIB
    assert ended.peak_bytes <= planned < ended.peak_bytes + largest


def test_a_log_does_not_grow_the_process(memory_ceiling, tiny_model):
    options = {"memory": "1GiB", "budget": 64, "block": 256, "threads": 1, "archive": "off"}
    model = tiny_model(n_layer=1, n_ctx_train=2048)
    text = "the old house by the river " * 200
    n_tokens, n_bytes = memory_ceiling("1GiB").run(grow, model, text, 200, **options).value
    n_logged = 4 * n_tokens
    assert n_logged > 2 * MIB  # the peak of a process grows by some 300 KiB in any case, more or less at every run
    assert n_bytes < n_logged // 2
