"""Sessions as files: one that was saved goes on in another process as one that never was, and bad files are refused."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from diagonals import by_night, diagonal
from go_on import go_on
from small import SETTINGS, words

import edgekv
from edgekv.binding import structs
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.options import KV_TYPES
from edgekv.store.atomic_write import SUFFIX, _prefix, atomic_write
from edgekv.store.shared_files import lock
from edgekv.store.snapshot_file import Section, SnapshotFile, open_snapshot_file, write_snapshot_file

TRAINED = [8192, 512]  # tokens; a text goes past the second number

PROGRAM = Path(__file__).with_name("go_on.py")
FUZZ = Path(__file__).parents[1] / "stress" / "fuzz_sessions.py"
# whatever a session may carry: scores that add up, norms, shared budgets, windows of queries
STATEFUL = [
    "keydiff",
    "h2o",
    "ahakv",
    "snapkv(window=16)+critical",
    "keydiff+critical",
    "snapkv+ada",
    "h2o+pyramid",
]
TWO = {"policy": "tova+ada", "focus_policy": "snapkv(window=16)+critical"}  # reading is scored by another


def ask(session, question="What was it?", n=40, **options):
    return "".join(session.chat(question, max_tokens=n, **options))


def elsewhere(cases, folder):
    """Return the results of a new process for saved sessions."""
    (folder / "cases.json").write_text(json.dumps(cases, default=str))
    command = [sys.executable, str(PROGRAM), str(folder / "cases.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


# ---- going on ----


@pytest.mark.two_processes
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("kv_type", "n_ctx_train"),
    by_night(list(itertools.product(KV_TYPES, TRAINED)), [("f16", TRAINED[-1]), ("q8_0", TRAINED[0])]),
)
def test_a_new_process_says_the_next_100_tokens(tiny_model, tmp_path, kv_type, n_ctx_train):
    model = tiny_model(n_layer=2, n_ctx_train=n_ctx_train, head_dim=64)
    cases, expected = [], []
    for i, named in enumerate([*({"policy": policy} for policy in STATEFUL), TWO]):
        policy, options = named["policy"], SETTINGS | named | {"kv_type": kv_type}
        path = tmp_path / f"{i}.session"
        with edgekv.Runtime(model, **options) as rt, rt.session(system="Be brief.") as session:
            session.read(words(300))
            ask(session, "Who was it?", n=20, focus=True)
            session.save(path)
            budgets = [session.budgets()]
            cases.append((model, options, path, "And then?"))
            expected.append(go_on(rt, session, "And then?"))
            assert (rt.block_loop.cache.rope_past < session.n_past) == (n_ctx_train == 512)
            if "+" in policy and policy.endswith(("ada", "pyramid")):
                budgets.append(session.budgets())
                assert any(len({n for layer in each for n in layer}) > 1 for each in budgets)
    assert elsewhere(cases, tmp_path) == expected
    assert {it["n"] for it in expected} == {100}
    assert len({it["held"] for it in expected}) == len(expected)


@pytest.mark.two_processes
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_everything_that_a_session_is_comes_back(open_runtime, tmp_path, monkeypatch, isolated):
    """The sampler goes on drawing, turns and pending tokens are where they were, in either kind of runtime."""
    drawn = edgekv.Sampling(temperature=1.0, seed=7, repeat_penalty=1.3)
    with open_runtime(isolated=isolated, prompt_lookup="on") as rt, rt.session(system="Be brief.") as session:
        session.read(words(200))
        ask(session, n=9, sampling=drawn)
        monkeypatch.chdir(tmp_path)
        session.save("a.session")
        monkeypatch.chdir("/")
        before = session.n_past, session.n_cells, session.budgets(), session.kept_positions(1, 1).tolist()
        expected = ask(session, "Why?", sampling=drawn), ask(session, "And?", sampling=drawn)
    for other in (False, True):
        with open_runtime(isolated=other, prompt_lookup="on") as rt:
            with rt.load_session(tmp_path / "a.session") as session:
                assert (session.n_past, session.n_cells, session.budgets()) == before[:3]
                assert session.kept_positions(1, 1).tolist() == before[3]
                assert (ask(session, "Why?", sampling=drawn), ask(session, "And?", sampling=drawn)) == expected
            with rt.session() as session:  # the next one is new
                assert session.n_past == 0


@pytest.mark.usefixtures("talkative")
def test_a_model_at_another_place_in_another_order_is_the_same(tiny_model, tmp_path):
    model = tiny_model(n_layer=2, quantization="Q4_0")
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(Path(model).read_bytes())
    with edgekv.Runtime(model, **SETTINGS, repack=False) as rt, rt.session() as session:
        session.read(words(100))
        session.save(tmp_path / "a")
        n_past = session.n_past
    with edgekv.Runtime(moved, **SETTINGS, repack=True) as rt, rt.load_session(tmp_path / "a") as session:
        assert session.n_past == n_past
        assert ask(session, n=3)


# ---- other cells ----


def kept(runtime):
    cache = runtime.block_loop.cache
    return [cache.positions(*at).tolist() for at in np.ndindex(2, 2)]


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "larger"), diagonal(STATEFUL, [112, 400]))  # fits beside a block, and not
def test_a_smaller_budget_evicts_once_by_the_policy(open_runtime, tmp_path, policy, larger):
    """Loading keeps the cells that an eviction to the smaller budget keeps where the session was saved."""
    with open_runtime(policy=policy, budget=larger) as rt, rt.session() as session:
        session.read(words(300))
        session.save(tmp_path / "a")
        n_past = session.n_past
        rt.block_loop.budget = 64
        rt.block_loop.shrink()
        expected = kept(rt)
    with open_runtime(policy=policy) as rt, rt.load_session(tmp_path / "a") as session:
        assert (session.n_past, session.n_cells) == (n_past, 64)
        assert kept(rt) == expected
        assert len(ask(session, n=50)) > 0
        assert session.n_cells <= 64 + 32


@pytest.mark.parametrize("policy", ["keydiff", "h2o", "snapkv+ada"])
def test_a_larger_budget_and_another_block_take_all(open_runtime, tmp_path, policy):
    with open_runtime(policy=policy) as rt, rt.session() as session:
        session.read(words(300))
        session.save(tmp_path / "a")
        expected = kept(rt)
    with (
        open_runtime(policy=policy, budget=200, block=16, focus=False) as rt,
        rt.load_session(tmp_path / "a") as session,
    ):
        assert kept(rt) == expected
        assert ask(session, n=50) or session.stats.finish_reason == "end"


@pytest.mark.parametrize(("stored", "kv_type"), diagonal(["f16", "q8_0", "q4_0"], ["q8_0", "q4_0", "f16"], n=2))
def test_cells_of_another_type_are_converted(open_runtime, tmp_path, stored, kv_type):
    """Rows mean the same but for rounding; positions, scores and queries stay."""
    rows, queries, notes = [], [], []
    for kind in (stored, kv_type):
        with open_runtime(policy="h2o+critical", kv_type=kind) as rt:
            if not rows:
                with rt.session() as session:
                    session.read(words(100))
                    session.save(tmp_path / "a")
            with rt.load_session(tmp_path / "a") as session:
                cache = rt.block_loop.cache
                rows.append([floats(cache, *at, values=values) for at in np.ndindex(2, 2) for values in (False, True)])
                queries.append(
                    [unrotated(cache.queries(layer)[0], cache.row_format(layer).rotation) for layer in (0, 1)]
                )
                notes.append(SnapshotMeta.read(CachedSource(cache)))
                assert ask(session, n=3) or session.stats.finish_reason == "end"
    for before, after in zip(*rows, strict=True):
        scale = np.abs(before).max(axis=1, keepdims=True)
        rounding = {"f16": 1e-3, "q8_0": 1 / 120, "q4_0": 1 / 6}
        bound = 0 if stored == kv_type else 2 * max(rounding[stored] * (stored == kv_type), rounding[kv_type])
        assert (np.abs(after - before) <= 4 * bound * scale).all()
    np.testing.assert_allclose(queries[1], queries[0], rtol=0, atol=1e-5)
    for name in notes[0].carried:
        np.testing.assert_array_equal(notes[0].carried[name], notes[1].carried[name])


def unrotated(rows, run):
    """Undo a Hadamard rotation in runs of this many elements, in float64."""
    if not run:
        return rows.astype(np.float64)
    matrix = np.ones((1, 1))
    while len(matrix) < run:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    parts = rows.reshape(*rows.shape[:-1], -1, run).astype(np.float64)
    return (parts @ matrix / np.sqrt(run)).reshape(rows.shape)


def floats(cache, layer, head, *, values):
    """Rows as numbers, (n, dim)."""
    data, rows = cache.rows(layer, head, values=values)
    n, dim = len(data), rows.dim
    if rows.type == 1:
        return data.view(np.float16).astype(np.float64).reshape(n, dim)
    block = 34 if rows.type == 8 else 18
    blocks = data.reshape(n, dim // 32, block)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    if rows.type == 8:
        numbers = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).astype(np.float64)
    else:
        packed = blocks[..., 2:]
        numbers = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float64) - 8
    return unrotated((scale * numbers).reshape(n, dim), rows.rotation)


# ---- what is refused ----


@pytest.fixture(scope="module")
def saved(open_runtime, tmp_path_factory):
    """A session file of a runtime with the default options of these tests."""
    path = tmp_path_factory.mktemp("saved") / "a.session"
    with open_runtime() as rt, rt.session() as session:
        session.read(words(100))
        session.save(path)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "h2o"}, r"was saved with policy='keydiff\(rope=off\)', but .*'h2o'; open one with policy='keydiff"),
        ({"n_ctx_train": 4096}, r"was saved with the model 'tiny.*' .*, but this runtime has"),
    ],
)
def test_what_a_file_must_have_in_common(open_runtime, saved, options, message):
    with open_runtime(**options) as rt:
        with pytest.raises(edgekv.SessionFileError, match=message):
            rt.load_session(saved)
        with rt.session() as session:
            assert session.n_past == 0


def test_keys_that_were_moved_are_not_left_where_they_are(open_runtime, saved, tmp_path):
    with open_runtime(reposition="never") as rt, rt.load_session(saved) as session:  # none was
        assert session.n_past > 0
    with open_runtime(n_ctx_train=512) as rt, rt.session() as session:
        session.read(words(300))
        session.save(tmp_path / "a")
    with (
        open_runtime(n_ctx_train=512, reposition="never") as rt,
        pytest.raises(edgekv.SessionFileError, match="moved to other positions, which reposition='never' forbids"),
    ):
        rt.load_session(tmp_path / "a")


def test_a_budget_without_room_for_the_system_message(open_runtime, tmp_path):
    with open_runtime(budget=200) as rt, rt.session(system=words(30)) as session:
        session.read("a b c")
        session.save(tmp_path / "a")
    with open_runtime() as rt, pytest.raises(edgekv.BudgetError, match="does not hold the protected cells"):
        rt.load_session(tmp_path / "a")


def test_no_room_to_evict(open_runtime, tmp_path, monkeypatch):
    with open_runtime(budget=500) as rt, rt.session() as session:
        session.read(words(400))
        session.save(tmp_path / "a")
    with open_runtime() as rt:
        monkeypatch.setattr("edgekv.memory.process.resident_bytes", lambda: rt.plan.ceiling_bytes - 4096)
        with pytest.raises(edgekv.CeilingError, match="does not hold"):
            rt.load_session(tmp_path / "a")


def test_the_running_session_is_untouched_by_what_is_refused(runtime, open_runtime, saved, tmp_path):
    damaged = tmp_path / "damaged"
    raw = bytearray(saved.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged.write_bytes(raw)
    with runtime.session() as session:
        session.read("a b c")
        n_past, expected = session.n_past, session.kept_positions(0, 0).tolist()
        with runtime.load_session(saved) as other:  # beside it
            assert other.n_past > n_past
        for path in (damaged, tmp_path, tmp_path / "absent", Path("/dev/null")):
            with pytest.raises(edgekv.SessionFileError):
                runtime.load_session(path, instead_of=session)
        assert (session.n_past, session.kept_positions(0, 0).tolist()) == (n_past, expected)
        pieces = session.chat("Hello", max_tokens=50)
        next(pieces)
        for use in (lambda: session.save(tmp_path / "b"), lambda: runtime.load_session(saved, instead_of=session)):
            with pytest.raises(edgekv.SessionError, match="already answering"):
                use()
        pieces.close()
        assert not (tmp_path / "b").exists()
        with open_runtime() as elsewhere, elsewhere.session() as foreign:
            foreign.read("a b c")
            with pytest.raises(edgekv.SessionError, match="the session in instead_of is of another runtime"):
                runtime.load_session(saved, instead_of=foreign)
            assert (foreign.closed, foreign.n_past) == (False, n_past)
        other = runtime.load_session(saved, instead_of=session)
        assert session.closed
        assert other.n_past > n_past
        other.close()
        with pytest.raises(edgekv.SessionError, match="closed"):
            session.save(tmp_path / "b")


def test_a_disk_that_fails_in_the_midst_leaves_no_wrong_session(open_runtime, saved, monkeypatch):
    """The file was found whole, and can then no longer be read."""
    with open_runtime() as rt:
        session = rt.session()
        session.read("a b c")
        read, n = SnapshotFile.read, [0]

        def fail(self, name, first, array):
            n[0] += 1
            if array.nbytes > 40_000:
                raise OSError(5, "Input/output error")
            read(self, name, first, array)

        monkeypatch.setattr(SnapshotFile, "read", fail)
        with pytest.raises(edgekv.SessionFileError, match="cannot be read: Input/output error; check"):
            rt.load_session(saved, instead_of=session)
        assert n[0] == 3  # the header of the cells, their numbers, rows
        assert session.closed
        with rt.session() as other:
            assert other.n_past == other.n_cells == 0
            assert ask(other, n=3) or other.stats.finish_reason == "end"


def test_rows_that_are_no_numbers_leave_no_wrong_session(open_runtime, tmp_path):
    """Scoring finds such rows: before anything changed, or when the cells are to be evicted at once."""
    for larger, untouched in ((400, True), (112, False)):
        with open_runtime(budget=larger) as rt, rt.session() as session:
            session.read(words(300))
            session.save(tmp_path / "a")
        with open_snapshot_file(tmp_path / "a") as file:
            file.read_into(0, cells := np.empty(file.n_bytes, np.uint8))
            values = file.header.values
        cells[-(len(cells) // 4) :] = 255  # NaN in f16
        write(tmp_path / "a", values, Section.of("cells", cells), Section("history", 0, []))
        with open_runtime() as rt, rt.session() as session:
            session.read("a b c")
            with pytest.raises(edgekv.NativeError, match="not finite"):
                rt.load_session(tmp_path / "a", instead_of=session)
            assert session.closed != untouched
            assert rt.block_loop.cache.n_past > 0 or not untouched


def test_a_session_that_has_said_nothing_yet(open_runtime, tmp_path):
    with open_runtime() as rt, rt.session(system="Be brief.") as session:
        session.save(tmp_path / "a")
        expected = ask(session)
    with open_runtime() as rt, rt.load_session(tmp_path / "a") as session:
        assert (session.n_past, session.n_cells) == (0, 0)
        assert ask(session) == expected
        assert rt.block_loop.pinned[0][1] > 3


@pytest.mark.skipif(sys.platform == "win32", reason="pipes have no names there")
def test_what_cannot_be_written(session, tmp_path, monkeypatch):
    session.read(words(50))
    folder, fifo = tmp_path / "folder", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    for path, message in (
        (folder, "is a folder; give the path of a file"),
        (fifo, "is no plain file"),
        (tmp_path / "absent" / "a", "cannot be written: No such file or directory; it takes .* MiB"),
        (Path("/proc/a"), "cannot be written"),
        (tmp_path / ("a" * 300), "cannot be written: File name too long"),
    ):
        with pytest.raises(edgekv.SessionFileError, match=message):
            session.save(path)
    assert sorted(it.name for it in tmp_path.iterdir()) == ["fifo", "folder"]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_full_disk_loses_nothing(open_runtime, tmp_path, monkeypatch, failing):
    path = tmp_path / "a"
    with open_runtime() as rt, rt.session() as session:
        session.read(words(50))
        session.save(path)
        before = path.read_bytes()
        session.read(words(50))

        def full(*_arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        if failing == "write":
            monkeypatch.setattr("edgekv.store.snapshot_file.write_all", full)
        else:
            monkeypatch.setattr(f"os.{failing}", full)
        with pytest.raises(edgekv.SessionFileError, match="cannot be written: No space left on device; it takes"):
            session.save(path)
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert [it.name for it in tmp_path.iterdir()] == ["a"]
        session.save(path)
        assert path.read_bytes() != before


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
def test_a_file_size_limit_is_a_typed_error(tiny_model, tmp_path):
    """The system itself refuses to write on."""
    code = (
        "import resource, sys, edgekv\n"
        f"rt = edgekv.Runtime({str(tiny_model(n_layer=2))!r}, memory='4GiB', budget=64, block=32, threads=1)\n"
        "session = rt.session()\n"
        "session.read('a b c ' * 50)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n"
        f"    session.save({str(tmp_path / 'a')!r})\n"
        "except edgekv.SessionFileError as error:\n"
        "    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert "cannot be written: File too large; it takes" in found.stdout, found.stderr
    assert list(tmp_path.iterdir()) == []


def test_leftovers_go_with_the_next_save_and_nobody_elses_do(session, tmp_path):
    """A process that is killed has no time to remove its file."""
    for name in ("a", "b"):
        session.save(tmp_path / name)
    left = tmp_path / f"{_prefix('a')}00000000{SUFFIX}"
    for path in (left, tmp_path / f"other{SUFFIX}"):
        path.write_bytes(b"half of a file")
    session.save(tmp_path / "b")
    assert left.exists()
    with left.open("rb") as writer:  # somebody is at it
        assert lock(writer.fileno())
        session.save(tmp_path / "a")
        assert left.exists()
    session.save(tmp_path / "a")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["a", "b", f"other{SUFFIX}"]


@pytest.mark.skipif(sys.platform == "win32", reason="rights and links are others there")
def test_a_file_is_readable_by_its_owner_alone_and_links_stay(session, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "a")
    session.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "a").stat().st_mode & 0o777 == 0o600


# ---- damage ----


def test_damaged_files_are_refused_or_sound():
    """The whole bench loads 5,000."""
    result = subprocess.run(
        [sys.executable, str(FUZZ), "--files", "48"], capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    header, *_, total = (line.split() for line in result.stdout.splitlines() if line.split()[0] in ("damage", "all"))
    counts = dict(zip(header, total, strict=True))
    assert int(counts["files"]) == 48
    assert int(counts["SessionFileError"]) > 30
    assert int(counts["loaded"]) > 2


@pytest.mark.parametrize(
    ("pinned", "sound"),
    [
        ([[0, 0]] * 100_000, False),
        ([[p, p + 1] for p in range(65)], False),
        ([[p // 4, p // 4 + 1] for p in range(0, 64, 4)], True),
        ([[4, 9], [1, 2]], False),
        ([[0, 5], [3, 8]], False),
        ([[0, 5], [0, 5]], False),
        ([[5, 4]], False),
        ([[0, 5], [5, 8]], True),
        ([[0, 0]], True),
        ([], True),
    ],
)
def test_pinned_ranges_are_few_ascending_and_apart(open_runtime, saved, tmp_path, pinned, sound):
    """A file may not say so much of them that every eviction asks for long."""
    path = tmp_path / "a"
    with open_snapshot_file(saved) as file:
        write(path, file.header.values | {"pinned": pinned}, *copied(file))
    with open_runtime() as rt:
        if sound:
            with rt.load_session(path) as session:
                session.read(words(40))
                return
        with pytest.raises(edgekv.SessionFileError, match="its 'pinned' is impossible"):
            rt.load_session(path)


@pytest.mark.parametrize("kind", [-1, 3, 1 << 20])
def test_rows_of_a_type_that_no_cache_stores(open_runtime, saved, tmp_path, kind):
    """Such a file is refused before a cell changes, not where the first row is converted."""
    path = tmp_path / "a"
    with open_snapshot_file(saved) as file:
        cells, history = copied(file)
        (data,) = cells.pieces
        structs.Snapshot.from_buffer(data).kind.type_k = kind
        write(path, file.header.values, cells, history)
    with open_runtime() as rt, pytest.raises(edgekv.SessionFileError, match="its cells have an unknown type"):
        rt.load_session(path)


def copied(file):
    """The sections of a file without a history."""
    for name in ("cells", "history"):
        file.read(name, 0, data := np.empty(file.n(name), np.uint8))
        yield Section.of(name, data)


def write(path, about, *sections):
    with atomic_write(path) as file:
        write_snapshot_file(file, about, sections)


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_are_refused_by_name(open_runtime, saved, tmp_path, version):
    raw = bytearray(saved.read_bytes())
    raw[8:12] = version.to_bytes(4, "little")
    (tmp_path / "other").write_bytes(raw)
    expected = rf"'.*other' has version {version} .* reads version 2; install the edgekv that wrote it, or read"
    with open_runtime() as rt, pytest.raises(edgekv.SessionFileError, match=expected):
        rt.load_session(tmp_path / "other")


def test_unknown_sections_are_left_alone(open_runtime, saved, tmp_path):
    with open_snapshot_file(saved) as file:
        tokens = Section("tokens", 20, iter([np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)]))
        write(tmp_path / "a", file.header.values | {"later": 1}, tokens, *copied(file))
    with open_runtime() as rt, rt.load_session(tmp_path / "a") as session:
        assert session.n_past > 0
    with open_snapshot_file(tmp_path / "a") as file:
        assert [piece.tolist() for piece in file.numbers("tokens")] == [[0, 1, 2, 0, 1]]
