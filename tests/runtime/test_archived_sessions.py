"""Sessions with an archive: each recalls from its own, and says what it would alone, wherever it rests meanwhile."""

from __future__ import annotations

import itertools
import os
import pickle
from contextlib import nullcontext

import pytest
from small import SETTINGS, words

from edgekv.archive.recalling import recalling
from edgekv.conversations.coverage import ARCHIVED as ARCHIVED_SHADE
from edgekv.errors import SessionError
from edgekv.generation.sampler import GREEDY

ARCHIVED = {"policy": "keydiff", "archive": "1MiB", "reposition": "never"}
RECALLED = SETTINGS["block"] // 2
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(scope="module", params=["never", "always"], ids=["kept", "turned"])
def reposition(request):
    """Option of the runtime: evictions turn keys always, as those of a text longer than the trained context do."""
    return request.param


@pytest.fixture(scope="module")
def archived(open_runtime, reposition):
    with open_runtime(**ARCHIVED | {"reposition": reposition}) as rt:
        yield rt


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY))


def kept(session):
    return [session.kept_positions(*at).tolist() for at in itertools.product(range(2), range(2))]


def conversation(session, i):
    """Yield after every step what a session says and holds."""
    session.read(words(90, f"book{i}-"))
    yield kept(session)
    for n, question in ((12, "What?"), (40, words(50, f"more{i}-")), (12, "And then?")):
        yield from session.chat(question, max_tokens=n, sampling=GREEDY)
        stats = session.stats
        yield kept(session), stats.recalls, stats.recalled_cells, stats.archived_tokens


def alone(runtime, i):
    with runtime.session() as session:
        return list(conversation(session, i))


def test_a_prompt_recalls_what_was_evicted(archived):
    with archived.session() as session:
        session.chat("Hi", max_tokens=1)
        session.read(words(200))
        assert session.stats.recalls == 0  # without a reply there is nothing to recall for
        said(session, n=1)
        stats = session.stats
        assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)
        assert 0 < stats.archived_tokens <= stats.tokens_seen
        assert stats.cells_used > SETTINGS["budget"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(words(120))
    return path


@pytest.mark.parametrize("focus", [None, "Who?"], ids=["own", "other"])
def test_a_text_that_is_read_with_a_question_is_recalled_from(archived, text, focus):
    """The end of the prompt takes a quarter of the spare cells, so that recalled cells and a reply fit beside it."""
    with archived.session() as session:
        "".join(session.ask(words(20), text, focus=focus, max_tokens=2, sampling=GREEDY))
        stats, block_loop = session.stats, archived.block_loop
        assert stats.probes > 0
        assert (stats.recalls, stats.recalled_cells, stats.forgotten_tokens) == (1, RECALLED, 0)
        assert block_loop.cache.n_cells - block_loop.budget == RECALLED + SETTINGS["block"] // 4 + 1


@pytest.mark.parametrize("policy", ["h2o", "ahakv", "h2o+pyramid"])
def test_a_policy_that_adds_scores_up_has_all_archived_that_it_scores(open_runtime, policy):
    """Such a policy scores before the cells are full, and every scoring lays the rows out anew."""
    with open_runtime(**ARCHIVED | {"policy": policy, "budget": 128}) as rt, rt.session() as session:
        session.read(words(100))
        said(session, n=2)
        assert (session.stats.recalls, session.stats.forgotten_tokens) == (1, 0)


def test_it_recalls_once_for_a_prompt_and_its_reply(archived):
    with archived.session() as session:
        for question in ("What was it?", "And then?"):
            session.read(words(100))
            said(session, question, n=3 * SETTINGS["block"])
            stats = session.stats
            assert stats.evictions >= 3
            assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)


def test_nothing_is_probed_if_there_are_no_spare_cells_to_recall_to(open_runtime):
    with open_runtime(**ARCHIVED | {"evict_every": 1}) as rt, rt.session() as session:
        session.read(words(100))
        said(session, n=4)
        assert (session.stats.recalls, session.stats.forgotten_tokens) == (0, 0)
        assert session.stats.archived_tokens > 0


