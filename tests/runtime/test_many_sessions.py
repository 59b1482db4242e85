"""Many sessions in one runtime: each says and holds what it would alone, wherever it rests meanwhile."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import threading
import tracemalloc

import pytest
from diagonals import HERE_BY_DAY, by_night, diagonal
from small import SETTINGS, words
from waiting import until

import edgekv
from edgekv.conversations.stored_snapshot import StoredSnapshot
from edgekv.generation.sampler import GREEDY
from edgekv.loop import slot_queue

POLICIES = ["keydiff", "h2o", "ahakv", "snapkv(window=16)", "keydiff+critical", "snapkv+ada"]
PAIRS = diagonal(POLICIES, ["f16", "q8_0", "q4_0"])
BY_DAY = ("h2o", "ahakv", "snapkv+ada")  # what adds up, queries and budgets go along
LIMIT_S = 100


@pytest.fixture
def open_tight(tiny_model, open_runtime, tmp_path):
    """A function that opens one whose memory holds a single session; the others rest in `tmp_path`."""

    def open_tight(**options):
        options |= {"swap_dir": tmp_path}
        plan = edgekv.plan(tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64), **(SETTINGS | options))
        return open_runtime(**({"swap_memory": plan.session_bytes} | options))

    return open_tight


def figures(session):
    """Return a session's cells and statistics, without times."""
    stats = {name: n for name, n in dataclasses.asdict(session.stats).items() if not name.endswith(("_s", "_bytes"))}
    kept = [session.kept_positions(*at).tolist() for at in itertools.product(range(2), range(2))]
    return stats, session.n_past, session.n_cells, session.budgets(), kept


def conversation(session, i):
    """A conversation that yields after every step of it; most steps are pieces of replies."""
    drawn = edgekv.Sampling(temperature=1.0, seed=i)
    yield from session.chat("Hi", max_tokens=20, sampling=GREEDY)  # leaves cells to spare
    session.read(words(90, f"book{i}-"), focus=i % 2 == 0 and "Which words?")
    yield figures(session)
    for question, n, sampling in (("What?", 12, GREEDY), (words(50, f"more{i}-"), 40, drawn), ("And then?", 12, drawn)):
        yield from session.chat(question, max_tokens=n, sampling=sampling, focus=i % 2 == 1)
        yield figures(session)


def alone(runtime, i, system=None):
    with runtime.session(system) as session:
        return list(conversation(session, i))


def together(runtime, n, systems=()):
    """The steps of n conversations, one of each in turn."""
    sessions = [runtime.session(system) for _, system in itertools.zip_longest(range(n), systems)]
    steps = [[] for _ in sessions]
    for taken in itertools.zip_longest(*(conversation(session, i) for i, session in enumerate(sessions))):
        for mine, step in zip(steps, taken, strict=True):
            mine += [step] if step is not None else []
    for session in sessions:
        session.close()
    return steps


# ---- the same as alone ----


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), by_night(PAIRS, [case for case in PAIRS if case[0] in BY_DAY]))
def test_sessions_that_take_turns_say_what_each_says_alone(open_tight, monkeypatch, policy, kv_type):
    """Turns end in the midst of replies, and the other sessions are on the disk."""
    loaded, load = [], StoredSnapshot.load
    monkeypatch.setattr(StoredSnapshot, "load", lambda *given: (loaded.append(given), load(*given))[1])
    with open_tight(policy=policy, kv_type=kv_type) as rt:
        found = together(rt, 2)
        assert len(loaded) > 40
        assert found == [alone(rt, i) for i in range(2)]
        assert found[0] != found[1]
        assert all(steps[-1][0]["evictions"] > 0 for steps in found)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_repositioned_keys_go_along(open_runtime, kv_type):
    with open_runtime(n_ctx_train=512, policy="snapkv+ada", kv_type=kv_type) as rt:
        found = together(rt, 2)
        assert found == [alone(rt, i) for i in range(2)]
        assert any(step[0]["repositions"] for step in found[0] if isinstance(step, tuple))


