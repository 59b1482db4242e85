"""A ceiling that moves while a runtime is open: cells are given up and come back, and no session is lost."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from diagonals import HERE_BY_DAY, by_night
from moved_ceilings import mapped
from small import words

import edgekv
from edgekv.errors import CeilingError, ConfigError, SwapError
from edgekv.memory.process import return_freed_memory
from edgekv.memory.sizes import MIB

CELLS = 512
WORDS = 200  # 974 tokens
KINDS = ("Rss", "Pss", "Anonymous")  # bytes of a process by their names in smaps_rollup
GREEDY = edgekv.Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_ctx_train=1 << 16, n_layer=4, n_head=4, n_head_kv=4, head_dim=64)


def opened(model, **settings):
    settings = {"memory": "1GiB", "budget": CELLS, "block": 64, "threads": 1, "probe_tokens": 16, **settings}
    return edgekv.Runtime(model, **settings)


def lower(rt, share=0.5):
    """Return the ceiling that leaves a share of the cells."""
    return int(rt.plan.peak_bytes - (1 - share) * rt.plan.budget_cells * rt.plan.cell_bytes * rt.options.parallel)


def reply(session, text="and then", n=8, **options):
    return "".join(session.ask(text, max_tokens=n, sampling=GREEDY, **options))


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_cells_are_given_up_and_come_back(model, isolated):
    with opened(model, isolated=isolated) as rt, rt.session() as session:
        opened_with = rt.plan
        session.read(words(WORDS), focus=False)
        assert session.n_cells == CELLS
        rt.memory = lower(rt)
        assert rt.plan.peak_bytes <= rt.memory < opened_with.peak_bytes
        assert session.n_cells == rt.plan.budget_cells < 0.5 * CELLS
        reply(session, words(100))
        assert session.n_cells <= rt.plan.budget_cells + rt.plan.block
        assert session.stats.budget_cells == rt.plan.budget_cells

        rt.memory = "1GiB"
        assert rt.plan == opened_with
        session.read(words(WORDS), focus=False)
        assert session.n_cells == CELLS


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take pages back when memory is short")
@pytest.mark.parametrize("kv_type", by_night(["f16", "q8_0", "q4_0"], ["q8_0"]))
def test_the_memory_goes_back_to_the_system(tiny_model, kv_type):
    """Cells lie in anonymous pages. The others, and shares of them, move with what other processes map and read."""
    model = tiny_model(n_ctx_train=1 << 16, n_layer=8, n_head=4, n_head_kv=4, head_dim=128)
    with opened(model, kv_type=kv_type, budget=2 * CELLS) as rt, rt.session() as session:
        session.read(words(300), focus=False)
        return_freed_memory()  # tests before may have left much; a move returns it, too
        full, cells = mapped(), 2 * CELLS * rt.plan.cell_bytes
        rt.memory = lower(rt, 0.5)
        low = mapped()
        told = "; ".join(f"{kind} {full[kind] / MIB:.1f} -> {low[kind] / MIB:.1f}" for kind in KINDS)
        print(f"{kv_type}: of {cells / MIB:.1f} MiB of cells half are given up: {told}")
        rt.memory = "1GiB"
        assert mapped()["Anonymous"] <= low["Anonymous"] + 0.1 * cells  # until cells are filled
        session.read(words(300), focus=False)
        assert mapped()["Anonymous"] >= full["Anonymous"] - 0.1 * cells
        assert low["Anonymous"] <= full["Anonymous"] - 0.4 * cells


@pytest.mark.each_by_day("swap", "log")
@pytest.mark.parametrize("swap", [{}, {"swap_memory": 0}])
@pytest.mark.parametrize("log", [False, True])
def test_sessions_without_the_cells_give_theirs_up_too(model, swap, log):
    with opened(model, **swap) as rt:
        sessions = [rt.session(history=log) for _ in range(3)]
        for session in sessions:
            reply(session, words(WORDS), focus=False)
        few = rt.session(history=log)
        reply(few, words(20))
        n_past, n_cells = few.n_past, few.n_cells
        rt.memory = lower(rt, 0.25)
        assert (few.n_past, few.n_cells) == (n_past, n_cells)
        for session in sessions:
            assert session.n_cells <= rt.plan.budget_cells + rt.plan.block
        for session in [few, *sessions]:
            before = session.n_past
            reply(session)
            assert session.n_past > before
            assert session.n_cells <= rt.plan.budget_cells + rt.plan.block
        if log:
            sessions[0].rewind(450)
            assert sessions[0].n_past == 450


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_ceiling_moves_between_two_pieces(model, parallel):
    with opened(model, parallel=parallel) as rt, rt.session() as session, rt.session() as other:
        other.read(words(WORDS), focus=False)
        pieces = session.ask(words(100), max_tokens=24, sampling=GREEDY, focus=False, ignore_eos=True, allow_loops=True)
        for n, _ in enumerate(pieces):
            if n % 4 == 0:
                rt.memory = lower(rt, 0.25) if n % 8 == 0 else "1GiB"
        assert session.stats.generated_tokens == 24
        assert reply(other)


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_a_ceiling_moves_in_the_midst_of_a_text(model, isolated):
    with opened(model, isolated=isolated) as rt, rt.session() as session, ThreadPoolExecutor(1) as others:
        moves = []

        def move(progress):
            if session.n_cells == CELLS and not moves:
                moves.append(others.submit(rt.set_memory, lower(rt)))

        session.read(words(400), focus=False, progress=move)
        assert moves[0].result() == rt.plan
        assert session.n_cells <= rt.plan.budget_cells + rt.plan.block < 0.6 * CELLS
        assert reply(session)


def test_a_ceiling_does_not_move_within_a_progress(model):
    with opened(model) as rt, rt.session() as session:
        before = rt.plan
        with pytest.raises(edgekv.SessionError, match="such as one with a `progress`"):
            session.read(words(100), progress=lambda _: rt.set_memory(lower(rt)))
        assert rt.plan == before


def test_a_move_that_waits_for_a_progress_does_not_keep_it_waiting(model):
    with opened(model) as rt, rt.session() as session, ThreadPoolExecutor(1) as others:
        moves, refused = [], []

        def move_twice(_):
            if not moves:
                moves.append(others.submit(rt.set_memory, lower(rt)))
                with pytest.raises(edgekv.SessionError) as raised:
                    rt.set_memory("1GiB")
                refused.append(raised)

        session.read(words(WORDS), focus=False, progress=move_twice)
        assert moves[0].result() == rt.plan
        assert len(refused) == 1


def test_a_ceiling_moves_in_an_asyncio_program(model):
    with opened(model) as rt:
        low = lower(rt)
        assert asyncio.run(rt.set_memory_async(low)) == rt.plan
        assert rt.memory == low


def test_a_ceiling_that_cannot_be_is_refused_and_nothing_changes(model):
    with opened(model) as rt, rt.session(system=words(50)) as session:
        session.read(words(WORDS), focus=False)
        before, n_cells = rt.plan, session.n_cells
        for memory, message in (("1MiB", "least budget"), (lower(rt, 0.05), "least budget, 2.. cells; name at least")):
            with pytest.raises(CeilingError, match=message):
                rt.memory = memory
        with pytest.raises(ConfigError, match="'much' is not understood"):
            rt.memory = "much"
        assert (rt.plan, session.n_cells) == (before, n_cells)
        assert reply(session)


def test_sessions_that_find_no_room_keep_the_ceiling(model):
    cells = CELLS * 4 << 10
    with opened(model, swap_memory=2 * cells, swap_bytes=0, memory="2GiB") as rt:
        first, second = rt.session(), rt.session()
        for session in (first, second):
            session.read(words(WORDS), focus=False)
        before = rt.plan
        with pytest.raises((CeilingError, SwapError)):
            rt.memory = "60MiB"
        assert rt.plan == before
        assert reply(first)
        assert reply(second)


def test_a_snapshot_of_more_cells_waits_for_a_higher_ceiling(model):
    with opened(model) as rt, rt.session() as session:
        session.read(words(WORDS), focus=False)
        snapshot = session.snapshot()
        rt.memory = lower(rt)
        n_past, n_cells = session.n_past, session.n_cells
        reply(session)
        with pytest.raises(ConfigError, match=r"512 cells of a head, .* under a higher ceiling"):
            session.restore(snapshot)
        assert reply(session)
        rt.memory = "1GiB"
        session.restore(snapshot)
        assert session.n_past == n_past
        assert session.n_cells > n_cells


def test_what_is_given_up_is_recalled(model):
    with opened(model, archive="1GiB") as rt, rt.session() as session:
        session.read(words(90))
        assert session.n_past == session.n_cells
        rt.memory = lower(rt, 0.25)
        assert session.n_past > session.n_cells
        reply(session)
        assert session.stats.recalled_cells > 0