def test_sessions_that_follow_closed_ones_have_archives(open_runtime):
    with open_runtime(**ARCHIVED | {"archive": "auto"}) as rt:
        for _ in range(3):
            session = rt.session()
            session.read(words(150))
            said(session, n=2)
            assert (session.stats.recalled_cells, session.stats.archive_failure) == (RECALLED, "")
            session.close()


def test_a_prompt_of_long_blocks_recalls_with_a_probe_of_its_end(open_runtime):
    """A quarter of the spare cells may be more than a probe holds."""
    with open_runtime(**ARCHIVED | {"block": 128, "probe_tokens": 16}) as rt, rt.session() as session:
        session.read(words(150))
        said(session, words(20), n=2)
        assert session.stats.recalled_cells == 64
        assert len(session._conversation.state.archive.asked) == 16


def test_what_fits_is_neither_recalled_nor_archived(archived):
    with archived.session() as session:
        said(session, "Hi", n=8)
        assert (session.stats.recalls, session.stats.archived_tokens) == (0, 0)


def test_sessions_in_turn_say_what_they_say_alone(archived):
    expected = [alone(archived, i) for i in range(3)]
    sessions = [archived.session() for _ in range(3)]
    steps = zip(*(conversation(session, i) for i, session in enumerate(sessions)), strict=False)
    found = list(map(list, zip(*steps, strict=True)))
    n = min(map(len, expected))
    assert [it[:n] for it in found] == [it[:n] for it in expected]
    assert any(step[1] for step in expected[0] if isinstance(step, tuple))
    for session in sessions:
        session.close()


@pytest.mark.parametrize("options", [{"isolated": True}, {"parallel": 2, "repack": False}])
def test_a_session_says_the_same_in_a_worker_and_beside_slots(archived, open_runtime, reposition, options):
    expected = alone(archived, 0)
    with open_runtime(**ARCHIVED | {"reposition": reposition} | options) as rt:
        assert alone(rt, 0) == expected