@pytest.mark.usefixtures("talkative")
def test_drafts_look_up_what_their_own_session_read(open_tight):
    with open_tight(prompt_lookup="on", policy="h2o") as rt:
        histories = []
        sessions = [rt.session() for _ in range(2)]
        for i, session in enumerate(sessions):
            session.read(words(60, f"book{i}-"))
        for session in [*sessions, *sessions]:
            list(session.chat("What?", max_tokens=3))
            histories.append(rt.block_loop._speculation.earlier.to_bytes())
        assert len(histories[0]) > 4 * 120
        assert [later.startswith(first) for first, later in zip(histories, histories[2:], strict=False)] == [True, True]
        assert not histories[1].startswith(histories[0])


@pytest.mark.nightly
@pytest.mark.two_processes
def test_an_isolated_runtime_has_many_too(open_runtime, open_tight):
    """Random weights may end a reply at once; nobody is talkative in the worker."""
    with open_tight(isolated=True) as far, open_runtime() as near:
        found = together(far, 3)
        assert found == [alone(near, i) for i in range(3)] == together(near, 3)
        assert found[0] != found[1]


def test_system_messages_are_each_ones_own(runtime):
    systems = ["Be brief.", None, words(4)]
    found = together(runtime, 3, systems)
    assert found == [alone(runtime, i, system) for i, system in enumerate(systems)]


def test_a_system_message_without_room_changes_nobody(runtime):
    with runtime.session() as session:
        session.read("a b c")
        before = figures(session)
        with pytest.raises(edgekv.BudgetError, match="raise the budget"):
            runtime.session(system=words(60))
        assert figures(session) == before


def test_snapshots_and_going_back_to_them(runtime):
    with runtime.session() as one, runtime.session() as other:
        one.read(words(60))
        taken, before = one.snapshot(), figures(one)
        other.read(words(70, "other"))
        other.restore(taken)
        assert figures(other)[1:] == before[1:]
        assert figures(one) == before


# ---- what a switch costs ----


def test_a_session_that_has_read_nothing_costs_nothing(local_runtime, monkeypatch):
    with local_runtime.session() as session:
        list(session.chat("Hello", max_tokens=3))
        assert session.stats.switch_s == 0
        with monkeypatch.context() as patch:
            patch.setattr(local_runtime.block_loop.cache, "snapshot", None)
            with local_runtime.session("Be brief.") as unused:
                assert (unused.n_past, unused.n_cells) == (0, 0)
            list(session.chat("Go on", max_tokens=3))
        with local_runtime.session() as other:
            list(other.chat("Hello", max_tokens=3))
            assert other.stats.switch_s > 0
            list(session.chat("Go on", max_tokens=3))
            assert session.stats.switch_s > 0
            list(session.chat("And on", max_tokens=3))
            assert session.stats.switch_s == 0


def test_a_resting_session_takes_what_its_cells_take(local_runtime):
    swap = local_runtime._engine.slots.swap
    with local_runtime.session() as small, local_runtime.session() as large:
        list(small.generate("a", max_tokens=1))
        large.read(words(100))
        little = swap.memory_bytes
        assert 0 < little < local_runtime.plan.session_bytes / 5
        small.n_past, small.n_cells  # noqa: B018  (known without the cells)
        assert swap.memory_bytes == little
        small.budgets()
        assert 3 * little < swap.memory_bytes <= local_runtime.plan.session_bytes
        large.close()
        assert swap.memory_bytes == 0
        small.budgets()


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "drafts"), diagonal([*POLICIES, "keydiff+ada"], ["off", "on"]))
def test_the_planned_bytes_of_a_session_are_those_of_full_cells(open_runtime, policy, drafts):
    with open_runtime(policy=policy, prompt_lookup=drafts) as rt, rt.session() as session:
        session.read(words(100))
        largest = 0
        for _ in session.chat("What?", max_tokens=80, allow_loops=True):
            largest = max(largest, rt.block_loop.cache.snapshot_bytes)
        history = (1 << 16) if drafts == "on" else 0
        assert rt.plan.session_bytes - 300 <= largest + history <= rt.plan.session_bytes


# ---- room ----


