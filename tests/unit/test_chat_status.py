"""The line below a chat's input: how much is remembered, and memory under the ceiling."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgekv.cli.chat.status import bottom_line

MIB = 1 << 20


def chat(peak, ceiling, worker_pid):
    stats = SimpleNamespace(peak_rss_bytes=peak, decode_tok_per_s=0)
    return SimpleNamespace(
        session=SimpleNamespace(n_cells=64, n_past=64, n_recallable=0, stats=stats),
        runtime=SimpleNamespace(
            worker_pid=worker_pid, guard=SimpleNamespace(peak_bytes=peak), plan=SimpleNamespace(ceiling_bytes=ceiling)
        ),
    )


@pytest.mark.parametrize("worker_pid", [None, 7])
def test_a_peak_is_shown_under_its_ceiling_alone(worker_pid):
    assert "168.0 MiB of 200.0 MiB" in bottom_line(chat(168 * MIB, 200 * MIB, worker_pid), 200)
    for peak, ceiling in ((168 * MIB, 160 * MIB), (0, 160 * MIB)):
        assert "MiB" not in bottom_line(chat(peak, ceiling, worker_pid), 200)