def test_a_session_that_goes_back_archives_what_it_reads_instead(archived):
    with archived.session(history=True) as session, archived.session(history=True) as fresh:
        session.read(words(150))
        n = session.n_past
        expected = said(session)
        session.rewind(n)
        assert said(session) == expected
        session.rewind(n // 2)
        session.read(words(150, "other"))
        found, n_archived = said(session), session.stats.archived_tokens
        assert n_archived <= session.n_past
        fresh.read(words(150))
        fresh.rewind(n // 2)
        fresh.read(words(150, "other"))
        assert (said(fresh), fresh.stats.archived_tokens) == (found, n_archived)


def test_a_restored_session_recalls_as_it_did_before(archived):
    with archived.session() as session:
        session.read(words(150))
        snapshot = session.snapshot()
        expected = said(session, n=3 * SETTINGS["block"])
        for _ in range(2):
            session.restore(snapshot)
            assert said(session, n=3 * SETTINGS["block"]) == expected
            assert session.stats.recalled_cells > 0


def test_a_snapshot_whose_tokens_gave_way_to_others_recalls_them(archived):
    with archived.session() as session:
        session.read(words(60))
        early = session.snapshot()
        session.read(words(100))
        late = session.snapshot()
        expected = said(session)
        session.restore(early)
        session.read(words(200, "other"))
        said(session)
        session.restore(late)
        assert said(session) == expected
        assert session.stats.recalled_cells > 0
        assert session.stats.forgotten_tokens == 0


def test_a_session_goes_on_with_a_snapshot_of_another(archived):
    with archived.session() as session, archived.session() as second:
        session.read(words(150))
        snapshot = session.snapshot()
        expected = said(session)
        second.read(words(150, "other"))
        second.restore(snapshot)
        assert said(second) == expected
        assert second.stats.recalled_cells > 0


def test_a_snapshot_from_another_process_begins_the_archive_anew(archived):
    with archived.session() as session:
        session.read(words(150))
        session.restore(pickle.loads(pickle.dumps(session.snapshot())))
        said(session, n=1)
        assert session.stats.recalled_cells == 0
        assert session.stats.archived_tokens < SETTINGS["block"]
        session.read(words(100))
        said(session, n=1)
        assert session.stats.recalled_cells > 0


def test_a_session_that_was_saved_without_its_archive_archives_from_there_on(archived, tmp_path):
    with archived.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.edgekv", archive=False)
        n = session.n_past
    with archived.load_session(tmp_path / "it.edgekv") as session:
        session.read(words(100, "more"))
        said(session, n=1)
        assert 0 < session.stats.archived_tokens <= session.n_past - n


def figures(session):
    """(recallable, forgotten) of a session's last call, checked against what its heads hold."""
    stats = session.stats
    archive = session._conversation.state.archive
    begin, end = archive.positions
    heads = [set(held) for held in kept(session)]
    recallable = sum(end - begin - len(held & {*range(begin, end)}) for held in heads) / len(heads)
    assert abs(session.n_recallable - recallable) <= 1
    assert session.n_recallable == stats.recallable_tokens
    return stats.recallable_tokens, stats.forgotten_tokens


def test_nothing_is_forgotten_while_all_that_is_evicted_is_archived(archived):
    with archived.session() as session:
        session.read(words(150))
        said(session, n=8)
        n_recallable, n_forgotten = figures(session)
        assert (n_recallable, n_forgotten) == (session.n_past - session.n_cells, 0)


def test_beyond_the_limit_it_is_said_what_is_forgotten(open_runtime):
    with open_runtime(**ARCHIVED | {"archive": "512KiB"}) as rt, rt.session() as session:
        n_tokens = rt.plan.archive_tokens
        session.read(words(250))
        said(session, n=4)
        stats = session.stats
        assert stats.archived_tokens == n_tokens > 0
        sentence = f"its 0.5 MiB are full; tokens from {n_tokens} on are forgotten when they are evicted"
        assert stats.archive_failure == sentence
        n_recallable, n_forgotten = figures(session)
        assert n_recallable > 0
        assert 0 < n_forgotten < session.n_past - n_tokens
        assert stats.recalled_cells == RECALLED


def test_after_the_limit_a_session_that_goes_back_archives_again(archived):
    with archived.session(history=True) as session:
        session.read(words(40))
        n = session.n_past
        session.read(words(250))
        assert "are full" in session.stats.archive_failure
        session.rewind(n)
        session.read(words(60, "other"))
        said(session, n=2)
        assert session.stats.archive_failure == ""
        assert session.stats.recalled_cells == RECALLED
        assert figures(session)[1] == 0


@pytest.mark.parametrize("n_words", [12, 150])
def test_a_session_that_was_saved_without_its_archive_knows_what_it_had_evicted(archived, tmp_path, n_words):
    """If every token still has its cells, all of them are archived when they go."""
    with archived.session(history=True) as session:
        session.read(words(n_words))
        session.save(tmp_path / "it.edgekv", archive=False)
        n, n_cells = session.n_past, session.n_cells
    with archived.load_session(tmp_path / "it.edgekv") as session:
        assert session.n_recallable == 0
        session.read(words(100, "more"))
        said(session, n=1)
        n_forgotten = figures(session)[1]
        assert (n_forgotten > 0) == (n_cells < n)
        assert n_forgotten <= n


def test_a_loaded_session_that_goes_back_before_its_beginning_archives_from_there(archived, tmp_path):
    with archived.session(history=True) as session:
        session.read(words(60))
        early = session.n_past
        session.read(words(100, "more"))
        session.save(tmp_path / "it.edgekv", archive=False)
    with archived.load_session(tmp_path / "it.edgekv") as session:
        n_loaded = session.n_past
        session.read(words(100, "most"))
        session.rewind(early)
        session.read(words(60, "other"))
        assert session.n_past < n_loaded
        said(session, n=4)
        assert session.stats.archive_failure == ""
        assert session.stats.recalled_cells > 0
        figures(session)


def test_a_restored_session_of_which_nothing_was_evicted_forgets_nothing(archived):
    with archived.session() as session:
        session.read(words(12))
        assert session.n_cells == session.n_past
        snapshot = session.snapshot()
        session.read(words(200, "other"))
        session.restore(snapshot)
        session.read(words(150, "more"))
        said(session, n=2)
        assert figures(session)[1] == 0
        assert session.stats.archived_tokens > 100


def history(text, question):
    return [{"role": "system", "content": text}, {"role": "user", "content": question}]


def asked(runtime, messages):
    """Return a new session's reply to a history, and its numbers of reused and forgotten tokens."""
    with runtime.session(history=True) as session, runtime.stored(messages) as stored:
        options = {"focus": True, "shared": stored.n_opening, "max_tokens": 8, "sampling": GREEDY}
        reply = "".join(session.continue_from(messages, **options))
        return reply, session.stats.reused_tokens, session.stats.forgotten_tokens


@pytest.mark.parametrize("n_words", [8, 60], ids=["fits", "evicts"])
def test_a_session_that_begins_with_a_shared_beginning_says_what_it_says_alone(open_runtime, n_words):
    questions = [words(80, "some"), "What?"]
    with open_runtime(**ARCHIVED | {"archive": "4MiB"}) as rt:
        alone = [asked(rt, history(words(n_words), question)) for question in questions[:1]]
    with open_runtime(**ARCHIVED | {"archive": "4MiB"}) as rt:
        asked(rt, history(words(n_words), questions[1]))
        reply, n_reused, n_forgotten = asked(rt, history(words(n_words), questions[0]))
        assert (reply, n_forgotten) == (alone[0][0], 0)
        assert n_reused > 0


def test_a_history_that_goes_on_with_a_short_message_reads_that_alone(open_runtime):
    """Only where a session goes back in any case it reads as much as a recall asks with."""
    messages = [{"role": "user", "content": words(100)}]
    with open_runtime(**ARCHIVED | {"block": 256, "probe_tokens": 64}) as rt, rt.session(history=True) as session:
        options = {"max_tokens": 4, "sampling": GREEDY}
        reply = "".join(session.continue_from(messages, **options))
        "".join(session.continue_from(messages, **options))
        assert session.stats.prompt_tokens == 64
        n_past = session.n_past
        further = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "x"}]
        "".join(session.continue_from(further, **options))
        assert session.stats.reused_tokens >= n_past - 1
        assert session.stats.recalled_cells > 0


