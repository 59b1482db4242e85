"""Sessions: turns, cells, cancelling, and what is refused; over an engine in this process and over an isolated one."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from children import LIMIT_S
from command import words

import edgekv
from edgekv.conversations.history import question_of, request_of, rereadable_request
from edgekv.generation.sampler import GREEDY
from edgekv.prompt import spool
from edgekv.prompt.named_files import NamedFile

BUDGET, BLOCK = 64, 32


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime without an archive over a tiny model."""

    def open_runtime(**options):
        path, kept = tiny_model(n_layer=2, n_ctx_train=2048), {"budget": BUDGET, "block": BLOCK, "recent": 16}
        return edgekv.Runtime(path, memory="4GiB", threads=1, archive="off", **kept, **options)

    return open_runtime


@pytest.fixture
def local_session(local_runtime):
    with local_runtime.session() as session:
        yield session


def test_a_conversation_of_many_turns_stays_within_its_cells(session):
    seen = 0
    for turn in range(5):
        text = "".join(session.chat(f"Turn {turn}: {words(30)}", max_tokens=40))
        stats = session.stats
        assert isinstance(text, str)
        assert stats.finish_reason in ("end", "length")
        assert stats.cells_used <= BUDGET + BLOCK
        assert stats.tokens_seen > seen
        seen = stats.tokens_seen
    assert stats.evictions > 0
    for layer in range(2):
        for head in range(2):
            kept = session.kept_positions(layer, head)
            assert len(kept) == session.n_cells
            assert (np.diff(kept) > 0).all()
            assert list(kept[:4]) == [0, 1, 2, 3]  # the sinks
            assert kept[-1] == session.n_past - 1


def cells_after_each_step(runtime, monkeypatch, session, n_steps):
    """Cells per head after every token that generation feeds; pieces of text may be fewer."""
    used = []
    stepping = runtime.block_loop.stepping

    def step_and_count(token, **given):
        yield from stepping(token, **given)
        used.append(runtime.block_loop.cache.n_cells)

    monkeypatch.setattr(runtime.block_loop, "stepping", step_and_count)
    list(session.generate(words(60), max_tokens=n_steps + 1, sampling=GREEDY, ignore_eos=True))
    assert len(used) == n_steps
    return used


def test_exact_cell_accounting_in_generation(local_runtime, local_session, monkeypatch):
    """Generation fills the spare cells before it evicts: N+1, ..., N+B, then N+1 again."""
    used = cells_after_each_step(local_runtime, monkeypatch, local_session, 3 * BLOCK)
    assert used == 3 * list(range(BUDGET + 1, BUDGET + BLOCK + 1))


def test_evict_every_token_as_in_the_papers(tiny_model, monkeypatch):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    with edgekv.Runtime(path, memory="4GiB", budget=64, block=32, recent=16, evict_every=1, threads=1) as rt:
        assert set(cells_after_each_step(rt, monkeypatch, rt.session(), 20)) == {65}


def test_replies_are_reproducible_by_seed(runtime):
    def reply(**sampling):
        with runtime.session() as session:
            return "".join(session.chat("Hello", max_tokens=30, sampling=edgekv.Sampling(**sampling)))

    assert reply() == reply()
    assert reply(temperature=1.0, seed=5) == reply(temperature=1.0, seed=5)
    assert reply(temperature=5.0, seed=5, top_k=0, top_p=1.0) != reply(temperature=5.0, seed=6, top_k=0, top_p=1.0)


def test_cancel_from_another_thread_while_reading(session):
    blocks = []

    def progress(p):
        blocks.append(p)
        if len(blocks) == 3:
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    assert "".join(session.chat(words(200), progress=progress)) == ""
    assert session.stats.finish_reason == "cancelled"
    assert session.stats.read_tokens == 3 * BLOCK < session.stats.prompt_tokens
    assert [p.tokens_done for p in blocks] == [BLOCK, 2 * BLOCK, 3 * BLOCK]
    assert all(p.tokens_total == session.stats.prompt_tokens and p.budget_cells == BUDGET for p in blocks)

    "".join(session.chat("go on", max_tokens=5))
    assert session.stats.finish_reason in ("end", "length")
    assert session.stats.read_tokens == session.stats.prompt_tokens


def test_cancel_while_generating_keeps_the_session(session):
    pieces = session.generate(words(10), max_tokens=500)
    next(pieces)
    session.cancel()
    list(pieces)
    assert session.stats.finish_reason == "cancelled"
    assert session.stats.generated_tokens < 500
    assert list(session.generate(" and", max_tokens=3))


