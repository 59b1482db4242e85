"""A session with a log goes back, and goes on as if what came after had never been read or said."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest
from diagonals import HERE_BY_DAY, diagonal
from open_files import LISTS_FILES, n_open, spoil
from small import SETTINGS, words
from test_snapshot import Steps, held

import edgekv
from edgekv.cells.block_loop import BlockLoop
from edgekv.conversations import conversation
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.models.header import Header
from edgekv.store.log import TokenLog

POLICIES = ["keydiff", "snapkv+ada", "h2o", "snapkv(window=16)", "keydiff+critical", "ahakv"]
DRAWN = edgekv.Sampling(temperature=1.5, seed=3)


@pytest.fixture
def logged(runtime):
    with runtime.session(history=True) as session:
        yield session


def say(session, text="What was it?", n=20, **options):
    return "".join(session.chat(text, max_tokens=n, **({"sampling": DRAWN} | options)))


def state(session):
    return session.n_past, session.n_cells, session.budgets(), session.kept_positions(1, 1).tolist()


def log_of(session):
    """The tokens of the log of a session in this process."""
    return session._conversation.state.history.log.read(0, 1 << 30).tolist()


# ---- the log ----


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("prompt_lookup", ["off", "on"])
def test_the_log_is_what_the_cells_saw(open_runtime, fed, monkeypatch, tmp_path, prompt_lookup):
    """The log holds whatever ends a reply or a reading, also while a file is read with the question in mind, and after
    returns."""
    book = tmp_path / "book.txt"
    book.write_text(words(150))

    def cancel(progress):
        if progress.tokens_done >= 64:
            session.cancel()

    def check():
        assert log_of(session) == [fed[i] for i in range(session.n_past)]
        seen.append(session.n_past)

    seen = []
    with (
        open_runtime(prompt_lookup=prompt_lookup, policy="keydiff") as rt,
        rt.session("Be brief.", history=True) as session,
    ):
        if prompt_lookup == "on":  # what is said goes round, with a slip now and then
            monkeypatch.setattr("edgekv.cells.speculation.SpeculationGate.allows_draft", lambda self, draft: True)
            numbers = itertools.count()
            monkeypatch.setattr(Sampler, "sample", lambda *_: 5 + (n := next(numbers)) % 3 + (n % 20 == 19))
        say(session)
        check()
        "".join(session.ask("What?", files=[book], max_tokens=150, sampling=GREEDY, allow_loops=True))
        assert session.stats.probes > 0
        assert prompt_lookup == "off" or session.stats.drafted_tokens > session.stats.accepted_tokens > 30
        check()
        say(session, words(100), progress=cancel)
        check()
        pieces = session.chat("And?", max_tokens=50)
        next(pieces)
        next(pieces)
        pieces.close()
        check()
        with pytest.raises(edgekv.InputError):
            say(session, files=[tmp_path / "absent.txt"])
        check()
        session.read(words(20))
        session.rewind(seen[1])
        check()
        assert session.n_past == seen[1]
        say(session)
        check()
        session.rewind(seen[0] + 13, progress=cancel)
        check()
        feed, last = rt.block_loop.cache.feed, seen[0] + 60

        def failing(tokens, **how):
            if session.n_past > last:
                raise edgekv.NativeError("on purpose")
            feed(tokens, **how)

        monkeypatch.setattr(rt.block_loop.cache, "feed", failing)
        with pytest.raises(edgekv.NativeError, match="on purpose"):
            say(session, words(90))
        check()
        last = seen[0]
        with pytest.raises(edgekv.NativeError, match="on purpose"):
            session.rewind(session.n_past - 1)
        check()


@pytest.mark.usefixtures("talkative")
def test_the_transcript(logged, tmp_path):
    """Roles and texts, without the template; with it, the text that was read and said; as files."""
    notes = tmp_path / "notes.txt"
    notes.write_text("a b c \u00e9\u00e8 \U0001f600")
    logged.read("Hello there", files=[notes])
    replies = [say(logged, "Go on"), say(logged, "And?")]
    told = [(turn.role, "".join(logged.text(turn))) for turn in logged.turns()]
    read = f"{notes.read_text()}\n\nHello there\n\nGo on"
    assert told == [("user", read), ("assistant", replies[0]), ("user", "And?"), ("assistant", replies[1])]
    whole = "".join(logged.text())
    for part in (read, *replies):
        assert part in whole
    assert "<|im_start|>" in whole

    logged.export(tmp_path / "chat.json")
    messages = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert messages == [{"role": role, "content": text} for role, text in told]
    logged.export(tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text() == "\n".join(f"## {r.capitalize()}\n\n{text}\n" for r, text in told)
    logged.export(tmp_path / "other.MD")
    assert (tmp_path / "other.MD").read_text() == (tmp_path / "chat.md").read_text()
    with pytest.raises(edgekv.ConfigError, match=r"says no format; let it end in \.md or \.json"):
        logged.export(tmp_path / "chat.txt")
    with pytest.raises(edgekv.SessionFileError):
        logged.export(tmp_path / "absent" / "chat.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.json", "chat.md", "notes.txt", "other.MD"]


@pytest.mark.usefixtures("talkative")
def test_a_system_message_and_a_plain_text_have_turns(runtime):
    with runtime.session("Be brief.", history=True) as session:
        reply = say(session, "Hello")
        told = [(turn.role, "".join(session.text(turn))) for turn in session.turns()]
        assert told == [("system", "Be brief."), ("user", "Hello"), ("assistant", reply)]
    with runtime.session(history=True) as session:
        reply = "".join(session.generate("Once upon a time", max_tokens=10))
        assert [(t.role, "".join(session.text(t))) for t in session.turns()] == [
            ("text", "Once upon a time"),
            ("assistant", reply),
        ]


def test_a_long_transcript_comes_in_pieces(open_runtime):
    with open_runtime(budget=128, block=128) as rt, rt.session(history=True) as session:
        text = words(6000)
        session.read(text)
        assert session.n_past > 3 * 4096
        (turn,) = session.turns()
        pieces = list(session.text(turn))
        assert len(pieces) > 2
        assert "".join(pieces) == text


# ---- going back ----


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), diagonal(POLICIES, ["f16", "q8_0", "q4_0"], whole=["keydiff"]))
def test_after_a_return_it_is_as_if_the_rest_had_never_been(open_runtime, monkeypatch, policy, kv_type):
    """Cells, logits, and drawn tokens to the bit, at every end of a turn, in either order."""
    with open_runtime(policy=policy, kv_type=kv_type) as rt, rt.session(history=True) as session:
        steps, ends = Steps(rt, monkeypatch), []
        session.read(words(120))
        for question in ("What?", words(30, "other"), "Why?", "Who?"):
            ends.append((session.n_past, held(rt), session.budgets(), question))
            steps.take()
            ends[-1] += (say(session, question), steps.take())
        for n_past, cells, budgets, question, reply, logits in reversed(ends):
            session.rewind(n_past)
            assert (session.n_past, held(rt), session.budgets()) == (n_past, cells, budgets)
            assert session.stats.reused_tokens == n_past
            steps.take()
            assert say(session, question) == reply
            np.testing.assert_array_equal(steps.take(), logits)
            session.rewind(n_past)
            say(session, "Something else")
            assert not np.array_equal(steps.take()[: len(logits)], logits)  # the check can fail


@pytest.mark.usefixtures("talkative")
def test_a_return_beyond_the_trained_context(open_runtime, monkeypatch):
    with open_runtime(n_ctx_train=512, kv_type="q8_0") as rt, rt.session(history=True) as session:
        session.read(words(300))
        assert session.n_past > 512 >= rt.block_loop.cache.rope_past
        n_past, cells = session.n_past, held(rt)
        reply = say(session, n=60)
        session.rewind(n_past)
        assert held(rt) == cells
        assert say(session, n=60) == reply


@pytest.mark.usefixtures("talkative")
def test_a_return_into_the_midst_of_a_turn_reads_again(open_runtime, monkeypatch):
    """From the checkpoint before if no cell can be dropped. The logits are those of a fresh reading in blocks."""
    monkeypatch.setattr(BlockLoop, "earliest", property(lambda self: self.cache.n_past))
    with open_runtime(budget=600) as rt:
        steps, found = Steps(rt, monkeypatch), []
        with rt.session(history=True) as session:
            list(session.generate(words(20), max_tokens=1, sampling=GREEDY))
            first = session.n_past
            list(session.generate(words(30, "other"), max_tokens=30, sampling=GREEDY))
            tokens = log_of(session)
            for n in (session.n_past - 3, first + 70, first + 33, first + 1):
                session.rewind(n)
                assert (session.n_past, log_of(session), session.stats.reused_tokens) == (n, tokens[:n], first)
                assert session.stats.read_tokens == n - first
                steps.take()
                list(session.generate(" and", max_tokens=5, sampling=GREEDY))
                found.append((n, log_of(session), steps.take()))
        for n, log, logits in found:
            rt.block_loop.clear()
            for start, stop in ((0, first), (first, n), (n, len(log) - 4)):
                assert rt.block_loop.read(log[start:stop], lambda _: True)
            for token in log[-4:]:
                rt.block_loop.step(token)
            np.testing.assert_array_equal(steps.take(), logits)


def test_everything_is_as_at_the_end_of_the_turn(logged):
    """The state of the turns, tokens that were said and not fed, and the sampler; any number of times."""
    logged.read(words(60))
    ends = []
    for i in range(4):
        ends.append((state(logged), [say(logged, f"Question {i}"), state(logged)]))
    for before, after in [*reversed(ends), *ends]:
        if logged.n_past < before[0]:
            continue
        logged.rewind(before[0])
        assert state(logged) == before
        assert [say(logged, f"Question {ends.index((before, after))}"), state(logged)] == after
    logged.rewind(0)
    assert logged.n_past == logged.n_cells == 0
    assert list(logged.turns()) == []
    assert "".join(logged.generate("a b c", max_tokens=3)) or logged.stats.generated_tokens  # new: no chat any more


@pytest.mark.usefixtures("talkative")
def test_other_draws(logged):
    """A reply that is said again draws further random numbers where that is asked for; the first one as well."""
    logged.read(words(10))
    for question in ("What?", "Why?"):
        before = logged.n_past
        reply = say(logged, question)
        logged.rewind(before)
        assert say(logged, question) == reply
        logged.rewind(before, other_draws=True)
        assert say(logged, question) != reply


def test_what_a_return_refuses(logged, runtime):
    say(logged)
    n_past, before = logged.n_past, state(logged)
    with pytest.raises(edgekv.ConfigError, match=f"n_tokens={n_past + 1} is beyond the {n_past} tokens"):
        logged.rewind(n_past + 1)
    for n in (-1, True, 1.5, "3"):
        with pytest.raises(edgekv.ConfigError, match="give a number of tokens"):
            logged.rewind(n)
    logged.rewind(n_past)
    assert state(logged) == before
    pieces = logged.chat("Hello", max_tokens=50)
    next(pieces)
    for use in (lambda: logged.rewind(3), lambda: next(logged.turns()), lambda: next(logged.text())):
        with pytest.raises(edgekv.SessionError, match="already answering"):
            use()
    pieces.close()
    logged.close()
    with pytest.raises(edgekv.SessionError, match="closed"):
        logged.rewind(3)
    with runtime.session() as without:
        say(without)
        for use in (
            lambda: without.rewind(3),
            lambda: next(without.turns()),
            lambda: next(without.text()),
        ):
            with pytest.raises(
                edgekv.SessionError, match=r"keeps no history; open one with Runtime\.session\(history=True\)"
            ):
                use()


def test_a_return_that_is_cancelled_stands_where_it_came_to(logged):
    logged.read(words(200))
    n_past = logged.n_past

    def cancel(progress):
        if progress.tokens_done == 96:
            logged.cancel()

    logged.rewind(n_past - 5, progress=cancel)
    assert (logged.stats.finish_reason, logged.n_past) == ("cancelled", 96)
    (turn,) = logged.turns()
    assert turn.stop == 96
    logged.read("more")
    assert say(logged, n=5) or logged.stats.finish_reason == "end"


# ---- histories ----


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_history_is_read_from_where_it_differs(open_runtime, isolated):
    """A chat that is resent: longer by a turn, with another last message, and with another first one."""

    def answer(history):
        reply = "".join(session.continue_from(history, max_tokens=12, sampling=GREEDY))
        assert session.stats.reused_tokens + session.stats.read_tokens + 11 == session.n_past
        return reply

    with open_runtime(budget=900, isolated=isolated) as rt:
        with rt.session(history=True) as session:
            messages, ends = [], [0]
            for i in range(5):
                messages.append({"role": "user", "content": f"Question {i}: {words(8)}"})
                messages.append({"role": "assistant", "content": answer(messages)})
                assert session.stats.reused_tokens == ends[-1]  # a client that goes on
                ends.append(session.n_past)
            edited = [*messages[:-2], {"role": "user", "content": "Question four"}]
            reply = answer(edited)
            assert ends[4] <= session.stats.reused_tokens < ends[5]  # both questions begin with one word
            assert [turn.role for turn in session.turns()] == ["user", "assistant"] * 5
            *_, turn = session.turns()
            tokens = [] if isolated else log_of(session)[: turn.start]
            assert answer(messages[:-1]) == messages[-1]["content"]
            assert ends[4] <= session.stats.reused_tokens < ends[5]
            assert answer([{"role": "user", "content": "Another"}, *messages[1:-1]])
            assert session.stats.reused_tokens < ends[1]
            say(session, "Go on")  # continues as a chat
            assert [turn.role for turn in session.turns()] == ["user", "assistant"] * 6
        if isolated:
            return
        with rt.session(history=True) as session:  # a new session reads the same tokens at once
            assert "".join(session.continue_from(tokens, max_tokens=12, sampling=GREEDY)) == reply
            assert session.stats.reused_tokens == 0


@pytest.mark.usefixtures("talkative")
def test_ids_are_read_from_where_they_differ(logged):
    """Control tokens too; the last one is always read, because the logits come from it."""
    reply = "".join(logged.continue_from([1, 2, 3] * 20, max_tokens=5, sampling=GREEDY))
    assert (logged.stats.reused_tokens, logged.stats.prompt_tokens, logged.n_past) == (0, 60, 64)
    assert "".join(logged.continue_from([1, 2, 3] * 20, max_tokens=5, sampling=GREEDY)) == reply
    assert (logged.stats.reused_tokens, logged.stats.prompt_tokens) == (59, 1)  # no cell was evicted
    logged.rewind(59)
    again = "".join(logged.continue_from([1, 2, 3] * 20, max_tokens=5, sampling=GREEDY))
    assert (logged.stats.reused_tokens, logged.stats.prompt_tokens, len(again) > 0) == (59, 1, True)
    assert [(turn.role, turn.start, turn.stop) for turn in logged.turns()] == [("text", 0, 60), ("assistant", 60, 65)]
    assert "".join(logged.generate(" and", max_tokens=3, sampling=GREEDY))
    logged.rewind(60)
    assert "".join(logged.continue_from([1, 2, 3] * 20, max_tokens=5, sampling=GREEDY)) == reply
    assert (logged.stats.reused_tokens + logged.stats.prompt_tokens, logged.n_past) == (60, 64)


@pytest.mark.usefixtures("talkative")
def test_ids_that_go_on_with_a_chat_leave_its_turns(open_runtime):
    with open_runtime() as rt, rt.session("Be brief.", history=True) as session:
        say(session)
        turns, tokens = list(session.turns()), log_of(session)
        "".join(session.continue_from([*tokens, 7, 8, 9], max_tokens=5))
        assert session.stats.reused_tokens == len(tokens)
        n = len(tokens)
        last = turns[-1]._replace(stop=n)
        assert list(session.turns()) == [*turns[:-1], last, ("text", n, n + 3), ("assistant", n + 3, n + 8)]


def test_what_a_history_refuses(logged):
    user = {"role": "user", "content": "text"}
    say(logged)
    before = state(logged)
    for history, error, message in (
        ([], edgekv.InputError, "the history is empty"),
        ([1, -2], edgekv.InputError, "holds -2, which is no token id"),
        ([1, 2.5], edgekv.InputError, "holds 2.5, which is no token id"),
        ([1, 1 << 20], edgekv.InputError, "the vocabulary has no token 1048576; give ids in"),
        (user, edgekv.InputError, "give a list of messages, token ids, a text or the Path of one"),
        (None, edgekv.InputError, "the history is None; give a list"),
        (5, edgekv.InputError, "the history is 5; give a list"),
        (b"a text", edgekv.InputError, "the history is b'a text'; give a list"),
        ([user, {"role": "user"}], edgekv.InputError, "give each as"),
        ([{"role": "judge", "content": "x"}], edgekv.InputError, "let one of system, user, assistant, tool write it"),
        ([{"role": "user", "content": " "}], edgekv.InputError, "is empty"),
    ):
        with pytest.raises(error, match=message):
            list(logged.continue_from(history))
        assert state(logged) == before
    assert say(logged, n=3) or logged.stats.finish_reason == "end"


def test_texts_and_ids_that_no_tokenizer_takes(runtime):
    with pytest.raises(edgekv.InputError, match="is not UTF-8 text"):
        runtime.tokenize("a\ud800")
    for read in (runtime.text_of, runtime.pieces_of):
        with pytest.raises(edgekv.InputError, match="tokens holds -1, which is no token id"):
            read([-1])


def test_a_history_has_roles_in_any_order_that_the_template_takes(runtime):
    """Several messages of the user in a row, a reply that comes last, a system message that is no session's."""
    user, assistant, system = ({"role": role, "content": f"{role} text"} for role in ("user", "assistant", "system"))
    with runtime.session(history=True) as session:
        for history in ([user, user, user], [user, assistant], [system, user, assistant, assistant, user]):
            "".join(session.continue_from(history, max_tokens=2))
            *turns, reply = session.turns()
            begun = history[-1:] if history[-1] is assistant else []  # the reply goes on with it
            before = history[: len(history) - len(begun)]
            assert [turn.role for turn in turns] == [message["role"] for message in before]
            assert ["".join(session.text(turn)) for turn in turns] == [message["content"] for message in before]
            assert "".join(session.text(reply)).startswith("".join(message["content"] for message in begun))
            n_begun = sum(len(runtime.tokenize(message["content"])) for message in begun)
            assert runtime.count_tokens(history) == reply.start + n_begun
            assert session.system is None