def test_a_swapped_session_keeps_its_archive(archived):
    with archived.session() as session, archived.session() as other:
        session.read(words(150))
        said(session, n=2)
        before = session.stats.archived_tokens, session.n_recallable
        other.read(words(150, "other"))
        assert (session.stats.archived_tokens, session.n_recallable) == before
        said(session, n=2)
        assert session.stats.recalled_cells == RECALLED
        assert figures(session)[1] == 0


def test_a_text_that_is_read_once_serves_questions_that_go_back_to_it(archived):
    with archived.session(history=True) as session:
        session.read(words(200))
        n = session.n_past
        answers = []
        for _ in range(2):
            for question in ("What?", "And who?"):
                answers.append((said(session, question, n=6), session.stats.recalled_cells, figures(session)))
                session.rewind(n)
        assert answers[:2] == answers[2:]
        assert all(recalled == RECALLED for _, recalled, _ in answers)


def test_the_kept_text_has_three_shades(open_runtime):
    with open_runtime(**ARCHIVED | {"archive": "512KiB"}) as rt, rt.session(history=True) as session:
        session.read(words(250))
        end = session._conversation.state.archive.positions[1]
        coverage = session._call("coverage")
        shades = coverage.levels(0, session.n_past)
        held = {position for head in kept(session) for position in head}
        for position, shade in enumerate(shades.tolist()):
            assert (shade in (1, 2, 3, 4)) == (position in held)
            assert (shade == ARCHIVED_SHADE) == (position not in held and position < end)
        assert {0, ARCHIVED_SHADE} < set(shades.tolist())
        assert {run.shade for run in session.kept()} == set(shades.tolist())


