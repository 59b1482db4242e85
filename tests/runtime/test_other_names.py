"""First lines of those who know llama-cpp-python, transformers, openai or ollama: each error names the right line."""

from __future__ import annotations

import copy
import pickle

import pytest
from small import SETTINGS

import edgekv
from edgekv import other_names
from edgekv.generation.stats import Stats

MESSAGES = [{"role": "user", "content": "Hello"}]
LINES = {
    "edgekv.Llama('model.gguf')": r"edgekv.Runtime\(model\)",
    "edgekv.pipeline('text-generation')": r"edgekv.Runtime\(model\)",
    "edgekv.OpenAI(base_url='http://127.0.0.1:8080/v1')": "edgekv serve",
    "edgekv.chat(model='llama3.2', messages=messages)": r"rt.session\(\)",
    "edgekv.Runtime('model.gguf', '256MiB')": "memory='256MiB'",
    "edgekv.Runtime(device_map='auto')": "give gpu_layers=",
    "edgekv.Runtime(verbose=False)": "EDGEKV_LOG",
    "rt('Hello')": r"rt.session\(\)",
    "rt.create_chat_completion(messages=messages)": r"rt.session\(\)",
    "rt.chat.completions.create(messages=messages)": r"rt.session\(\)",
    "rt.generate('Hello')": r"rt.session\(\)",
    "rt.detokenize([5])": r"rt.text_of\(tokens\)",
    "rt.tokenizer('Hello')": r"rt.tokenize\(text\)",
    "rt.n_ctx()": "rt.plan.budget_cells",
    "rt.embed('Hello')": "embeds no texts",
    "rt.session(system_prompt='Be brief.')": "give system=",
    "rt.session(messages)": r"session.reply\(messages\)",
    "rt.session(messages=messages)": r"session.reply\(messages\)",
    "session('Hello')": r"session.reply\(prompt\)",
    "session.send_message('Hello')": r"session.reply\(prompt\)",
    "session.completion('Hello')": r"session.reply\(prompt\)",
    "session.reply()": r"Session.reply\(\) .*'prompt'",
    "session.reply(messages=messages)": r"Session.reply\(\) .*'prompt'",
    "session.reply('Hello', images=['a.png'])": "models read texts",
    "session.reply('Hello', file='oz.txt')": "give files=",
    "session.reply('Hello', options={'temperature': 0})": "temperature=0.7",
    "session.chat('Hello', callback=print)": "iterate",
    "session.chat('Hello').text": r"session.reply\(prompt\)",
    "session.chat(messages)['message']['content']": r"session.reply\(prompt\)",
    "session.messages": r"turns\(\)",
    "session.ainvoke('Hello')": "reply_async",
    "reply['choices'][0]['message']['content']": "reply.text",
    "reply.choices[0].message.content": "reply.text",
    "reply.content": "reply.text",
    "reply.usage": "reply.stats",
    "reply.stats.completion_tokens": "generated_tokens",
}


@pytest.fixture(scope="module")
def names(tiny_model):
    """The names that the lines have: a runtime, a session, a reply and messages."""
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64)
    with edgekv.Runtime(path, **SETTINGS) as rt, rt.session() as session:
        reply = session.reply("Hello", max_tokens=1)
        yield {"edgekv": edgekv, "rt": rt, "session": session, "reply": reply, "messages": MESSAGES}


@pytest.mark.parametrize("line", LINES)
def test_an_error_names_the_right_line(names, line):
    with pytest.raises((AttributeError, TypeError, edgekv.ConfigError, edgekv.InputError), match=LINES[line]):
        eval(line, dict(names))


def test_a_reply_prints_as_its_text_and_its_pieces_say_what_to_do(names):
    assert str(names["reply"]) == names["reply"].text
    assert "session.reply(prompt)" in repr(names["session"].chat("Hello"))


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (edgekv.Runtime, other_names.RUNTIME),
        (edgekv.Session, other_names.SESSION),
        (edgekv.Reply, other_names.REPLY),
        (Stats, other_names.STATS),
    ],
)
def test_no_name_of_edgekvs_own_is_in_a_table(kind, table):
    assert [name for name in table if name in dir(kind)] == []
    assert [name for name in other_names.MODULE if name in dir(edgekv)] == []


def test_a_reply_is_copied_and_pickled_as_it_is(names):
    reply = names["reply"]
    assert copy.deepcopy(reply) == reply
    assert pickle.loads(pickle.dumps(reply)) == reply


def test_an_unknown_name_is_an_error_of_attributes(names):
    for owner in (edgekv, names["rt"], names["session"], names["reply"], names["reply"].stats):
        assert not hasattr(owner, "whatever")