def test_a_history_that_the_template_refuses(tiny_model, monkeypatch):
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% if not loop.last or m.role == 'user' %}<{{ m.content }}>{% endif %}{% endfor %}"
    )
    monkeypatch.setattr(Header, "chat_template", template)
    user, assistant, system = ({"role": role, "content": f"{role} text"} for role in ("user", "assistant", "system"))
    with edgekv.Runtime(tiny_model(), **SETTINGS) as rt, rt.session(history=True) as session:
        for history, message in (
            ([user, system, user], "does not take messages of user, system, user: no system"),
            ([user, assistant], "leaves a message of 'assistant' out"),
        ):
            with pytest.raises(edgekv.InputError, match=message):
                list(session.continue_from(history))
        assert session.n_past == 0


@pytest.mark.usefixtures("talkative")
def test_what_a_session_has_seen_of_a_history(runtime, logged, tmp_path):
    user = {"role": "user", "content": words(20)}
    assert logged.common_prefix_length([user]) == 0
    reply = "".join(logged.continue_from([user], max_tokens=5))
    n_prompt = logged.stats.prompt_tokens
    again = [user, {"role": "assistant", "content": reply}, {"role": "user", "content": "And?"}]
    assert logged.common_prefix_length(again) == logged.n_past
    assert logged.common_prefix_length([user]) == n_prompt == runtime.count_tokens([user])
    assert n_prompt > logged.common_prefix_length([{"role": "user", "content": words(10)}]) > 10
    path = tmp_path / "text.txt"
    path.write_text(words(20))
    assert logged.common_prefix_length([{"role": "user", "content": path}]) == n_prompt
    page = tmp_path / "page.html"
    page.write_text(f"<p>{words(20)}</p>")
    with runtime.session(history=True) as reader:  # a document is read, counted and compared as its text
        of_page = [{"role": "user", "content": page}]
        "".join(reader.continue_from(of_page, max_tokens=2))
        assert runtime.count_tokens(of_page) == reader.stats.prompt_tokens == reader.common_prefix_length(of_page)
        assert words(20) in (text := runtime.prompt_text(of_page))
        assert "<p>" not in text
    with (
        runtime.session("Be brief.", history=True) as other,
        pytest.raises(edgekv.SessionError, match="open a session"),
    ):
        other.common_prefix_length([user])