def test_without_room_nobody_changes(open_runtime, monkeypatch):
    """The system's count of bytes is set so that too few are left."""
    with open_runtime(swap_bytes=0) as rt, rt.session() as session, rt.session() as other:
        session.read(words(60))
        before = figures(session)
        monkeypatch.setattr("edgekv.memory.process.resident_bytes", lambda: rt.plan.ceiling_bytes - 1000)
        for use in (lambda: list(other.chat("Hello")), other.budgets, other.snapshot):
            with pytest.raises(
                edgekv.SwapError, match=r"4096\.0 MiB leaves free and swap_bytes=0\.0 MiB do not hold .* raise swap_b"
            ):
                use()
        assert figures(session) == before
        monkeypatch.undo()
        assert list(other.chat("Hello", max_tokens=3))
        assert figures(session) == before


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_second_session_works_by_default(open_runtime, monkeypatch, tmp_path, isolated):
    """The first one lies on the disk, in a file without a name, as memory has no room."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with open_runtime(isolated=isolated, swap_memory=0) as rt, rt.session() as session, rt.session() as other:
        session.read(words(60))
        before = figures(session)
        other.read(words(30, "other"))
        assert isolated or len(stored_of(rt)) == 1
        assert list(tmp_path.iterdir()) == []
        assert figures(session) == before


def test_a_full_disk_is_told_by_default(open_runtime, monkeypatch, tmp_path):
    with open_runtime(swap_memory=0) as rt, rt.session() as session, rt.session() as other:
        session.read(words(60))
        before = figures(session)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        with pytest.raises(edgekv.SwapError, match=r"^the folder that TMPDIR names does not take .* another swap_dir"):
            other.read("a")
        assert figures(session) == before


def test_nothing_rests_where_no_memory_is_given_to_it(open_runtime):
    with open_runtime(swap_memory=0, swap_bytes=0) as rt, rt.session() as session:
        session.read("a b c")
        with rt.session() as other:
            with pytest.raises(edgekv.SwapError, match=r"^swap_memory=0\.0 MiB and swap_bytes=0\.0 MiB do not hold"):
                other.read("d")
            session.close()
            other.read("d")


def with_books(rt, n):
    """Sessions that read a text each, one after another."""
    sessions = [rt.session() for _ in range(n)]
    for i, session in enumerate(sessions):
        session.read(words(100, f"book{i}-"))
    return sessions


def test_in_memory_a_session_more_than_there_is_room_for_is_refused(open_runtime):
    """A switch may take the room of one with full cells, and a text that was read leaves two thirds of them."""
    with open_runtime() as rt:
        room = 7 * rt.plan.session_bytes // 2
    with open_runtime(swap_memory=room, swap_bytes=0) as rt:
        sessions = with_books(rt, 4)
        before = [figures(session) for session in sessions]
        with rt.session() as another:
            with pytest.raises(edgekv.SwapError, match=r"^swap_memory=.* do not hold .* swap_full='evict'"):
                another.read("a")
            assert another.n_past == 0
            assert [figures(session) for session in sessions] == before
            sessions[1].close()
            another.read("a")


def test_the_least_recently_used_is_dropped_where_that_is_asked_for(open_runtime):
    with open_runtime() as rt:
        room = 7 * rt.plan.session_bytes // 2
    with open_runtime(swap_memory=room, swap_bytes=0, swap_full="evict") as rt:
        sessions = with_books(rt, 4)
        kept = [figures(sessions[i]) for i in (0, 2, 3)]
        sessions += with_books(rt, 1)  # evicts the second
        for _ in range(2):
            with pytest.raises(edgekv.SessionEvictedError, match=r"evicted to make room .*; open another"):
                list(sessions[1].chat("What?"))
        assert sessions[1].stats.finish_reason == "failed"
        assert [figures(sessions[i]) for i in (0, 2, 3)] == kept


def test_nobody_is_evicted_in_vain(open_runtime, monkeypatch):
    """Of three sessions one is used again, and the system's count of bytes leaves room for one."""
    with open_runtime(swap_bytes=0, swap_full="evict") as rt:
        sessions = with_books(rt, 3)
        taken = rt.plan.ceiling_bytes + rt._engine.slots.swap.memory_bytes // 2
        with monkeypatch.context() as patch:
            patch.setattr("edgekv.memory.process.resident_bytes", lambda: taken)
            with pytest.raises(edgekv.SwapError, match=r"leaves free and .* do not hold"):
                sessions[0].budgets()
        assert all(session.budgets() for session in sessions)


