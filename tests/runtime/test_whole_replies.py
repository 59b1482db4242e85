"""Whole replies, replies to messages in any session, and how tokens are chosen, as keywords of every reply."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import fields

import pytest
from small import SETTINGS, words

import edgekv
from edgekv.generation.request import GenerationOptions

FEW = {"max_tokens": 8, "allow_loops": True}
WARM = {"temperature": 2.0, "seed": 3, **FEW}
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")
    return lambda **options: edgekv.Runtime(path, **(SETTINGS | {"budget": 512} | options))


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "book.txt"
    path.write_text(words(60))
    return path


def test_a_reply_is_what_the_pieces_make(runtime, book):
    with runtime.session() as session:
        reply = session.reply("Hello", **FEW)
    with runtime.session() as session:
        assert reply.text == "".join(session.chat("Hello", **FEW))
        assert (reply.finish_reason, reply.stats.generated_tokens) == ("length", session.stats.generated_tokens)
        assert reply.tokens == reply.tool_calls == ()


def test_a_reply_to_a_text_is_that_of_ask(runtime, book):
    counts = []
    for call in ("reply", "ask", "chat"):
        with runtime.session() as session:
            reply = getattr(session, call)("Which word?", files=book, **FEW)
            assert reply.text if call == "reply" else list(reply)
            counts.append(session.stats.prompt_tokens)
    assert counts[0] == counts[1] > counts[2]


def test_the_figures_of_a_reply_stay_with_it(runtime):
    with runtime.session() as session:
        first = session.reply("Hello", max_tokens=3, allow_loops=True)
        session.reply("Hello", max_tokens=5, allow_loops=True)
        assert first.stats.generated_tokens == 3


def test_a_reply_has_the_tokens_that_were_asked_for(runtime):
    with runtime.session() as session:
        reply = session.reply("Hello", logprobs=2, **FEW)
        assert type(reply.text) is str
        assert len(reply.tokens) == reply.stats.generated_tokens
        assert all(len(token.top) == 2 for token in reply.tokens)


def test_messages_need_no_log_that_was_asked_for(runtime):
    said = []
    for history in (False, True):
        messages = [*HELLO]
        with runtime.session(history=history) as session:
            messages += [session.reply(messages, **FEW).message, {"role": "user", "content": "And?"}]
            second = session.reply(messages, **FEW)
            assert second.stats.reused_tokens > 0
        said.append((messages, second.text))
    assert said[0] == said[1]


def test_messages_stand_for_all_that_was_read_before(runtime):
    with runtime.session() as session:
        expected = session.reply(HELLO, **FEW).text
    with runtime.session("Be brief.") as session:
        session.read(words(40))
        with pytest.raises(edgekv.SessionError, match="has the system message"):
            session.reply(HELLO, **FEW)
    with runtime.session() as session:
        session.read(words(40))
        reply = session.reply(HELLO, **FEW)
        assert (reply.text, reply.stats.reused_tokens) == (expected, 0)
        n_past = session.n_past
        session.rewind(n_past - 1)  # it keeps a log from now on
        assert session.n_past == n_past - 1


def test_a_content_may_come_in_parts(runtime, book):
    parts = [{"type": "text", "text": "Hello"}, {"type": "input_text", "text": "there"}]
    counts = [runtime.count_tokens([{"role": "user", "content": content}]) for content in (parts, "Hello\nthere")]
    assert counts[0] == counts[1]
    with runtime.session() as session:
        asked = [{"role": "user", "content": book}, {"role": "assistant", "content": "I see."}, *HELLO]
        assert session.reply(asked, **FEW).stats.prompt_tokens == runtime.count_tokens(asked)
        with pytest.raises(edgekv.InputError, match=r"a content has the part .*image_url.*; give texts"):
            session.chat([{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {}}]}])


def test_files_go_with_a_text_and_tools_with_messages(runtime, book):
    with runtime.session() as session:
        with pytest.raises(edgekv.ConfigError, match="files= goes with a text; in messages give the Path"):
            session.reply(HELLO, files=book)
        for files in ((), book):
            with pytest.raises(edgekv.ConfigError, match="tools= goes with messages"):
                session.reply("Hello", files=files, tools=[WEATHER])
        for prompt in ([], None, 5, {"role": "user"}, [5]):
            with pytest.raises(edgekv.InputError, match="give a text or messages"):
                session.reply(prompt)


def test_every_reply_takes_what_chooses_its_tokens(runtime, book):
    assert {it.name for it in fields(edgekv.Sampling)} < GenerationOptions.__annotations__.keys()
    with runtime.session() as session:
        expected = "".join(session.chat("Hello", sampling=edgekv.Sampling(temperature=2.0, seed=3), **FEW))
    with runtime.session() as session:
        assert session.reply("Hello", **WARM).text == expected
        assert list(session.ask("What?", **WARM))
        assert list(session.continue_from("It was", **WARM))
        assert list(session.generate("on", **WARM))
        with pytest.raises(edgekv.ConfigError, match=r"top_p=1\.5 is not possible"):
            session.chat("Hello", top_p=1.5)
        with pytest.raises(edgekv.ConfigError, match="seed= is beside sampling="):
            session.chat("Hello", seed=3, sampling=edgekv.Sampling())


def test_equal_keywords_go_on_with_one_sampler(runtime):
    texts = []
    for _ in range(2):
        with runtime.session() as session:
            texts.append([session.reply("Hello", **WARM).text for _ in range(2)])
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_methods_for_asyncio_have_the_arguments_of_theirs(runtime):
    for name in ("reply", "chat", "ask", "generate"):
        method, other = getattr(edgekv.Session, name), getattr(edgekv.Session, f"{name}_async")
        assert inspect.signature(other) == inspect.signature(method)
        assert (other.__name__, other.__qualname__) == (f"{name}_async", f"Session.{name}_async")


def test_a_whole_reply_is_awaited(runtime):
    async def main():
        with runtime.session() as session:
            reply = await session.reply_async("Hello", **FEW)
            with pytest.raises(edgekv.InputError, match="the text is empty"):
                await session.reply_async(" ")
            return reply

    with runtime.session() as session:
        assert asyncio.run(main()).text == session.reply("Hello", **FEW).text


def test_a_task_that_waits_for_a_whole_reply_is_cancelled(runtime):
    async def main():
        with runtime.session() as session:
            reading = asyncio.Event()
            loop = asyncio.get_running_loop()
            endless = session.reply_async(
                words(200),
                max_tokens=None,
                ignore_eos=False,
                stop_tokens=(),
                allow_loops=True,
                progress=lambda _: loop.call_soon_threadsafe(reading.set),
            )
            task = asyncio.create_task(endless)
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return session.stats.finish_reason, session.reply("Hello", **FEW).finish_reason

    assert asyncio.run(main()) == ("cancelled", "length")