@pytest.mark.usefixtures("talkative")
def test_a_history_is_read_with_its_question_in_mind(runtime, tmp_path):
    """Only a history of more than a block that does not fit as a whole is read so."""
    book = {"role": "user", "content": words(150)}
    question = {"role": "user", "content": "What was it?"}
    with runtime.session(history=True) as session:
        "".join(session.continue_from([book, question], max_tokens=2))
        assert session.stats.probes == 0
    for content in (book["content"], tmp_path / "book.txt"):
        (tmp_path / "book.txt").write_text(words(150))
        with runtime.session(history=True) as session:
            first = [book | {"content": content}, question]
            reply = "".join(session.continue_from(first, max_tokens=2, focus=True))
            assert session.stats.probes > 0
            again = [*first, {"role": "assistant", "content": reply}, question]
            "".join(session.continue_from(again, max_tokens=2, focus=True))
            assert (session.stats.probes, session.stats.reused_tokens > 150) == (0, True)
    with runtime.session(history=True) as session:
        "".join(session.continue_from([book], max_tokens=2, focus=True))
        assert session.stats.probes > 0


@pytest.mark.usefixtures("talkative")
def test_a_history_that_overflows_may_be_an_error(runtime, logged):
    fitting, long = ([{"role": "user", "content": words(n)}] for n in (10, 100))
    "".join(logged.continue_from(fitting, max_tokens=2, on_overflow="error"))
    before = state(logged)
    with pytest.raises(edgekv.PromptLengthError, match=r"and the budget is 64 cells; give a shorter one") as raised:
        list(logged.continue_from(long, on_overflow="error"))
    assert (raised.value.n_tokens, raised.value.limit) == (runtime.count_tokens(long), 64)
    assert state(logged) == before
    with pytest.raises(edgekv.ConfigError, match="on_overflow='explode' is unknown; possible: evict, error"):
        logged.continue_from(long, on_overflow="explode")


