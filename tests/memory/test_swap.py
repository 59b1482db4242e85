"""Swapped-out sessions stay in their part of the plan, and the process stays under it, in memory and with the disk."""

from __future__ import annotations

import pytest
from swapped_sessions import share_a_beginning, take_turns

MIB = 1 << 20
TEXT = " ".join(("the", "old", "house", "by", "the", "river")[i % 6] for i in range(160))
# sessions without an archive are swapped out whole
WHOLE = {"archive": "off", "kv_type": "f16", "threads": 1, "focus": False}


@pytest.mark.parametrize("disk", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_resting_sessions_are_in_the_plan(memory_ceiling, default_model, tmp_path, disk):
    options = WHOLE | {"memory": "256MiB", "budget": 128, "block": 64}
    rest = {"swap_dir": str(tmp_path), "swap_memory": "10MiB"} if disk else {"swap_memory": "18MiB", "swap_bytes": 0}
    ended = memory_ceiling("256MiB").run(take_turns, default_model, TEXT, 5, **options, **rest)
    found = ended.value
    assert (found["on disk"] > 0) == disk
    assert 0.75 * found["swap"] < found["most"] + found["session"] <= found["swap"] + found["session"]
    assert ended.peak_bytes <= found["planned"]
    assert found["planned"] / ended.peak_bytes < 1.05


@pytest.mark.nightly  # by day the next one has sessions that go to the disk
def test_on_the_disk_sessions_need_no_room_in_memory(memory_ceiling, default_model, tmp_path):
    """Not even on their way: the plan has no room for half a session more. Half a one is more than peaks differ."""
    options = WHOLE | {"budget": 1024, "block": 64}
    options |= {"memory": "256MiB", "swap_dir": str(tmp_path), "swap_memory": 0}
    ended = memory_ceiling("256MiB").run(take_turns, default_model, 8 * TEXT, 3, **options)
    found = ended.value
    assert (found["most"], found["on disk"] > 3 / 2 * found["session"]) == (0, True)
    assert ended.peak_bytes <= found["planned"] < ended.peak_bytes + found["session"] / 2


def test_by_default_several_sessions_have_room_beside_cells_that_take_all_of_it(memory_ceiling, default_model):
    options = WHOLE | {"memory": "188MiB", "resident": 1}
    ended = memory_ceiling("188MiB").run(take_turns, default_model, 4 * TEXT, 3, **options)
    found = ended.value
    assert found["on disk"] > found["session"]
    assert ended.peak_bytes <= found["planned"] <= 188 * MIB < found["planned"] + found["session"]


def test_shared_beginnings_stay_in_the_plan(memory_ceiling, default_model):
    options = {"memory": "190MiB", "kv_type": "f16", "resident": 1, "threads": 1}
    ended = memory_ceiling("190MiB").run(share_a_beginning, default_model, 7 * TEXT, **options)
    found = ended.value
    assert found["reused"][0] == 0 < found["budget"] < found["reused"][1]
    assert len(set(found["reused"][1:])) == 1
    assert ended.peak_bytes <= found["planned"] <= 190 * MIB


@pytest.mark.nightly
def test_sessions_rest_in_what_a_plan_leaves_free(memory_ceiling, default_model):
    options = {"memory": "200MiB", "budget": 128, "block": 64, "kv_type": "f16", "threads": 1, "focus": False}
    options |= {"swap_bytes": 0}
    ended = memory_ceiling("200MiB").run(take_turns, default_model, TEXT, 4, **options)
    assert ended.value["swap"] == ended.value["on disk"] == 0
    assert ended.value["most"] > 3 * ended.value["session"] / 2
    assert ended.peak_bytes > ended.value["planned"]