def test_cancel_ends_a_reply_of_which_no_piece_was_fetched(session):
    """A thread that cancels need not know if the one that iterates has begun. Replies made later are none of it."""
    before = session.n_past
    pieces = session.generate(words(10), max_tokens=5)
    session.cancel()
    later = session.generate(words(10), max_tokens=3)
    assert list(pieces) == []
    assert (session.stats.finish_reason, session.n_past) == ("cancelled", before)
    assert list(later)
    assert session.stats.finish_reason in ("end", "length")


def test_a_reply_that_is_dropped_leaves_the_session_usable(session):
    pieces = session.generate(words(10), max_tokens=500)
    next(pieces)
    pieces.close()
    assert session.stats.finish_reason == "closed"
    assert list(session.generate(" and", max_tokens=3))


def test_what_was_said_last_is_part_of_the_context(runtime):
    """A generation cut by max_tokens and continued equals one that was not cut."""
    with runtime.session() as session:
        whole = "".join(session.generate("a b c", max_tokens=2))
        n_whole = session.n_past
    with runtime.session() as session:
        "".join(session.generate("a b c", max_tokens=1))
        "".join(session.generate("d", max_tokens=1))
        assert session.n_past == n_whole + 1
        assert whole


def test_a_closed_session_is_over(runtime, session):
    list(session.generate("a b c", max_tokens=3))
    with runtime.session() as other:
        session.close()
        assert other.n_past == 0
        with pytest.raises(edgekv.SessionError, match="closed"):
            session.n_past  # noqa: B018
        list(other.generate("a b c", max_tokens=3))


def test_one_reply_at_a_time(session):
    pieces = session.generate("a b c", max_tokens=50)
    next(pieces)
    with pytest.raises(edgekv.SessionError, match="already answering"):
        next(iter(session.generate("d", max_tokens=5)))


def test_chat_and_plain_text_do_not_mix(session):
    list(session.generate("a b c", max_tokens=2))
    with pytest.raises(edgekv.SessionError, match="continues a text"):
        list(session.chat("Hello"))


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_prompts_are_refused(session, text):
    with pytest.raises(edgekv.InputError, match="empty"):
        session.chat(text)
    with pytest.raises(edgekv.InputError, match="empty"):
        session.generate("")