def test_texts_and_their_tokens(runtime):
    text = "Hello <|im_start|> w\u00f6rld"
    tokens = runtime.tokenize(text)
    assert runtime.text_of(tokens) == text
    assert len(runtime.tokenize(text, special=True)) < len(tokens)
    assert runtime.text_of([]) == ""
    with pytest.raises(edgekv.InputError, match="the vocabulary has no token 1048576"):
        runtime.text_of([1 << 20])


def test_a_history_beyond_the_trained_context_is_refused(open_runtime):
    with open_runtime(n_ctx_train=256, reposition="never") as rt, rt.session(history=True) as session:
        say(session)
        before = state(session)
        with pytest.raises(edgekv.InputError, match="the prompt ends at token 300, but the model was trained on 256"):
            list(session.continue_from([5] * 300))
        assert state(session) == before


# ---- checkpoints ----


@pytest.mark.usefixtures("talkative")
def test_without_checkpoints_the_newest_cells_are_dropped(runtime, tmp_path):
    with runtime.session(history=tmp_path, checkpoint_bytes=0) as session:
        say(session)
        n_past = session.n_past
        say(session, "Why?")
        session.rewind(n_past)
        assert (session.n_past, session.stats.reused_tokens, session.stats.read_tokens) == (n_past, n_past, 0)
        assert say(session, n=5)
    with pytest.raises(edgekv.ConfigError, match=r"checkpoint_bytes=1000 bytes does not hold a checkpoint, .* give 0"):
        runtime.session(history=True, checkpoint_bytes=1000)


