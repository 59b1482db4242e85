"""Twenty tasks that newcomers try, as documentation of other libraries lists them, written from docs/python.md alone.

Each is at most five lines beside its imports, and leaves its result in `found`.
"""

from __future__ import annotations

import ast
import json
import math
import textwrap
from unittest import mock

import pytest

import edgekv
from edgekv.prompt.tools import ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
NAME = {"type": "object", "properties": {"name": {"enum": ["Dorothy", "Toto"]}}, "required": ["name"]}

# task -> program, and what must be true of `found`
TASKS = {
    "answer a message": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply([{"role": "user", "content": "Hello"}]).text
        """,
        lambda found: isinstance(found, str) and found,
    ),
    "answer a text": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply("Hello").text
        """,
        lambda found: isinstance(found, str) and found,
    ),
    "stream a reply": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = []
            for piece in session.chat("Hello", max_tokens=5):
                found.append(piece)
        """,
        lambda found: 1 < len(found) <= 5,
    ),
    "talk for several turns": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            session.reply("My name is Ada.", max_tokens=5)
            session.reply("What is my name?", max_tokens=5)
            found = session.stats
        """,
        lambda found: found.tokens_seen > found.prompt_tokens + found.generated_tokens,
    ),
    "resend a conversation": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            messages = [{"role": "user", "content": "Hello"}]
            messages += [session.reply(messages, max_tokens=5).message, {"role": "user", "content": "Go on."}]
            found = session.reply(messages, max_tokens=5).stats
        """,
        lambda found: found.reused_tokens > 0,
    ),
    "give a system message": (
        """
        with edgekv.Runtime() as rt, rt.session("Be brief.") as session:
            session.reply("Hello", max_tokens=5)
            found = session.system
        """,
        lambda found: found == "Be brief.",
    ),
    "draw tokens with a seed": (
        """
        with edgekv.Runtime() as rt:
            with rt.session() as one, rt.session() as two:
                drawn = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 8}
                found = one.reply("Hello", **drawn).text, two.reply("Hello", **drawn).text
        """,
        lambda found: found[0] == found[1],
    ),
    "limit a reply": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply("Count.", max_tokens=3, stop=["END"])
        """,
        lambda found: (found.stats.generated_tokens, found.finish_reason) == (3, "length"),
    ),
    "ask about a file": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply("Where does Dorothy live?", files="oz.txt", max_tokens=5)
        """,
        lambda found: found.stats.prompt_tokens > 300,
    ),
    "ask about several files": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            session.reply("Which text is longer?", files=["oz.txt", "notes.md"], max_tokens=5)
            found = session.stats
        """,
        lambda found: found.prompt_tokens > 300,
    ),
    "get any JSON": (
        """
        import json
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply("Describe a dog.", json_schema=True, temperature=1, seed=1, max_tokens=400)
            found = found.finish_reason != "end" or json.loads(found.text) is not found
        """,
        lambda found: found,
    ),
    "get JSON that fits a schema": (
        """
        import json
        with edgekv.Runtime() as rt, rt.session() as session:
            found = json.loads(session.reply("Who is the girl?", json_schema=NAME).text)
        """,
        lambda found: found["name"] in ("Dorothy", "Toto"),
    ),
    "call a tool": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
            found = session.reply(messages, tools=TOOLS, tool_choice="required").tool_calls
        """,
        lambda found: (
            all(isinstance(it, ToolCall) and json.loads(it.arguments)["city"] in ("Oslo", "Rome") for it in found)
            and found
        ),
    ),
    "go on after a tool": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
            messages.append(session.reply(messages, tools=TOOLS, tool_choice="required").message)
            messages.append({"role": "tool", "content": "Rain."})
            found = session.reply(messages, tools=TOOLS, tool_choice="none", max_tokens=5)
        """,
        lambda found: found.stats.reused_tokens > 0 and found.text,
    ),
    "continue a text": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = "".join(session.generate("The capital of France is", max_tokens=5))
        """,
        lambda found: isinstance(found, str) and found,
    ),
    "follow a grammar": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            found = session.reply("Is Toto a dog?", grammar='root ::= "yes" | "no"').text
        """,
        lambda found: found in ("yes", "no"),
    ),
    "see log probabilities": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            tokens = session.reply("Hello", logprobs=3, max_tokens=5).tokens
            found = [(token.logprob, [other.logprob for other in token.top]) for token in tokens]
        """,
        lambda found: all(math.isfinite(logprob) and len(top) == 3 for logprob, top in found) and len(found) == 5,
    ),
    "count tokens": (
        """
        with edgekv.Runtime() as rt:
            ids = rt.tokenize("Where does Dorothy live?")
            found = len(ids), rt.text_of(ids), rt.count_tokens([{"role": "user", "content": "Hello"}])
        """,
        lambda found: found[0] > 3 and found[1] == "Where does Dorothy live?" and found[2] > 3,
    ),
    "save a conversation and load it": (
        """
        with edgekv.Runtime() as rt, rt.session() as session:
            session.reply("My name is Ada.", max_tokens=5)
            session.save("ada.session")
            with rt.load_session("ada.session") as loaded:
                found = loaded.n_past, session.n_past
        """,
        lambda found: found[0] == found[1] > 0,
    ),
    "wait for a reply in asyncio": (
        """
        import asyncio
        async def main():
            with await asyncio.to_thread(edgekv.Runtime) as rt, rt.session() as session:
                return (await session.reply_async("Hello", max_tokens=5)).text
        found = asyncio.run(main())
        """,
        lambda found: isinstance(found, str) and found,
    ),
}


def test_there_are_twenty_of_at_most_five_lines():
    assert len(TASKS) == 20
    for task, (program, _) in TASKS.items():
        lines = textwrap.dedent(program).strip().splitlines()
        assert len([line for line in lines if not line.startswith("import ")]) <= 5, task


@pytest.fixture(scope="module")
def here(tiny_model, tmp_path_factory):
    """Options in which every runtime of a program is opened: a tiny model that never ends a reply by itself."""
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")
    folder = tmp_path_factory.mktemp("here")
    (folder / "oz.txt").write_text("Dorothy lived in the midst of the great Kansas prairies. " * 8)
    (folder / "notes.md").write_text("# Notes\n\nToto is a dog.\n")
    opened = edgekv.Runtime
    options = {"memory": "4GiB", "budget": 1500, "block": 32, "threads": 1}
    with mock.patch.object(edgekv, "Runtime", lambda **given: opened(path, **options | given)):
        yield folder


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("task", TASKS)
def test_a_newcomer_can(here, monkeypatch, task):
    monkeypatch.chdir(here)
    program, is_right = TASKS[task]
    names = {"edgekv": edgekv, "TOOLS": TOOLS, "NAME": NAME}
    exec(compile(ast.parse(textwrap.dedent(program)), task, "exec"), names)
    assert is_right(names["found"])
