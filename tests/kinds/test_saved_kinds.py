"""Saved sessions of models whose layers differ: windows, recurrent states, and both, go on in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from diagonals import by_night
from evicting import OF_EACH_STATE, RUN

import edgekv
from edgekv.binding.model import Model

STRESS = Path(__file__).parents[1] / "stress"
PROGRAM = Path(__file__).parents[1] / "runtime" / "go_on.py"
OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
TEXT = "the old house by the river stood empty since the flood of that year " * 12


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)


@pytest.fixture
def go_on(monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    from go_on import go_on

    return go_on


@pytest.mark.two_processes
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("policy", "kv_type", "names"),
    [
        ("keydiff", "f16", OF_EACH_STATE[::2]),
        ("h2o", "q8_0", OF_EACH_STATE[1::2]),
        pytest.param("keydiff", "f16", RUN, marks=pytest.mark.nightly),
        pytest.param("h2o", "q8_0", RUN, marks=pytest.mark.nightly),
    ],
)
def test_a_new_process_says_the_next_100_tokens(family_model, go_on, tmp_path, policy, kv_type, names):
    """A model of each kind of state, with one way to store a cell; at night every family that runs, with both."""
    cases, expected = [], []
    for name in names:
        options = OPTIONS | {"policy": policy, "kv_type": kv_type}
        with edgekv.Runtime(family_model(name), **options) as rt, rt.session() as session:
            session.read(TEXT)
            list(session.chat("Who lived there?", max_tokens=7))
            session.save(tmp_path / name)
            cases.append((str(family_model(name)), options, str(tmp_path / name), "And then?"))
            expected.append(go_on(rt, session, "And then?"))
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, str(PROGRAM), str(tmp_path / "cases.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    assert [json.loads(line) for line in found.stdout.splitlines()] == expected
    assert len(expected) == len(names)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("name", by_night(["gemma3", "llama4", "lfm2", "mamba2", "gpt-oss"], ["llama4", "lfm2"]))
def test_other_windows_and_fewer_cells(family_model, tmp_path, name):
    """Another block makes a ring of another size; a smaller budget evicts in a cache of its own."""
    path, forgetting = family_model(name), OPTIONS | {"archive": "off"}
    with edgekv.Runtime(path, **(forgetting | {"budget": 200})) as rt, rt.session() as session:
        session.read(TEXT * 2)
        session.save(tmp_path / "a")
        n_past = session.n_past
        expected = "".join(session.chat("Who?", max_tokens=12))
    whole = ({"budget": 200, "block": 24}, {"budget": 200, "block": 16}, {"budget": 200, "focus": False})
    for options in (*whole, {}, {"block": 8}):
        with edgekv.Runtime(path, **(forgetting | options)) as rt, rt.load_session(tmp_path / "a") as session:
            assert session.n_past == n_past
            budget = options.get("budget", 64)
            assert session.n_cells <= budget + rt.plan.block
            said = "".join(session.chat("Who?", max_tokens=12))
            assert said
            # Nothing was evicted. Sums may be rounded otherwise: gemma3's where the turn of 18 tokens is two batches.
            if budget == 200 and name != "gpt-oss" and (name != "gemma3" or rt.plan.block >= 18):
                assert said == expected


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "lfm2-windows", "llama4"])
def test_windows_have_to_hold_what_the_next_token_sees(family_model, tmp_path, monkeypatch, name):
    """Once each, and with its rows. Otherwise the token would attend to rows that another session left there."""
    monkeypatch.syspath_prepend(STRESS)
    from session_damage import ring_of, with_ring

    def hidden(position):
        return -2 - position

    with edgekv.Runtime(family_model(name), **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        session.save(tmp_path / "a")
        raw = (tmp_path / "a").read_bytes()
        ring = list(ring_of(raw))
        held = [cell for cell, position in enumerate(ring) if position >= 0]
        newest, oldest = max(ring), min(ring[cell] for cell in held)
        assert newest == session.n_past - 1
        assert newest - oldest == len(held) - 1 > 8
        unseen = next(cell for cell in range(len(ring)) if cell not in held)
        some = (*held[:2], held[len(held) // 2], *held[-2:])  # every cell is looked at in the same way
        changes = [{cell: to(ring[cell])} for cell in some for to in (hidden, lambda _: -1)]
        changes += [{unseen: to(ring[cell])} for cell in some for to in (hidden, int)]
        changes += [
            {held[0]: hidden(oldest - 1)},
            {unseen: newest + 1},
            {unseen: hidden(newest + 1)},
            {unseen: -1 << 31},
        ]
        changes += [{held[0]: ring[held[1]], held[1]: ring[held[0]], held[2]: -1}]
        before = rt.block_loop.cache.snapshot().data.tobytes()
        for change in changes:
            wrong = [change.get(cell, position) for cell, position in enumerate(ring)]
            (tmp_path / "b").write_bytes(with_ring(raw, wrong))
            with pytest.raises(edgekv.SessionFileError, match="sliding windows do not hold the positions"):
                rt.load_session(tmp_path / "b", instead_of=session)
        assert rt.block_loop.cache.snapshot().data.tobytes() == before
        moved = dict(zip(held, held[1:] + held[:1], strict=True))  # any order is sound, and cells of older tokens too
        sound = [ring[moved.get(cell, cell)] for cell in range(len(ring))]
        sound[unseen] = hidden(oldest - 1)
        (tmp_path / "b").write_bytes(with_ring(raw, sound))
        with rt.load_session(tmp_path / "b", instead_of=session) as other:
            assert other.n_past == newest + 1


@pytest.mark.usefixtures("talkative")
def test_more_cells_than_there_are_with_windows_and_long_probes(family_model, tmp_path):
    path = family_model("gemma3")
    long = OPTIONS | {"probe_tokens": 400}
    with edgekv.Runtime(path, **(long | {"budget": 700})) as rt, rt.session() as session:
        session.read(TEXT * 3)
        session.save(tmp_path / "a")
        n_past, n_cells = session.n_past, session.n_cells
    with edgekv.Runtime(path, **long) as rt:
        assert n_cells > rt.plan.n_cells
        with rt.load_session(tmp_path / "a") as session:
            assert (session.n_past, session.n_cells) == (n_past, 64)
            assert "".join(session.chat("Who?" * 99, max_tokens=12))
            assert session.n_cells <= 64 + rt.plan.block


@pytest.mark.parametrize("name", ["gemma3", "lfm2"])
def test_windows_of_another_type_are_refused(family_model, tmp_path, name):
    """States have a type of their own, and are left as they are."""
    path = family_model(name)
    with edgekv.Runtime(path, **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        session.save(tmp_path / "a")
        n_past = session.n_past
    with edgekv.Runtime(path, **(OPTIONS | {"kv_type": "q8_0"})) as rt:
        if name == "gemma3":
            with pytest.raises(edgekv.SessionFileError, match="sliding windows hold rows of another kv_type"):
                rt.load_session(tmp_path / "a")
            return
        with rt.load_session(tmp_path / "a") as session:
            assert session.n_past == n_past
            list(session.chat("Who?", max_tokens=3))