@pytest.mark.usefixtures("talkative")
def test_checkpoints_keep_to_their_cap(open_runtime):
    with open_runtime() as rt, rt.session(history=True, checkpoint_bytes="1MiB") as session:
        for i in range(30):
            say(session, f"Question {i}", n=10)
        checkpoints = session._conversation.state.history.checkpoints
        assert checkpoints.nbytes <= 1 << 20
        assert 3 < len(checkpoints.positions) < 30
        early = checkpoints.positions[0] - 1
        session.rewind(early)  # feeds all of it
        assert (session.n_past, session.stats.reused_tokens) == (early, 0)


@pytest.mark.usefixtures("talkative")
def test_a_checkpoint_that_cannot_be_read_is_done_without(open_runtime, monkeypatch):
    """A checkpoint is changed before its check, or lost after it. The session then reads from an earlier one."""
    with open_runtime(budget=1200) as rt, rt.session(history=True) as session:
        say(session, words(400))
        ends = []
        for i in range(4):
            say(session, f"Question {i}")
            ends.append(session.n_past)
        tokens, checkpoints = log_of(session), session._conversation.state.history.checkpoints
        stored = [checkpoints.before(n).stored for n in ends]
        spoil(stored[2].file)
        session.rewind(ends[2])
        assert (log_of(session), session.stats.reused_tokens) == (tokens[: ends[2]], ends[1])

        class Lost:
            """A file that is whole when it is checked, of which one piece of rows can then be read."""

            def __init__(self, file):
                self._file, self.n_reads = file, 0

            def seek(self, at, *further):
                self.n_reads += 1
                if self.n_reads > 7:
                    raise OSError("lost")
                return self._file.seek(at, *further)

            def __getattr__(self, name):
                return getattr(self._file, name)

        assert stored[1].nbytes > 1 << 18
        stored[1].file = Lost(stored[1].file)
        session.rewind(ends[1])
        assert stored[1].file.n_reads == 8
        assert (log_of(session), session.stats.reused_tokens) == (tokens[: ends[1]], ends[0])
        assert say(session, n=5)
        before = rt.block_loop.cache.n_past
        stored[0].file = Lost(stored[0].file)
        with pytest.raises(OSError, match="lost"):
            stored[0].load(rt.block_loop)
        assert (before > 0, rt.block_loop.cache.n_past, rt.block_loop.cache.n_cells) == (True, 0, 0)


