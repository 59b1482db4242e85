"""A session with an archive goes back to any token, with the cells of one that read no further, and decodes nothing."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from archived_kinds import ARCHIVED, KINDS, each_kind
from small import SETTINGS, words

import edgekv
from edgekv.binding.cache import Cache
from edgekv.generation.sampler import GREEDY
from edgekv.testing.models.families import make_family

REWOUND = KINDS | {
    "q4_0 turned": {"kv_type": "q4_0", "reposition": "always"},
    "norms of values": {"policy": "keydiff+critical"},
    "sinks and newest": {"policy": "sink"},
    "drafts": {"prompt_lookup": "on"},
}
BLOCK, BUDGET, RECENT = (SETTINGS[name] for name in ("block", "budget", "recent"))
QUERIES = ["snapkv+ada", "h2o", "tova", "ahakv"]
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture
def decoded(monkeypatch):
    """A list of how many tokens each call of this process has decoded."""
    n_tokens = []
    feed, together = Cache.feed, Cache.feed_together

    def watched(cache, tokens, **how):
        n_tokens.append(len(tokens))
        feed(cache, tokens, **how)

    def watched_together(feeds):
        n_tokens.extend(len(tokens) for _, tokens, _ in feeds)
        return together(feeds)

    monkeypatch.setattr(Cache, "feed", watched)
    monkeypatch.setattr(Cache, "feed_together", staticmethod(watched_together))
    return n_tokens


@pytest.fixture
def written(monkeypatch):
    """(layer, head, position) -> key and value of each token as they were when it was first fed, in this process."""
    rows = {}
    compact = Cache.compact

    def watched(cache, *arguments, **further):
        for place, row in rows_of(cache).items():
            rows.setdefault(place, row)
        return compact(cache, *arguments, **further)

    monkeypatch.setattr(Cache, "compact", watched)
    return rows


def rows_of(cache):
    found = {}
    for at in cache.heads:
        keys, values = (cache.rows(*at, values=values)[0] for values in (False, True))
        for position, *row in zip(cache.positions(*at).tolist(), keys, values, strict=True):
            found[(*at, position)] = tuple(part.tobytes() for part in row)
    return found


def log_of(session):
    return session._conversation.state.history.log.read(0, 1 << 30).tolist()


def cells_of(session):
    """All that the cells of a session hold and carry, to the bit."""
    return session._conversation._swapped_in().cache.snapshot().data.tobytes()


def said(session, text="What was it?", n=40):
    return "".join(session.generate(text, max_tokens=n, sampling=GREEDY, allow_loops=True))


def answer(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True))


def tokens_of(runtime, n):
    return runtime.tokenize(words(n))


@pytest.mark.parametrize("options", each_kind(REWOUND))
def test_going_back_leaves_the_cells_of_a_session_that_read_no_further(open_runtime, decoded, options):
    with open_runtime(**ARCHIVED | options) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 150)
        session.prefill_prefix(tokens)
        assert session.stats.evictions > 5
        for n in (13 * BLOCK, 7 * BLOCK, 3 * BLOCK, BLOCK):  # tokens that are decoded in other blocks round otherwise
            decoded.clear()
            session.rewind(n)
            assert decoded == []
            assert (session.stats.reused_tokens, session.stats.read_tokens) == (n, 0)
            assert log_of(session) == tokens[:n]
            with rt.session(history=True) as fresh:
                fresh.prefill_prefix(tokens[:n])
                assert cells_of(session) == cells_of(fresh)


@pytest.mark.parametrize("reposition", ["never", "always"])
def test_it_goes_on_as_one_that_read_no_further(open_runtime, reposition):
    with open_runtime(**ARCHIVED | {"reposition": reposition}) as rt:
        replies = []
        for n in (len(tokens_of(rt, 200)), 200):
            with rt.session(history=True) as session:
                session.prefill_prefix(tokens_of(rt, 200)[:n])
                session.rewind(200)
                for _ in range(2):
                    replies.append((said(session), session.stats.recalled_cells, session.stats.archived_tokens))
                assert session.stats.archive_failure == ""
        assert replies[:2] == replies[2:]
        assert replies[0][1] > 0


def test_it_goes_back_again_and_reads_other_texts(open_runtime, decoded):
    """Rows of another text take the place of those of before."""
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session, rt.session(history=True) as fresh:
        tokens, others = tokens_of(rt, 150), rt.tokenize(words(100, "other"))
        session.prefill_prefix(tokens)
        session.rewind(150)
        session.prefill_prefix(tokens[:150] + others)
        decoded.clear()
        session.rewind(150 + 77)
        assert decoded == []
        assert log_of(session) == tokens[:150] + others[:77]
        fresh.prefill_prefix(tokens[:150])
        fresh.prefill_prefix(tokens[:150] + others[:77])
        kept = [[it.kept_positions(*at).tolist() for at in np.ndindex(2, 2)] for it in (session, fresh)]
        assert [len(of_head) for of_head in kept[0]] == [len(of_head) for of_head in kept[1]]


def test_a_changed_message_reads_what_comes_after_it_alone(open_runtime, decoded):
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 150)
        changed = tokens[:250] + rt.tokenize("something else")
        "".join(session.continue_from(tokens, max_tokens=4))
        decoded.clear()
        "".join(session.continue_from(changed, max_tokens=1))
        assert session.stats.reused_tokens == 250
        assert sum(decoded) == len(changed) - 250
        assert log_of(session)[: len(changed)] == changed


def test_turns_and_the_transcript_are_those_of_the_place(open_runtime):
    with open_runtime(**ARCHIVED) as rt, rt.session("Be brief.", history=True) as session:
        session.read(words(60))
        first = answer(session, n=20)
        n = session.n_past
        answer(session, words(80), n=20)
        turns = list(session.turns())
        session.rewind(n + 30)  # the second question is cut
        assert list(session.turns())[:3] == turns[:3]
        session.rewind(n)
        assert "".join(session.text(next(it for it in session.turns() if it.role == "assistant"))) in first
        assert answer(session)


@pytest.mark.parametrize("policy", QUERIES)
def test_policies_that_score_by_queries_read_again(open_runtime, decoded, policy):
    """No archive has queries, so their cells cannot be chosen again without decoding."""
    with open_runtime(**ARCHIVED | {"policy": policy}) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 100)
        session.prefill_prefix(tokens)
        decoded.clear()
        session.rewind(200)
        assert (session.n_past, sum(decoded)) == (200, 200)


@pytest.mark.parametrize("architecture", ["gemma3", "lfm2", "deepseek2"])
def test_windows_and_states_are_read_again_and_latents_are_not(tmp_path, decoded, architecture):
    path = make_family(tmp_path / "model.gguf", architecture)
    with edgekv.Runtime(path, **SETTINGS | ARCHIVED) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 100)
        session.prefill_prefix(tokens)
        decoded.clear()
        session.rewind(200)
        assert (session.n_past, sum(decoded)) == (200, 0 if architecture == "deepseek2" else 200)
        assert log_of(session) == tokens[:200]


def test_a_worker_goes_back_as_well(open_runtime):
    with open_runtime(**ARCHIVED | {"isolated": True}) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 150)
        session.prefill_prefix(tokens)
        session.rewind(150)
        assert (session.stats.reused_tokens, session.stats.read_tokens) == (150, 0)
        assert said(session)


def test_a_full_archive_brings_back_what_it_has_and_the_rest_is_read(open_runtime, decoded):
    with open_runtime(**ARCHIVED | {"archive": "1MiB"}) as rt:
        n_most = rt.plan.archive_tokens
    with open_runtime(**ARCHIVED | {"archive": "1MiB"}) as rt, rt.session(history=True) as session:
        tokens = (tokens_of(rt, 150) * (1 + n_most // 150))[: n_most + 300]
        session.prefill_prefix(tokens)
        assert "full" in session.stats.archive_failure
        n_archived, n = session.stats.archived_tokens, session.stats.archived_tokens + 100
        decoded.clear()
        session.rewind(n)
        assert (session.n_past, sum(decoded)) == (n, n - n_archived)


def test_a_damaged_archive_is_said_and_the_rest_is_read_again(open_runtime, decoded):
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 150)
        session.prefill_prefix(tokens)
        file = session._conversation.state.archive._file
        os.pwrite(file.fileno(), b"\xff" * 64, os.fstat(file.fileno()).st_size // 2)
        decoded.clear()
        session.rewind(len(tokens) - 1)
        assert 0 < sum(decoded) < len(tokens)
        assert log_of(session) == tokens[:-1]
        assert "is not what was written" in session.stats.archive_failure
        assert said(session)


def test_an_interrupted_rewind_is_made_again_at_the_next_use(open_runtime, monkeypatch):
    """An interrupt at each of the refilled blocks leaves the session where it was to go."""
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session:
        tokens = tokens_of(rt, 150)
        for n_blocks in itertools.count():
            session.prefill_prefix(tokens[:20])
            session.prefill_prefix(tokens)
            left = itertools.count(n_blocks, -1)
            plain = edgekv.archive.session_archive.Archive.refill

            def refill(archive, cache, n, left=left, plain=plain):
                if next(left) == 0:
                    raise KeyboardInterrupt
                plain(archive, cache, n)

            with monkeypatch.context() as patch:
                patch.setattr(edgekv.archive.session_archive.Archive, "refill", refill)
                try:
                    session.rewind(200)
                except KeyboardInterrupt:
                    pass
                else:
                    break
            session.prefill_prefix(tokens[:200])
            assert log_of(session) == tokens[:200]
            assert session.stats.reused_tokens == 200
        assert n_blocks == -(-(200 - 20) // BLOCK)


def check_cuts(rt, written, n_tokens, n_cuts):
    """Go back to tokens at random, and compare with a session that read no further than the block before each.

    The cells after a part of a block are some of those and of that part, each with the rows that it was archived with.
    """
    tokens = (tokens_of(rt, 400) * (n_tokens // 400 + 1))[:n_tokens]
    with rt.session(history=True) as session:
        session.prefill_prefix(tokens)
        assert session.stats.read_tokens == n_tokens
        cells = {}
        choice = np.random.default_rng(1)
        blocks = choice.choice(n_tokens // BLOCK, n_cuts, replace=False) * BLOCK
        for n_blocks in sorted(blocks.tolist(), reverse=True):
            n = n_blocks + int(choice.integers(1, BLOCK))
            for end in (n, n_blocks):
                session.rewind(end)
                assert (session.stats.reused_tokens, session.stats.read_tokens) == (end, 0)
                assert log_of(session) == tokens[:end]
                if end == n:
                    held = rows_of(session._conversation._swapped_in().cache)
            assert held.items() <= written.items()
            cells[n_blocks] = cells_of(session)
            before = rows_of(session._conversation.state.block_loop.cache)
            for at in np.ndindex(2, 2):
                now, old = ({p for *place, p in rows if tuple(place) == at} for rows in (held, before))
                assert now <= old | {*range(n_blocks, n)}
                assert now >= {*range(max(0, n - RECENT), n)}
                assert len(now) == min(n, BUDGET)
    with rt.session(history=True) as fresh:
        for n in sorted(cells):
            if n > 0:
                fresh.prefill_prefix(tokens[:n])
            assert cells_of(fresh) == cells[n]


def test_any_token_can_be_gone_back_to(open_runtime, written):
    with open_runtime(**ARCHIVED) as rt:
        check_cuts(rt, written, n_tokens=1200, n_cuts=14)


@pytest.mark.nightly
def test_any_token_of_a_long_text_can_be_gone_back_to(open_runtime, written):
    with open_runtime(**ARCHIVED | {"archive": "1GiB"}) as rt:
        check_cuts(rt, written, n_tokens=20_000, n_cuts=200)
