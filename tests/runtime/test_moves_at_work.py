"""A ceiling that moves before any step of a read or a reply: what it waits for, what it leaves, and what is lost."""

from __future__ import annotations

import sys

import pytest
from driven_loop import driven
from moved_ceilings import CELLS, LOW, MODEL, SETTINGS, TEXT, ceiling_of, mapped
from small import words

import edgekv
from edgekv.errors import SwapError
from edgekv.loop.loop_messages import Close, MoveCeiling

ARCHIVE = {"archive": "1GiB"}
KINDS = [
    pytest.param({}, marks=pytest.mark.nightly),  # beside what follows
    {"parallel": 2},
    ARCHIVE,
    *(
        pytest.param({"policy": policy, **settings}, marks=pytest.mark.nightly)
        for policy in ("snapkv", "h2o", "keydiff+ada")
        for settings in ({}, ARCHIVE)
    ),
]


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(**MODEL)


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_move_before_any_step_leaves_few_cells_one_block_later(model, settings):
    with driven(model, log=True, **{**SETTINGS, **settings}) as loop:
        loop.reply(1, text=TEXT)
        for at in range(1, loop.n_steps, 7):
            loop.ask(Close(1)) if at == 1 else None
            number, moved, n_cells = loop.open(), [], {}

            def look(step, at=at, number=number, moved=moved, n_cells=n_cells):
                if step == at:
                    moved.append(loop.move(ceiling_of(loop.engine)))
                if moved:
                    n_cells[loop.engine.loaded.decoder.n_steps] = loop.state(number).n_cells

            loop.begin_steps(look)
            [(_, stats)] = loop.reply(number, text=TEXT)
            loop.begin_steps()
            (plan,) = moved[0]
            assert 0.7 * LOW < plan.budget_cells <= LOW
            later = [n for batch, n in n_cells.items() if batch > min(n_cells) + 2]  # a block, and two probes
            assert max(later, default=0) <= plan.budget_cells + SETTINGS["block"]
            assert stats.generated_tokens == 8
            assert stats.read_tokens == stats.prompt_tokens
            assert len(loop.state(number).history.log) == loop.state(number).n_past
            loop.ask(Close(number))
            loop.ask(MoveCeiling(1 << 30))


def test_cells_of_a_conversation_that_was_closed_hold_up_no_move(model):
    with driven(model, 2, log=True, **{**SETTINGS, "parallel": 2}) as loop:
        loop.reply(1, text=TEXT)
        loop.reply(2, text=TEXT)
        loop.ask(Close(1))
        moved = []
        loop.begin_steps(lambda step: moved.append(loop.move(ceiling_of(loop.engine))) if step == 3 else None)
        loop.reply(2, text=TEXT)
        (plan,) = moved[0]
        assert plan.budget_cells <= LOW


@pytest.mark.each_by_day("settings", "at")
@pytest.mark.parametrize(
    "settings", [*KINDS, {"swap_memory": 0}, pytest.param({"prompt_lookup": "on"}, marks=pytest.mark.nightly)], ids=str
)
@pytest.mark.parametrize("at", [5, 14])
def test_cells_that_a_read_lends_come_back_as_they_were(model, settings, at):
    """Others evict in the cells of a read. It reads and says what it does if no other is there."""
    at_work = range(1, settings.get("parallel", 1) + 1)
    found = []
    for n_others in (0, 3):
        with driven(model, len(at_work) + n_others, log=True, **{**SETTINGS, **settings}) as loop:
            others = range(len(at_work) + 1, len(at_work) + 1 + n_others)
            for other in others:
                loop.reply(other, text=words(60 + 10 * other), n=2)
            moved = []

            def look(step, loop=loop, moved=moved):
                if step == at:
                    moved.append(loop.move(ceiling_of(loop.engine)))

            loop.begin_steps(look)
            replies = loop.reply(*at_work, text=TEXT)
            (plan,) = moved[0]
            said = [(text, stats.finish_reason, stats.prompt_tokens) for text, stats in replies]
            logs = [list(state.history.log.tokens(0, state.n_past)) for state in map(loop.state, at_work)]
            found.append((said, [loop.kept(number) for number in at_work], logs))
            for other in others:
                assert loop.state(other).n_cells <= plan.budget_cells
                n_past = loop.state(other).n_past
                loop.reply(other, text="and then", n=2)
                assert loop.state(other).n_past > n_past
    assert found[0] == found[1]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take pages back when memory is short")
def test_memory_is_back_when_the_move_is_answered(tiny_model):
    wide = tiny_model(n_ctx_train=1 << 14, n_layer=4, n_head=4, n_head_kv=4, head_dim=64)
    with driven(wide, **{**SETTINGS, "budget": 2048}) as loop:
        engine = loop.engine
        plan, moved, held = engine.plan, [], []

        def look(step):
            if not moved and loop.state(1).n_cells >= 2048:
                held.append(mapped()["Anonymous"])
                moved.append(loop.move(plan.peak_bytes - 1536 * plan.cell_bytes))
            elif moved and moved[0] and len(held) == 1:
                held.append(mapped()["Anonymous"])

        loop.begin_steps(look)
        loop.reply(1, text=words(1200), n=2)
        assert held[0] - held[1] >= 0.9 * 1536 * plan.cell_bytes


def test_moves_come_one_after_the_other(model):
    with driven(model, **SETTINGS) as loop:
        moves = []

        def look(step):
            if len(moves) < 6 and loop.state(1).n_cells > 32:
                ceiling = ceiling_of(loop.engine, (LOW, CELLS, 2 * LOW)[len(moves) % 3])
                moves.append((ceiling, loop.move(ceiling)))

        loop.begin_steps(look)
        loop.reply(1, text=TEXT, n=12)
        assert [plan.ceiling_bytes for _, (plan,) in moves] == [ceiling for ceiling, _ in moves]


def test_a_read_whose_cells_have_no_room_on_the_disk_goes_on_under_the_old_ceiling(model, tmp_path):
    with driven(model, 2, **SETTINGS, swap_dir=str(tmp_path), swap_memory="64MiB") as loop:
        loop.reply(2, text=words(60), n=2)
        before, moved, full = loop.engine.plan, [], []

        def refuse(block_loop):
            full.append(block_loop)
            raise SwapError("the disk is full")

        loop.engine.slots.swap.written = refuse

        def look(step):
            if not moved and loop.state(1).n_cells > 200:
                moved.append(loop.move(ceiling_of(loop.engine)))

        loop.begin_steps(look)
        [(_, stats)] = loop.reply(1, text=TEXT)
        assert (len(full), str(moved[0][0].error)) == (1, "the disk is full")
        assert loop.engine.plan == before
        assert stats.generated_tokens == 8
        loop.reply(2, text="and then", n=2)


def test_a_read_whose_cells_cannot_be_read_back_ends_and_the_others_go_on(model):
    with driven(model, 3, **SETTINGS) as loop:
        for other in (2, 3):
            loop.reply(other, text=words(60), n=2)
        moved = []

        def fail(sequence, kept, block_loop):
            block_loop.clear()
            raise SwapError("the disk is gone")

        def look(step):
            if not moved and loop.state(1).n_cells > 200:
                loop.engine.slots._load = fail
                moved.append(loop.move(ceiling_of(loop.engine)))

        loop.begin_steps(look)
        with pytest.raises(edgekv.SessionEvictedError, match="cannot be read back; open another"):
            loop.reply(1, text=TEXT)
        assert str(moved[0][0].error) == "the disk is gone"
        del loop.engine.slots._load
        for other in (2, 3):
            loop.reply(other, text="and then", n=2)