@pytest.mark.usefixtures("talkative")
def test_a_disk_without_room_loses_nothing(open_runtime, monkeypatch):
    """A checkpoint is left out, and the session goes on."""
    with open_runtime() as rt, rt.session(history=True) as session:
        say(session)
        n_past = session.n_past

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("edgekv.conversations.stored_snapshot.write_cells", full)
        reply, tokens = say(session, "Why?"), log_of(session)
        assert reply
        assert session._conversation.state.history.checkpoints.positions == [n_past]
        monkeypatch.undo()
        session.rewind(len(tokens) - 1)
        assert log_of(session) == tokens[:-1]


@LISTS_FILES
def test_files_go_with_the_session(open_runtime, tmp_path):
    for isolated in (False, True):
        with open_runtime(isolated=isolated) as rt:
            pid = rt.worker_pid or os.getpid()

            session = rt.session(history=tmp_path)
            for _ in range(5):
                say(session, n=2)
            assert n_open(tmp_path, pid) == 3  # tokens, marks, and all checkpoints
            assert list(tmp_path.iterdir()) == []
            session.close()
            assert n_open(tmp_path, pid) == 0
            session = rt.session(history=tmp_path)
            pieces = session.chat("Hello", max_tokens=50)
            next(pieces)
            session.close()
            pieces.close()
            assert n_open(tmp_path, pid) == 0
    with open_runtime() as rt, pytest.raises(edgekv.SessionFileError, match=r"history='.*absent' takes no file"):
        rt.session(history=tmp_path / "absent")