def test_the_disk_has_a_cap(open_tight, tmp_path):
    with open_tight() as rt:
        cap = 3 * rt.plan.session_bytes
    with open_tight(swap_bytes=cap) as rt:
        sessions = with_books(rt, 5)  # four of two thirds rest
        before = [figures(session) for session in sessions]
        with rt.session() as another:
            with pytest.raises(edgekv.SwapError, match=r"^swap_memory=.* and swap_bytes=.* do not .* raise swap_bytes"):
                another.read("a")
            assert [figures(session) for session in sessions] == before
        assert rt.plan.session_bytes < rt._engine.slots.swap.disk_bytes <= cap
    with open_tight(swap_bytes=cap, swap_full="evict") as rt:
        sessions = with_books(rt, 7)
        for session in sessions[:2]:
            with pytest.raises(edgekv.SessionEvictedError):
                session.budgets()
        for session in sessions[2:]:
            assert session.budgets()


def test_a_disk_that_is_full_loses_nothing(open_tight, monkeypatch):
    with open_tight() as rt:
        first, second = with_books(rt, 2)
        before = figures(first), figures(second)

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("edgekv.store.snapshot_file.write_all", full)
            for _ in range(2):
                with pytest.raises(edgekv.SwapError, match=r"swap_dir=.*: No space left on device; make room"):
                    first.read("a")
        assert (figures(first)[1:], figures(second)) == (before[0][1:], before[1])


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_file_that_is_damaged_is_told(open_tight, damage):
    with open_tight() as rt:
        first, second, third = with_books(rt, 3)
        (file,) = {stored.file for stored in stored_of(rt)}
        size = os.fstat(file.fileno()).st_size
        if damage == "cut":
            file.truncate(size - 1)
        else:
            (byte,) = os.pread(file.fileno(), 1, size // 2)
            os.pwrite(file.fileno(), bytes([byte ^ 1]), size // 2)
        lost, kept = (
            (second, first) if second._conversation.state in rt._engine.slots.swap._swapped else (first, second)
        )
        for _ in range(2):
            with pytest.raises(edgekv.SessionEvictedError, match=r"cannot be read back: its temporary file .*; open"):
                list(lost.chat("What?"))
        assert kept.budgets()[0][0] == third.budgets()[0][0] == 64


def test_a_disk_that_fails_once_loses_nothing(open_tight, monkeypatch):
    with open_tight(swap_memory=0) as rt:
        first, second = with_books(rt, 2)
        before = figures(second), figures(first)

        def failing(*_):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("edgekv.store.snapshot_file.read_all", failing)
            with pytest.raises(edgekv.SwapError, match="cannot be read back now: Input/output error; try again"):
                second.budgets()
        assert (figures(second), figures(first)) == before


def stored_of(rt):
    """The snapshots of swapped-out sessions on the disk, all private and without a name."""
    found = [it for it in rt._engine.slots.swap._swapped.values() if isinstance(it, StoredSnapshot)]
    for status in (os.fstat(it.file.fileno()) for it in found):
        assert (status.st_mode & 0o077, status.st_nlink) == (0, 0)
    return found


def test_files_last_as_long_as_their_sessions(open_tight, tmp_path):
    with open_tight() as rt:
        sessions = with_books(rt, 4)
        assert len(stored_of(rt)) == 2  # one more is in memory
        files = [stored.file for stored in stored_of(rt)]
        for session in sessions[:3]:
            session.close()
        sessions[3].budgets()
        assert [file.closed for file in files] == [True, True]
        sessions += with_books(rt, 2)
        assert len(stored_of(rt)) == 1
        (file,) = (stored.file for stored in stored_of(rt))
        assert list(tmp_path.iterdir()) == []
        del session, sessions
        gc.collect()
        with rt.session() as other:
            other.read("a")
            assert file.closed
        books = with_books(rt, 3)
        (file,) = (stored.file for stored in stored_of(rt))
    assert file.closed
    assert all(session.closed for session in books)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"swap_memory": "1KiB", "swap_bytes": 0},
            r"swap_memory=1\.0 KiB does not hold two of a session of 64 cells, .* raise swap_bytes",
        ),
        (
            {"swap_bytes": "1KiB", "swap_dir": "."},
            r"swap_bytes=1\.0 KiB does not hold a .* raise swap_bytes to 1MiB",
        ),
        ({"swap_bytes": -1}, "size -1 is not a positive whole number"),
        ({"swap_full": "maybe"}, "swap_full='maybe' is unknown; possible: refuse, evict"),
        ({"swap_memory": -1}, "size -1 is not a positive whole number"),
        ({"swap_dir": __file__}, "swap_dir=.* cannot be used: .*; name a folder that can be written to"),
        ({"swap_dir": "/proc/none"}, "swap_dir='/proc/none' cannot be used"),
    ],
    ids=str,
)
def test_room_that_cannot_work_is_refused(open_runtime, monkeypatch, tmp_path, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(edgekv.ConfigError, match=message):
        open_runtime(**options)


def test_a_runtime_for_one_session_loses_no_cells(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=1 << 20, head_dim=64)
    options = {"kv_type": "f16", "block": 32}
    memory = edgekv.plan(path, memory="4GiB", budget=4000, swap_bytes=0, **options).peak_bytes
    plain = edgekv.plan(path, memory=memory, swap_bytes=0, **options)
    disk = edgekv.plan(path, memory=memory, **options)
    named = edgekv.plan(path, memory=memory, swap_memory="1MiB", swap_bytes=0, **options)
    assert plain.parts.swap == 0
    assert memory - plain.peak_bytes < 1 << 14  # cells take all of it
    assert 0 < disk.parts.swap < disk.session_bytes / 4  # what is read of a session before its rows, and a buffer
    assert disk.budget_cells < plain.budget_cells < 1.2 * disk.budget_cells
    assert named.parts.swap == 1 << 20 >= 2 * named.session_bytes > 0.98 * (1 << 20)


def test_the_plan_counts_what_a_session_takes_on_its_way_from_the_disk(open_runtime, tmp_path):
    options = {"budget": 500, "prompt_lookup": "on", "swap_memory": 0, "swap_dir": tmp_path}
    with open_runtime(**options) as rt, rt.session() as session, rt.session() as other:
        for it in (session, other):
            it.read(words(300))
        for it in (session, other):
            it.kept_positions(0, 0)  # a first switch imports what it needs
        tracemalloc.start()
        try:
            session.kept_positions(0, 0)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken <= rt.plan.parts.swap < 2 * taken


# ---- beginnings ----


def test_many_sessions_begin_with_one_snapshot(runtime):
    with runtime.session("Be brief.") as session:
        session.read(words(90))
        taken = session.snapshot()
        before = figures(session)
        expected = list(session.chat("What?", max_tokens=10)), figures(session)
    begun = [runtime.session(start=taken) for _ in range(3)]
    assert [session.n_past for session in begun] == [taken_n := before[1]] * 3
    assert taken_n > 100
    for session in begun:
        assert figures(session)[1:] == before[1:]
    for session in begun:
        assert (list(session.chat("What?", max_tokens=10)), figures(session)) == expected


def test_beginnings_that_cannot_work(runtime, open_runtime):
    with runtime.session() as session:
        session.read("a b c")
        taken = session.snapshot()
    with open_runtime() as other, pytest.raises(edgekv.SessionError, match="start is of another runtime"):
        other.session(start=taken)
    with pytest.raises(edgekv.ConfigError, match="leave system out"):
        runtime.session("Be brief.", start=taken)


# ---- ends ----


def test_a_resting_session_can_be_closed_and_another_goes_on(runtime):
    one, other = runtime.session(), runtime.session()
    one.read(words(60))
    other.read(words(60, "other"))
    one.close()
    assert one.closed
    with pytest.raises(edgekv.SessionError, match="closed"):
        one.read("a")
    list(other.chat("What?", max_tokens=3))
    assert other.stats.switch_s == 0


def test_a_reply_of_a_closed_session_ends(runtime):
    with runtime.session() as one, runtime.session() as other:
        pieces = one.generate(words(5), max_tokens=50)
        next(pieces)
        assert list(other.generate("a b c", max_tokens=3))
        n_past = one.n_past
        one.close()
        other.budgets()
        assert list(pieces) == []
        assert (one.stats.finish_reason, one.stats.tokens_seen) == ("cancelled", n_past)


@pytest.mark.parametrize("closed", ["session", "runtime"])
def test_what_is_closed_while_another_thread_reads_its_text_says_so(tiny_model, closed):
    """Each call meets the close at another line, so every one of them has to be safe."""
    for _ in range(2):
        rt = edgekv.Runtime(tiny_model(n_layer=2), **SETTINGS)
        session = rt.session(history=True)
        session.read(words(60))
        errors, looking = [], threading.Event()

        def look(session=session, errors=errors, looking=looking):
            try:
                while True:
                    for _ in session.text():
                        looking.set()
                    list(session.turns())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        assert looking.wait(LIMIT_S)
        (session if closed == "session" else rt).close()
        thread.join(LIMIT_S)
        rt.close()
        assert isinstance(errors[0], edgekv.SessionError), errors


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_a_runtime_is_closed_while_sessions_rest(open_runtime, tmp_path, isolated):
    with open_runtime(swap_dir=tmp_path, isolated=isolated) as rt:
        one, other = rt.session(), rt.session()
        one.read(words(60))
        pieces = other.generate(words(5), max_tokens=50)
        next(pieces)
    assert one.closed
    assert other.closed
    for session in (one, other):
        with pytest.raises(edgekv.SessionError, match="closed"):
            session.n_past  # noqa: B018
    with pytest.raises(edgekv.SessionError, match="closed"):
        next(pieces)
    assert list(tmp_path.iterdir()) == []


# ---- turns ----


@pytest.fixture
def patient(monkeypatch):
    """Nobody passes who pauses, unless the same thread waits."""
    monkeypatch.setattr(slot_queue, "IDLE_S", LIMIT_S)


def waiting(runtime):
    """Messages that wait in the loop; in a worker, those without an answer."""
    channel = runtime._engine.channel
    return len(channel._boxes) if runtime.worker_pid else len(channel.loop._slots.waiting)


def in_threads(runtime, works):
    """Start these one after another, each when the last one waits; returns their threads."""
    threads = []
    for n, work in enumerate(works, start=1):
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
        until(lambda n=n: waiting(runtime) == n)
    return threads


def joined(threads):
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_requests_are_served_in_order_of_arrival(runtime, patient):
    said, served = {}, []
    sessions = [runtime.session() for _ in range(5)]

    def work(i):
        def progress(_):  # within its turn: at the end of the reply, others may be quicker to say so
            if i not in served:
                served.append(i)

        said[i] = list(sessions[i].generate(words(30, f"book{i}-"), max_tokens=10, progress=progress))

    expected = {}
    for i in range(5):
        with runtime.session() as session:
            expected[i] = list(session.generate(words(30, f"book{i}-"), max_tokens=10))
    with runtime.session() as first:
        pieces = first.generate("a b c", max_tokens=50, allow_loops=True)
        next(pieces)
        order = [3, 1, 4, 0, 2]
        threads = in_threads(runtime, [lambda i=i: work(i) for i in order])
        assert served == []
        list(pieces)
        joined(threads)
    assert served == order
    assert said == expected
    for session in sessions:
        session.close()


def test_cancel_reaches_one_that_waits(runtime, patient):
    with runtime.session() as first, runtime.session() as second, runtime.session() as third:
        pieces = first.generate("a b c", max_tokens=50)
        next(pieces)
        said = {}
        threads = in_threads(
            runtime, [lambda s=s: said.setdefault(s, list(s.chat("Hello", max_tokens=3))) for s in (second, third)]
        )
        second.cancel()
        joined(threads[:1])
        assert (said, second.stats.finish_reason, second.n_past) == ({second: []}, "cancelled", 0)
        assert waiting(runtime) == 1
        pieces.close()
        joined(threads)
        assert third.stats.finish_reason != "cancelled"
        assert list(second.chat("Hello", max_tokens=3))  # the cancelled turn left nothing


def test_cancel_ends_a_reply_that_others_passed(runtime, monkeypatch):
    monkeypatch.setattr(slot_queue, "IDLE_S", 0)
    with runtime.session() as first, runtime.session() as second:
        pieces = first.generate("a b c", max_tokens=50)
        next(pieces)
        seen = first.n_past
        passing = second.generate("d e f", max_tokens=50, allow_loops=True)
        next(passing)
        first.cancel()
        assert list(pieces) == []
        assert (first.stats.finish_reason, first.stats.tokens_seen) == ("cancelled", seen)
        assert list(passing)
        assert second.stats.switch_s > 0  # time of its first step alone: `first` did not come back
        assert list(first.generate("g", max_tokens=3))


def test_a_reply_that_nobody_iterates_lets_others_pass(runtime):
    with runtime.session() as first, runtime.session() as second:
        pieces = first.generate("a b c", max_tokens=10, allow_loops=True)
        begun = next(pieces)
        thread = threading.Thread(target=lambda: second.read(words(60)), daemon=True)
        thread.start()
        joined([thread])
        passed = begun + "".join(pieces)
    with runtime.session() as session:
        assert passed == "".join(session.generate("a b c", max_tokens=10, allow_loops=True))


def test_a_session_is_not_used_within_the_call_of_another(runtime):
    errors = []

    def progress(p):
        assert first.n_cells == p.cells_used
        assert len(first.kept_positions(0, 0)) == p.cells_used
        assert second.n_past == 0
        try:
            second.read("d")
        except edgekv.SessionError as error:
            errors.append(str(error))

    with runtime.session() as first, runtime.session() as second:
        first.read(words(60), progress=progress)
        assert len(errors) > 2
        assert "another session is at work in this very call" in errors[0]
        assert second.n_past == 0
        second.read("d")


def test_closing_a_runtime_wakes_who_waits_and_cancels_who_works(open_runtime, patient):
    rt = open_runtime()
    first, second = rt.session(), rt.session()
    ended, reading = [], threading.Event()

    def progress(p):
        reading.set()
        until(first._cancelled.is_set, "the close")  # most of the text is unread then

    def work():
        first.read(words(5000), progress=progress)
        ended.append(first.stats.finish_reason)

    def wait():
        try:
            second.read("d")
        except edgekv.SessionError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work, daemon=True)]
    threads[0].start()
    assert reading.wait(LIMIT_S)
    threads += in_threads(rt, [wait])
    rt.close()
    joined(threads)
    assert sorted(ended)[0] == "cancelled"
    assert "closed" in sorted(ended)[1]


@pytest.mark.nightly
def test_four_threads_and_a_storm_of_cancels(runtime):
    """Every reply ends, and every session answers afterwards."""
    sessions = [runtime.session() for _ in range(4)]
    over, reasons = threading.Event(), []

    def work(session):
        for i in range(8):
            for _ in session.generate(words(1 + i), max_tokens=30):
                pass
            reasons.append(session.stats.finish_reason)

    def storm():
        for session in itertools.cycle(sessions):
            if over.wait(0.01):
                return
            session.cancel()

    threads = [threading.Thread(target=work, args=(session,), daemon=True) for session in sessions]
    cancelling = threading.Thread(target=storm, daemon=True)
    for thread in (*threads, cancelling):
        thread.start()
    joined(threads)
    over.set()
    joined([cancelling])
    assert len(reasons) == 32
    assert set(reasons) <= {"cancelled", "length", "end", "loop"}
    for session in sessions:
        list(session.generate("a b c", max_tokens=3))
        assert session.stats.finish_reason != "cancelled"
        session.close()
