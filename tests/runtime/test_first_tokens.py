"""The tokens around a prompt, by vocabulary and way in: those that llama.cpp's server feeds (docs/design/tokens.md)."""

from __future__ import annotations

import pytest
from vocabularies import write_vocabulary

import edgekv
from edgekv import InvalidModelError
from edgekv.binding.model import Model
from edgekv.options import Options
from edgekv.testing.models.vocabulary import CHAT_TEMPLATE

SETTINGS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}
WITH_BOS = {"": "{{ bos_token }}" + CHAT_TEMPLATE}
ENDS = {"": "{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}"}
SPM = {"tokenizer": "spm"}
LLAMA3 = {"pre": "llama-bpe"}
GEMMA4 = SPM | {"model": "gemma4", "merges": ["h e"], "scores": []}
S, E = "<s>", "</s>"
B, F = "<|endoftext|>", "<|im_end|>"  # first and last token of the others
HELLO = [{"role": "user", "content": "Hi"}]
# what is fed before and after a raw prompt, and before and after messages
VOCABULARIES = {
    "spm": (SPM | {"add_bos": None}, (S, ""), (S, "")),
    "spm, bos": (SPM | {"add_bos": True}, (S, ""), (S, "")),
    "spm, no bos": (SPM | {"add_bos": False}, ("", ""), ("", "")),
    "spm, bos and eos": (SPM | {"add_eos": True}, (S, E), (S, E)),
    "spm, eos": (SPM | {"add_bos": False, "add_eos": True}, ("", E), ("", E)),
    "spm, template with bos": (SPM | {"templates": WITH_BOS}, (S, ""), (S, "")),
    "spm, no bos, template with bos": (SPM | {"add_bos": False, "templates": WITH_BOS}, ("", ""), (S, "")),
    "spm, eos, template with eos": (SPM | {"add_eos": True, "templates": ENDS}, (S, E), (S, E)),
    "bpe": ({"add_bos": None}, ("", ""), ("", "")),
    "bpe, bos": ({"add_bos": True}, (B, ""), (B, "")),
    "bpe, bos and eos": ({"add_bos": True, "add_eos": True}, (B, F), (B, F)),
    "llama 3": (LLAMA3 | {"add_bos": None}, (B, ""), (B, "")),
    "llama 3, no bos": (LLAMA3 | {"add_bos": False}, ("", ""), ("", "")),
    "llama 3, template with bos": (LLAMA3 | {"add_bos": None, "templates": WITH_BOS}, (B, ""), (B, "")),
    "gemma 4": (GEMMA4 | {"add_bos": False}, (S, ""), (S, "")),
}


@pytest.fixture(scope="module", params=VOCABULARIES, ids=lambda name: name.replace(", ", "-").replace(" ", "_"))
def case(request, tmp_path_factory):
    changes, *around = VOCABULARIES[request.param]
    path = write_vocabulary(tmp_path_factory.mktemp("first") / "model.gguf", **changes)
    with edgekv.Runtime(path, **SETTINGS) as runtime:
        yield runtime, *around


def fed(session):
    log = session._conversation.state.history.log
    return log.read(0, len(log)).tolist()


def told(runtime, tokens):
    """The text of tokens, with the names of control tokens."""
    return b"".join(runtime.pieces_of(tokens)).decode()


def space(runtime):
    """The space that a vocabulary of sentencepiece puts before a text."""
    return " " if runtime.model.tokenizer.adds_space else ""


@pytest.mark.parametrize("way", ["generate", "continue_from"])
def test_a_raw_prompt(case, way):
    runtime, (first, last), _ = case
    with runtime.session(history=True) as session:
        list(getattr(session, way)("The key is", max_tokens=0))
        assert told(runtime, fed(session)) == f"{first}{space(runtime)}The key is{last}"
    assert told(runtime, runtime.tokenize("The key is", begin=True)) == f"{first}{space(runtime)}The key is{last}"


def test_a_raw_prompt_that_has_the_tokens_already(case):
    """llama.cpp's server feeds them twice, and warns."""
    runtime, (first, last), _ = case
    with runtime.session(history=True) as session:
        list(session.continue_from(f"{first}The key is{last}", max_tokens=0))
        assert told(runtime, fed(session)) == f"{first}{space(runtime)}The key is{last}"


def test_a_raw_prompt_goes_on(case):
    runtime, (first, last), _ = case
    with runtime.session(history=True) as session:
        list(session.generate("The key", max_tokens=0))
        list(session.generate(" is", max_tokens=0))
        assert told(runtime, fed(session)) == f"{first}{space(runtime)}The key{last} is{last}"


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_gap(tmp_path, add_bos):
    path = write_vocabulary(tmp_path / "model.gguf", "code", add_bos=add_bos)
    with edgekv.Runtime(path, **SETTINGS) as runtime, runtime.session(history=True) as session:
        list(session.continue_from(edgekv.Infill("a", "b"), max_tokens=0))
        around = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
        assert told(runtime, fed(session)) == add_bos * B + around


@pytest.mark.parametrize("way", ["chat", "continue_from"])
def test_messages(case, way):
    runtime, _, (first, last) = case
    with runtime.session(history=True) as session:
        list(getattr(session, way)("Hi" if way == "chat" else HELLO, max_tokens=0))
        text, whole = told(runtime, fed(session)), runtime.prompt_text(HELLO)
    whole = first + whole.removeprefix(first or "\0").removesuffix(last or "\0") + last
    assert text.replace(" ", "") == whole.replace(" ", "")
    assert text.count(first or S) == whole.count(first or S)


def test_a_template_begins_with_the_space_too(tmp_path):
    template = {
        "": "{% for m in messages %}{{ '[INST]' if m.role == 'user' }}{{ m.content }}{{ eos_token }}{% endfor %}"
    }
    path = write_vocabulary(tmp_path / "model.gguf", "spm", templates=template)
    with edgekv.Runtime(path, **SETTINGS) as runtime, runtime.session(history=True) as session:
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *HELLO]
        list(session.continue_from(talk, max_tokens=0))
        assert told(runtime, fed(session)) == "<s> [INST]a</s> b</s> [INST]Hi</s>"
        model = runtime.model
        assert fed(session) == [*model.first, *model._tokenize("[INST]a</s>b</s>[INST]Hi</s>", True)]


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_vocabulary_that_lacks_its_first_or_last_token_is_refused(tmp_path, name):
    """llama.cpp would abort the process."""
    changes = GEMMA4 | {"add_bos": False, "add_eos": False} | {name: 1 << 20, f"add_{name}": True}
    path = write_vocabulary(tmp_path / "model.gguf", **changes)
    with pytest.raises(InvalidModelError, match="texts begin or end with a token that the file does not name"):
        Model(path, Options(), no_alloc=True)
    with pytest.raises(InvalidModelError, match="texts begin or end with a token that the file does not name"):
        edgekv.plan(path, memory="4GiB")