@LISTS_FILES
def test_files_of_a_refused_session_are_closed(open_runtime, tmp_path):
    """The error that is held holds its frames, and these the session."""
    with open_runtime() as rt:
        with pytest.raises(edgekv.BudgetError) as refused:
            rt.session(system=words(60), history=tmp_path)
        assert n_open(tmp_path) == 0, refused


@LISTS_FILES
def test_files_go_with_the_runtime(open_runtime, tmp_path):
    """Also while its sessions are not closed or dropped, have no cells, or are in the midst of a reply."""

    with open_runtime() as rt, rt.stored(words(40), folder=tmp_path):
        sessions = [rt.session(history=tmp_path) for _ in range(3)]
        for session in sessions[:2]:
            say(session)
        pieces = sessions[2].chat("Hello", max_tokens=50, ignore_eos=True)
        next(pieces)
        assert n_open(tmp_path) == 9  # tokens and marks of three, checkpoints of two, a stored history
        rt.close()
        assert n_open(tmp_path) == 0
        with pytest.raises(edgekv.SessionError, match="this session is closed"):
            list(sessions[0].turns())
        pieces.close()
        sessions[0].close()


# ---- snapshots ----


@pytest.mark.usefixtures("talkative")
def test_a_snapshot_brings_its_log(runtime):
    """Also into another session, and with the checkpoints that both have in common."""
    with runtime.session(history=True) as session:
        say(session)
        first = session.n_past
        say(session, "Why?")
        taken, told, n_past = session.snapshot(), "".join(session.text()), session.n_past
        assert taken.log.nbytes < taken.nbytes
        say(session, "Who?")
        session.restore(taken)
        assert "".join(session.text()) == told
        session.rewind(first)
        assert session.stats.reused_tokens == first
        session.restore(taken)
        reply = say(session, "And?")
    with runtime.session(history=True) as session:
        session.read("Something else")
        session.restore(taken)
        assert ("".join(session.text()), session.n_past) == (told, n_past)
        assert say(session, "And?") == reply
        session.rewind(n_past)
        assert session.stats.reused_tokens == n_past
        session.rewind(first)
        assert (session.stats.reused_tokens, session.stats.read_tokens) == (first, 0)
    with runtime.session() as session:
        session.restore(taken)
        assert say(session, "And?") == reply
        without = session.snapshot()
        assert without.log is None
    with runtime.session(history=True) as session:
        with pytest.raises(edgekv.SessionError, match="of a session without a history"):
            session.restore(without)
        assert session.n_past == 0


