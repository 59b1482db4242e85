"""A question of several parts: how it is fed as a probe, and who may give the parts."""

from __future__ import annotations

import pytest
from small import words

import edgekv


@pytest.fixture
def probes(local_runtime, monkeypatch):
    """The texts of the parts of every probe."""
    cache, model, seen = local_runtime.block_loop.cache, local_runtime.model, []
    probe = cache.probe

    def noted(tokens, part_ends):
        starts = [0, *part_ends]
        parts = [tokens[first:end] for first, end in zip(starts, part_ends, strict=False)]
        seen.append([b"".join(map(model.piece, part)).decode() for part in parts])
        probe(tokens, part_ends)

    monkeypatch.setattr(cache, "probe", noted)
    return seen


@pytest.fixture(scope="module")
def open_runtime(open_runtime):
    return lambda **options: open_runtime(**{"probe_tokens": 64} | options)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(words(60))
    return path


@pytest.mark.parametrize(
    ("focus", "ends"),
    [
        (None, ["Who?", " Where? Be brief."]),
        ("a? b?", ["a?", " b?"]),
        (["a? b?", "c"], ["a? b?", "\nc"]),
        (("Who? Where?",), ["Who? Where?"]),
    ],
)
def test_parts_are_found_or_given(local_runtime, probes, path, focus, ends):
    with local_runtime.session() as session:
        list(session.ask("Who? Where? Be brief.", files=[path], focus=focus, max_tokens=1))
    first = probes[0]
    assert [*first[1:]] == ends[1:]
    assert first[0].endswith(ends[0])  # what the template puts before the question is of the first part
    assert all(each == first for each in probes)


def test_every_way_to_read_takes_parts(local_runtime, probes):
    parts = ["the captain", "the harbour"]
    with local_runtime.session(history=True) as session:
        list(session.chat(words(60), focus=parts, max_tokens=1))
    with local_runtime.session() as session:
        session.read(words(60), focus=parts)
    with local_runtime.session(history=True) as session:
        list(session.continue_from([{"role": "user", "content": words(60)}], focus=parts, max_tokens=1))
    with local_runtime.session(history=True) as session:
        session.prefill_prefix(local_runtime.tokenize(words(60)), focus=parts)
    assert len(probes) >= 4
    assert all(len(each) == 2 and each[1] == "\nthe harbour" for each in probes)


def test_given_parts_are_read_with_or_refused(session, path):
    """A long question loses its beginning; what was named is not dropped without a word."""
    with pytest.raises(
        edgekv.ConfigError, match=r"focus has 3 parts of \d+ tokens, and a probe holds 64; .*probe_tokens="
    ):
        list(session.ask("Which?", files=[path], focus=["one of them " * 9] * 3))
    assert (session.n_past, session.stats.finish_reason) == (0, "failed")
    list(session.ask("Which? " * 40, files=[path], max_tokens=1))
    assert session.stats.probes > 0


@pytest.mark.parametrize("focus", [[], [""], ["a", " "], ["a", 1], [None]])
def test_parts_that_cannot_be(session, focus):
    with pytest.raises(edgekv.ConfigError, match="focus has"):
        session.read(words(60), focus=focus)
    assert session.n_past == 0


def test_parts_need_a_runtime_with_focus(open_runtime):
    refused = pytest.raises(edgekv.ConfigError, match=r"focus=\['a', 'b'\] needs a runtime opened with focus=True")
    with open_runtime(focus=False) as runtime, runtime.session() as session, refused:
        session.read(words(60), focus=["a", "b"])


@pytest.mark.nightly
def test_a_worker_reads_with_the_same_parts(open_runtime, path):
    def kept(**options):
        with open_runtime(**options) as runtime, runtime.session() as session:
            text = "".join(session.ask("Who?", files=[path], focus=["Who is word3?", "Who is word9?"], max_tokens=8))
            return text, [session.kept_positions(layer, 0).tolist() for layer in range(2)]

    assert kept() == kept(isolated=True)
