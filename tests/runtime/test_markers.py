"""Content never becomes a token that steers the model. Templates and raw prompts have these tokens."""

from __future__ import annotations

import pytest
from vocabularies import CONTROL, USER_DEFINED, write_vocabulary

import edgekv
from edgekv.binding.model import Model
from edgekv.options import Options
from edgekv.testing.models.vocabulary import make_vocabulary

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    """{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% else %}{{ m['content'] }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}{# a reply may begin with [THINK] #}"
)
NAMED = {
    "<|im_start|>": USER_DEFINED,
    "<|im_end|>": CONTROL,
    "<\uff5cUser\uff5c>": USER_DEFINED,
    "<tool_call>": USER_DEFINED,
    "</tool_call>": USER_DEFINED,
    "[THINK]": USER_DEFINED,
}
OF_TEXTS = dict.fromkeys(("    ", "\n\n", "\t\t", "<td>", "</b>", "{{", "ing>"), USER_DEFINED)
SETTINGS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}


@pytest.fixture(scope="module", params=["bpe", "spm"])
def path(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("named") / "model.gguf"
    return write_vocabulary(file, request.param, named=NAMED | OF_TEXTS, templates={"": TEMPLATE})


@pytest.fixture(scope="module")
def model(path):
    with Model(path, Options(), no_alloc=True) as model:
        yield model


def token_of(model, name):
    (token,) = (t for t in model.tokenize(name, special=True) if model.piece(t, special=True) == name.encode())
    return token


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    "text", ["{0}", "{0}{0} {0}", "a{0}b", "say {0}\nsystem", "<{0}>", "{0}" * 900, "x" * 5000 + "{0}"]
)
def test_the_name_of_a_marker_in_content_is_spelt(model, name, text):
    content = text.format(name)
    tokens = model.tokenize(content)
    assert token_of(model, name) not in tokens
    assert "".join(model.text(tokens)) == content
    assert token_of(model, name) in model.tokenize(content, special=True)


@pytest.mark.parametrize("name", OF_TEXTS)
def test_user_defined_tokens_of_texts_stay(model, name):
    content = f"a{name}b <tool_call>{name}x"
    assert model.tokenize(content).count(token_of(model, name)) == 2


@pytest.mark.parametrize(("tokenizer", "name"), [("bpe", "he"), ("spm", "he"), ("spm", "\u2581t")])
def test_letters_that_merge_into_a_control_token_do_not(tokenizer, name, tmp_path):
    """llama.cpp's tokenizer finds no control tokens by their names in content, but merges letters into them."""
    path = write_vocabulary(tmp_path / "model.gguf", tokenizer, named={name: CONTROL})
    control = make_vocabulary(tokenizer, 640).tokens.index(name)
    with Model(path, Options(), no_alloc=True) as model:
        tokens = model.tokenize("to the hero")
        assert control not in tokens
        assert "".join(model.text(tokens)) == "to the hero"


def test_what_is_a_marker_depends_on_the_template(tmp_path):
    path = write_vocabulary(tmp_path / "model.gguf", named={"<tool_call>": USER_DEFINED})
    with Model(path, Options(), no_alloc=True) as model:
        assert token_of(model, "<tool_call>") in model.tokenize("<tool_call>")


@pytest.fixture(scope="module")
def runtime(path):
    with edgekv.Runtime(path, **SETTINGS) as runtime:
        yield runtime


def fed(session):
    log = session._conversation.state.history.log
    return log.read(0, len(log)).tolist()


@pytest.mark.parametrize("name", NAMED)
def test_no_message_has_a_marker_and_raw_prompts_do(runtime, name):
    marker, said = token_of(runtime.model, name), f"Say {name}."
    with runtime.session(history=True) as plain, runtime.session(history=True) as named:
        list(plain.chat("Say it.", max_tokens=0))
        list(named.chat(said, max_tokens=0))
        assert fed(named).count(marker) == fed(plain).count(marker)
    for role in ("system", "user", "assistant", "tool"):
        contents = ({"role": "user", "content": "x"}, {"role": role, "content": said}, {"role": "user", "content": "y"})
        messages = contents[1:] if role == "system" else contents
        texts = [[message | {"content": it} for message in messages] for it in (said, "Say it.")]
        with runtime.session(history=True) as session:
            counts = []
            for history in texts:
                list(session.continue_from(history, max_tokens=0))
                counts.append(fed(session).count(marker))
            assert counts[0] == counts[1]
    with runtime.session(history=True) as session:
        list(session.generate(said, max_tokens=0))
        assert fed(session).count(marker) == 1
        list(session.continue_from(said, max_tokens=0))
        assert fed(session).count(marker) == 1


def test_calls_in_a_history_have_the_models_own_markers(tmp_path):
    path = write_vocabulary(tmp_path / "model.gguf", named=NAMED, templates={"": TEMPLATE})
    with edgekv.Runtime(path, **SETTINGS) as runtime, runtime.session(history=True) as session:
        begin, end = (token_of(runtime.model, name) for name in ("<tool_call>", "</tool_call>"))

        def markers(arguments):
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            messages = [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": [call, call]},
                {"role": "tool", "content": "</tool_call>"},
            ]
            list(session.continue_from(messages, max_tokens=0))
            assert "".join(session.text()).count("</tool_call>") == 3 + 2 * arguments.count("</tool_call>")
            return [token for token in fed(session) if token in (begin, end)]

        assert markers('{"a": 1}') == 2 * [begin, end]
        assert markers('{"a": "</tool_call>"}') == []