# ---- files ----


@pytest.mark.usefixtures("talkative")
def test_a_saved_session_has_its_log(runtime, tmp_path):
    path = tmp_path / "chat.edgekv"
    with runtime.session(history=True) as session:
        say(session)
        first = session.n_past
        say(session, "Why?")
        told, n_past = "".join(session.text()), session.n_past
        session.save(path)
        reply = say(session, "And?")
    with runtime.load_session(path) as session:
        assert ("".join(session.text()), session.n_past) == (told, n_past)
        assert say(session, "And?") == reply
        session.rewind(n_past)
        assert session.stats.reused_tokens == n_past
        session.rewind(first)
        assert (session.stats.reused_tokens, session.stats.read_tokens) == (first, 0)
        assert [turn.role for turn in session.turns()] == ["user", "assistant"]
    with runtime.session() as session:
        say(session)
        session.save(path)
    with runtime.load_session(path) as session, pytest.raises(edgekv.SessionError, match="keeps no history"):
        session.rewind(0)
    with runtime.session("Be brief.", history=True) as session:
        say(session)
        session.save(path)
        n_past = session.n_past
    with runtime.load_session(path) as session:
        question, reply = ("".join(session.text(turn)) for turn in [*session.turns()][1:])
        roles = ("system", "user", "assistant", "user")
        texts = ("Be brief.", question, reply, "And?")
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        list(session.continue_from(messages, max_tokens=3))
        assert session.stats.reused_tokens == n_past
        with pytest.raises(edgekv.SessionError, match="the session has 'Be brief"):
            list(session.continue_from(messages[1:]))


def test_a_log_that_is_not_that_of_its_cells_is_refused(open_runtime, monkeypatch, tmp_path):
    path = tmp_path / "chat.edgekv"
    with open_runtime() as rt, rt.session(history=True) as session:
        say(session)
        log = session._conversation.state.history.log
        for damage in (
            lambda: log._tokens.cut(len(log) - 1),
            lambda: log._tokens.append([1 << 30]),
            lambda: log._tokens.append([-1]),
            lambda: log._marks.append([1]),
            lambda: log._marks.append([1 << 20, 0, 0]),
            lambda: log._marks.append([0, 0, 0]),
            lambda: log._marks.append([len(log), 99, 0]),
            lambda: log._marks.append([len(log), 0, 99]),
        ):
            copy = log.copy()
            damage()
            with monkeypatch.context() as patch:
                patch.setattr(TokenLog, "cut", lambda *_: None)  # a cut would mend it
                patch.setattr(conversation, "title_of", lambda *_: "")  # it reads the log
                session.save(path)
            with pytest.raises(edgekv.SessionFileError, match="its log is not that of its cells"):
                rt.load_session(path, instead_of=session)
            log._tokens.cut(0)
            log._marks.cut(0)
            log.fill(copy)
        session.save(path)
        rt.load_session(path, instead_of=session).close()


def test_a_saved_session_goes_back_to_a_reply_without_tokens(local_runtime, tmp_path):
    """The next turn begins as it did before: the prompt is not ended twice."""
    path = tmp_path / "chat.edgekv"
    with local_runtime.session(history=True) as session:
        say(session, n=0)
        n = session.n_past
        say(session, "And then?", n=2)
        expected = "".join(session.text())
        session.save(path)
    with local_runtime.load_session(path) as session:
        session.rewind(n)
        say(session, "And then?", n=2)
        assert "".join(session.text()) == expected