def test_the_progress_of_a_recall_is_told_as_that_of_reading(archived):
    told = []
    with archived.session() as session:
        session.read(words(150))
        "".join(session.chat("What?", max_tokens=1, progress=told.append))
        recalling = [(it.heads_scanned, it.heads_total) for it in told if it.heads_total]
        assert recalling == [(n, 8) for n in range(8)]  # four heads, in two rounds
        assert told[-1].tokens_done == told[-1].tokens_total
        assert told[-1].heads_total == 0


class Stopped(Exception):  # noqa: N818  (an interrupt)
    pass


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
@pytest.mark.parametrize("after", [0, 3, 5])
def test_a_recall_ends_between_heads(archived, how, after):
    """The round before stays, and the next question recalls as ever."""
    with archived.session() as session, archived.session() as fresh:
        session.read(words(150))

        def stop(progress):
            if progress.heads_total and progress.heads_scanned == after:
                if how == "interrupt":
                    raise Stopped
                session.cancel()

        before = session.n_past
        with pytest.raises(Stopped) if how == "interrupt" else nullcontext():
            assert "".join(session.chat("What?", max_tokens=4, progress=stop)) == ""
        assert session.n_past < before + 10
        assert session.stats.recalls == (how == "cancel")
        assert all(sorted(set(head)) == head for head in kept(session))
        said(session, n=2)
        assert session.stats.recalled_cells == RECALLED
        fresh.read(words(150))
        assert said(fresh, n=2)


def test_a_progress_callback_may_close_the_runtime_while_it_recalls(open_runtime):
    with open_runtime(**ARCHIVED) as rt:
        session = rt.session()
        session.read(words(150))

        def close(progress):
            if progress.heads_total:
                rt.close()

        with pytest.raises(SessionError, match="is closed"):
            "".join(session.chat("What?", max_tokens=4, progress=close))


def test_a_cancelled_reply_ends_the_recall_of_its_first_eviction(archived, monkeypatch):
    with archived.session() as session:
        n_heads = []

        def recall_and_cancel(archive, cache, probe, n_cells, goes_on, n_needed):
            session.cancel()
            return recalling(
                archive, cache, probe, n_cells, lambda *done: n_heads.append(done) or goes_on(*done), n_needed
            )

        monkeypatch.setattr("edgekv.cells.block_loop.recalling", recall_and_cancel)
        said(session, n=3 * SETTINGS["block"])
        assert session.stats.finish_reason == "cancelled"
        assert n_heads == [(0, 8)]  # no head was scanned


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_text_longer_than_the_trained_context_recalls(open_runtime, kv_type):
    """Every key stays within the positions that the model knows."""
    with open_runtime(256, **ARCHIVED | {"reposition": "auto", "archive": "4MiB", "kv_type": kv_type}) as rt:
        cache = rt.block_loop.cache
        with rt.session() as session:
            session.read(words(250))
            assert session.n_past > 2 * rt.model.n_ctx_train
            said(session, n=3 * SETTINGS["block"])
            stats = session.stats
            assert (stats.archive_failure, stats.recalls, stats.recalled_cells) == ("", 1, RECALLED)
            assert stats.evictions > 2
            assert figures(session)[1] == 0
            for at in cache.heads:
                ropes = cache.positions(*at, rope=True)
                assert 0 <= ropes[0] < ropes[-1] < cache.rope_past <= rt.model.n_ctx_train


def test_a_chat_that_grows_past_the_trained_context_recalls_at_every_turn(open_runtime):
    with open_runtime(1024, **ARCHIVED | {"reposition": "auto", "archive": "8MiB"}) as rt, rt.session() as session:
        turned = []
        for i in range(12):
            said(session, words(30, f"turn{i}-"), n=8)
            turned.append(rt.block_loop.cache.rope_past < session.n_past)
            assert session.stats.archive_failure == ""
            assert session.stats.recalled_cells == RECALLED or i < 2
        assert session.n_past > 1.5 * rt.model.n_ctx_train
        assert turned == sorted(turned)  # from some turn on
        assert turned[0] < turned[-1]


def test_the_file_of_a_closed_session_is_gone(archived):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with archived.session() as session:
            session.read(words(150))
            said(session, n=2)
    archived.session().close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