def test_files_are_read_before_the_question(session, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("\ufeff" + words(100), encoding="utf-8")
    list(session.ask("What?", files=[book], max_tokens=2))
    assert session.stats.prompt_tokens > 200


def test_a_question_focuses_the_reading_of_its_files(session, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("the river and the garden, " * 30)

    list(session.ask("What river?", files=[path], max_tokens=1))
    focused = session.stats
    assert 5 * focused.probes >= focused.evictions > 3  # a probe's queries score until 128 tokens have come
    assert focused.probe_s > 0
    assert session.n_past == focused.tokens_seen == focused.prompt_tokens
    assert session.kept_positions(0, 0)[-1] == focused.prompt_tokens - 1  # no cell of a probe is left

    list(session.ask("What garden?", files=[path], focus=False, max_tokens=1))
    assert session.stats.probes == 0 < session.stats.evictions
    list(session.chat("What garden? " * 15, max_tokens=1))
    assert session.stats.probes == 0 < session.stats.evictions  # nothing is attached
    list(session.chat("What garden? " * 15, focus=True, max_tokens=1))
    assert session.stats.probes > 0


def test_a_text_that_fits_is_read_without_probes(tiny_model, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("the river and the garden, " * 30)

    def stats(budget):
        options = {"memory": "2GiB", "threads": 1, "block": 32, "budget": budget, "archive": "off"}
        with edgekv.Runtime(tiny_model(), **options) as rt, rt.session() as session:
            list(session.ask("What river?", files=[path], max_tokens=1))
            return session.stats

    n_tokens = stats(64).prompt_tokens
    assert n_tokens > 300
    assert stats(n_tokens - 17).probes > 0  # 16 tokens of the question, half a block, lie in spare cells
    assert stats(n_tokens - 16).probes == stats(n_tokens - 16).evictions == 0
    assert stats(n_tokens).probes == stats(n_tokens).evictions == 0


def test_a_long_question_probes_with_its_last_tokens(local_runtime, local_session, tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text("the river and the garden, " * 30)
    probes = []

    def remember(tokens, part_ends):
        probes.append(list(tokens))
        probe(tokens, part_ends)

    probe = local_runtime.block_loop.cache.probe
    monkeypatch.setattr(local_runtime.block_loop.cache, "probe", remember)
    list(local_session.ask(" ".join(["Where is it?"] * 30), files=[path], max_tokens=1))
    list(local_session.ask("Where is it?", files=[path], max_tokens=1))
    assert len(probes[0]) == local_runtime.options.probe_tokens > len(probes[-1])
    assert probes[0][-4:] == probes[-1][-4:]


@pytest.mark.parametrize("policy", ["keydiff", "keydiff(rope=off)"])
def test_reading_before_a_question_has_none_in_mind(open_runtime, monkeypatch, policy):
    probes = []

    def remember(tokens, part_ends):
        probes.append(b"".join(map(runtime.model.piece, tokens)).decode())
        probe(tokens, part_ends)

    with open_runtime(policy=policy) as runtime, runtime.session() as session:
        probe = runtime.block_loop.cache.probe
        monkeypatch.setattr(runtime.block_loop.cache, "probe", remember)
        own = "Who is who?"
        for focus, asked in ((None, None), (own, own), (False, None), ("", None)):
            session.read(words(60), focus=focus)
            assert session.stats.probes == len(probes)
            assert session.stats.evictions > 0
            assert bool(probes) == bool(asked)
            assert all(text.endswith(asked) for text in probes)
            probes.clear()
        n_past = session.n_past
        with pytest.raises(edgekv.ConfigError, match="nothing is asked yet; name a question"):
            session.read(words(60), focus=True)
        assert session.n_past == n_past


def test_a_question_of_ones_own_goes_before_what_is_asked(local_runtime, local_session, tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text(words(60))
    probes = []
    probe = local_runtime.block_loop.cache.probe
    monkeypatch.setattr(
        local_runtime.block_loop.cache, "probe", lambda tokens, ends: (probes.append(tokens), probe(tokens, ends))
    )
    list(local_session.ask("Where?", files=[path], focus="What is green?", max_tokens=1))
    text = b"".join(map(local_runtime.model.piece, probes[0])).decode()
    assert text.endswith("What is green?")


def test_focus_needs_cells_for_its_probe(tiny_model):
    options = {"memory": "1GiB", "budget": 128, "block": 64, "allow_beyond_trained": True}
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    with edgekv.Runtime(path, focus=False, **options) as rt, rt.session() as session:
        with pytest.raises(edgekv.ConfigError, match="focus=True"):
            session.chat("hello", focus=True)
        with pytest.raises(edgekv.ConfigError, match="focus='What' needs a runtime opened with focus=True"):
            session.read("hello", focus="What")
        session.read("hello " * 300)
        assert session.stats.probes == 0 < session.stats.evictions
        list(session.chat("hello " * 300, max_tokens=1))
        assert session.stats.probes == 0 < session.stats.evictions


def test_a_scorer_of_ones_own_scores_in_the_runtime(tiny_model):
    """Called once a layer with the arrays that it reads; what it raises ends the reply, and nothing is lost."""
    calls, fail = [], []

    def newest(keys, queries, positions):
        calls.append((keys.shape, queries.shape, positions.shape))
        assert (np.diff(positions, axis=1) > 0).all()
        if fail:
            raise ZeroDivisionError("on purpose")
        return positions.astype(np.float32)

    edgekv.policies.register("newest", newest, rows=8)
    try:
        path = tiny_model(n_layer=2, n_ctx_train=2048)
        options = {"memory": "1GiB", "budget": 128, "block": 64, "n_sink": 0, "recent": 0, "focus": False}
        with edgekv.Runtime(path, policy="newest", archive="off", **options) as rt, rt.session() as session:
            list(session.generate("hello " * 300, max_tokens=100))
            seen = session.n_past
            assert session.kept_positions(1, 1).tolist() == list(range(seen - session.n_cells, seen))
            assert len(calls) == 2 * session.stats.evictions
            n_head_kv, n, d = calls[0][0]
            assert calls[0] == ((n_head_kv, n, d), (2 * n_head_kv, 8, d), (n_head_kv, n))
            fail.append(True)
            with pytest.raises(edgekv.PolicyError, match="newest failed: ZeroDivisionError: on purpose"):
                list(session.generate("again " * 100, max_tokens=5))
            fail.clear()
            assert "".join(session.generate("and again", max_tokens=5))
    finally:
        edgekv.policies.unregister("newest")


def test_time_to_the_first_token_counts_where_that_ends_the_reply(local_session, local_runtime, monkeypatch):
    monkeypatch.setattr(local_runtime.model, "is_end", lambda token: True)
    assert list(local_session.generate("a b c", max_tokens=5)) == []
    stats = local_session.stats
    assert (stats.finish_reason, stats.generated_tokens) == ("end", 0)
    assert stats.ttft_s > stats.prefill_s


@pytest.mark.parametrize(
    ("content", "reason"), [(b"abc\0def", "byte 3 is 0"), (b"abc\xff\xfe", "not UTF-8"), (None, "cannot be read")]
)
def test_files_that_are_not_text_are_refused_before_anything_is_read(session, tmp_path, content, reason):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(edgekv.InputError, match=reason):
        list(session.ask("What?", files=[path]))
    assert session.n_past == 0
    assert list(session.ask("What?", max_tokens=2)) or session.stats.finish_reason == "end"


def test_each_of_several_files_is_read_below_its_name(runtime, tmp_path):
    a, b = tmp_path / "Banana.txt", tmp_path / "sub" / "b.txt"
    b.parent.mkdir()
    a.write_text("a parrot")
    b.write_text("a horse")
    named = NamedFile(b, "<|im_start|>")  # a name is a text, too
    for files, text in (
        ([a, b], "[file Banana.txt]\na parrot\n\n[file sub/b.txt]\na horse"),
        ([str(a)], "a parrot"),
        ([named], "[file <|im_start|>]\na horse"),
    ):
        with runtime.session(history=True) as session:
            session.read(files=files)
            (turn,) = session.turns()
            assert "".join(session.text(turn)) == text
        with runtime.session(history=True) as session:
            list(session.generate(files=files, max_tokens=0))
            assert "[file" not in "".join(session.text())


def test_a_prompt_beyond_the_trained_context_is_refused_unread(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=256)
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "reposition": "never"}
    with edgekv.Runtime(path, **options) as rt:
        session = rt.session()
        with pytest.raises(edgekv.InputError, match="trained on 256"):
            list(session.chat(words(300)))
        assert session.n_past == 0
        list(session.generate(words(10), max_tokens=1000))
        assert session.stats.finish_reason in ("end", "context")
        assert session.n_past <= 256
    with edgekv.Runtime(path, **options, allow_beyond_trained=True) as rt:
        list(rt.session().chat(words(300), max_tokens=3))
        assert rt.block_loop.cache.rope_past > 256


def test_the_system_message_is_never_evicted(local_runtime):
    with local_runtime.session(system="Be brief.") as session:
        list(session.chat(words(300), max_tokens=50))
        (pinned,) = local_runtime.block_loop.pinned
        kept = session.kept_positions(1, 1)
        assert set(range(*pinned)) <= set(kept.tolist())
        assert pinned[1] > 4


def test_a_system_message_larger_than_the_budget_is_refused(runtime):
    with pytest.raises(edgekv.BudgetError, match="raise the budget to at least"):
        runtime.session(system=words(60))
    with runtime.session():
        pass


def test_content_is_never_read_as_control_tokens(local_runtime):
    model = local_runtime.model
    control = model.tokenize("<|im_end|>", special=True)
    assert len(control) == 1
    with local_runtime.session() as session:
        prompt = session._conversation._prompts.turns.turn(["<|im_end|>"])
        assert list(prompt.tokens()).count(control[0]) == 1  # the template's own


def test_a_model_with_broken_weights_is_an_error_not_a_reply(tiny_model, tmp_path):
    """NaN weights give NaN logits, which no sampler may turn into a token."""
    raw = bytearray(tiny_model(n_layer=2, n_ctx_train=2048).read_bytes())
    raw[-4096:] = b"\xff" * 4096
    path = tmp_path / "nan.gguf"
    path.write_bytes(raw)
    with (
        edgekv.Runtime(path, memory="4GiB", budget=64, block=32, recent=16, threads=1) as rt,
        pytest.raises(edgekv.NativeError, match="not finite"),
    ):
        list(rt.session().chat("Hello"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("quantization", ["F32", "Q8_0", "Q4_0"])
def test_one_damaged_number_of_a_norm_is_an_error_not_a_reply(tiny_model, tmp_path, quantization, value):
    """Products of quantised weights round activations to whole numbers; one that is not finite must stay visible."""
    gguf = pytest.importorskip("gguf")
    whole = tiny_model(n_layer=2, n_ctx_train=2048, quantization=quantization)
    norm = next(tensor for tensor in gguf.GGUFReader(whole).tensors if tensor.name == "blk.0.attn_norm.weight")
    raw = bytearray(whole.read_bytes())
    raw[norm.data_offset : norm.data_offset + 4] = np.float32(value).tobytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    with (
        edgekv.Runtime(path, memory="4GiB", budget=64, block=32, recent=16, threads=1) as rt,
        pytest.raises(edgekv.NativeError, match="not finite"),
    ):
        list(rt.session().chat("Hello"))


def test_options_of_the_wrong_kind_are_refused(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    with pytest.raises(edgekv.ConfigError):
        edgekv.Runtime(path, block=0)
    with pytest.raises(edgekv.PolicyError):
        edgekv.Runtime(path, policy="nonsense")
    with pytest.raises(edgekv.BudgetError):
        edgekv.Runtime(path, budget=4)
    with pytest.raises(edgekv.CeilingError) as caught:
        edgekv.Runtime(path, memory="10MiB")
    assert caught.value.required_bytes > caught.value.ceiling_bytes == 10 << 20


# ---- pipes ----


@pytest.fixture
def pipe(tmp_path):
    """A function that makes a named pipe and writes pieces of text to it, each when the last one is taken."""
    if sys.platform == "win32":
        pytest.skip("pipes have no names there")
    writers: list[threading.Thread] = []
    watchdogs: list[threading.Timer] = []

    def make(*pieces):
        path = tmp_path / f"pipe-{len(writers)}"
        os.mkfifo(path)

        def write():
            with suppress(BrokenPipeError), path.open("w") as file:  # the reader may have enough
                for piece in pieces:
                    file.write(piece() if callable(piece) else piece)
                    file.flush()

        def end():
            """Lets go of whoever opened the pipe to read it once more."""
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

        writers.append(threading.Thread(target=write, daemon=True))
        watchdogs.append(threading.Timer(LIMIT_S, end))
        for thread in (writers[-1], watchdogs[-1]):
            thread.start()
        return path

    yield make
    for watchdog in watchdogs:
        watchdog.cancel()
    for thread in (*writers, *watchdogs):
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_pipes_are_read_as_files_are(runtime, pipe, tmp_path):
    text = words(300)
    file = tmp_path / "text.txt"
    file.write_text(text)

    def said(path, how):
        with runtime.session() as session:
            if how == "read":
                session.read(files=[path])
            files = () if how == "read" else [path]
            answer = list((session.ask if how == "ask" else session.chat)("What?", files=files, max_tokens=3))
            return answer, session.n_past

    for how in ("ask", "chat", "read"):
        assert said(file, how) == said(pipe(text), how)
    with pytest.raises(edgekv.InputError, match=r"pipe-\d holds nothing"):
        said(pipe(), "ask")


def test_a_pipe_may_be_what_a_history_asks(runtime, pipe):
    with runtime.session(history=True) as session:
        pieces = session.continue_from([{"role": "user", "content": pipe(words(300))}], focus=True, max_tokens=3)
        time.sleep(0.1)  # whoever looked into the pipe before would have ended its writer
        list(pieces)
        assert session.stats.prompt_tokens > 300


def test_the_question_of_a_history_is_text_in_any_encoding(tmp_path):
    file, page = tmp_path / "question.txt", tmp_path / "question.html"
    file.write_text("Where is it?", encoding="utf-16")
    page.write_text("<p>Where is <b>it</b>?</p>")
    for path in (file, page):
        with rereadable_request(request_of([{"role": "user", "content": path}])) as request:
            assert question_of(request).strip() == "Where is it?"


def test_a_document_that_is_the_question_is_converted_once(local_runtime, tmp_path, monkeypatch):
    page, converted = tmp_path / "page.html", []
    page.write_text(f"<p>{words(300)}</p>")
    convert = spool._converted
    monkeypatch.setattr(spool, "_converted", lambda *given: converted.append(given) or convert(*given))
    with local_runtime.session(history=True) as session:
        list(session.continue_from([{"role": "user", "content": page}], focus=True, max_tokens=3))
        assert session.stats.probes > 0
    assert len(converted) == 1


def test_cancel_while_a_pipe_is_copied(session, pipe):
    before = session.n_past

    def cancel():
        session.cancel()
        return "more"

    path = pipe("x " * (1 << 16), cancel, "x " * (1 << 16))
    assert list(session.chat("What?", files=[path], max_tokens=3)) == []
    assert (session.stats.finish_reason, session.n_past) == ("cancelled", before)
    assert "".join(session.chat("What?", max_tokens=3))


def test_a_session_that_could_not_be_made_ends_quietly(monkeypatch):
    noted = []
    monkeypatch.setattr(sys, "unraisablehook", noted.append)
    with pytest.raises(TypeError):
        edgekv.Session()  # sessions are opened by a runtime
    assert noted == []
