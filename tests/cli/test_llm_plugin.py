"""The plug-in for llm, called as llm calls it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import edgekv

llm = pytest.importorskip("llm")

PLUGIN = Path(__file__).parents[2] / "integrations" / "llm-edgekv" / "llm_edgekv.py"
OPTIONS = {"memory": "4GiB", "max_tokens": 8, "temperature": 0}
GREEDY = edgekv.Sampling(temperature=0)


@pytest.fixture
def plugin():
    """The plug-in's module, which frees its model after the test."""
    spec = importlib.util.spec_from_file_location("llm_edgekv", PLUGIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module._LOADED.close()


def expected(model, *histories):
    """Return the replies of one session of edgekv to histories, one after the other."""
    with edgekv.Runtime(model, memory="4GiB") as rt, rt.session(history=True) as session:
        options = {"max_tokens": 8, "sampling": GREEDY, "focus": True}
        return ["".join(session.continue_from(history, **options)) for history in histories]


def user(text):
    return {"role": "user", "content": text}


def test_a_prompt_is_answered_as_edgekv_answers_it(plugin, model):
    response = plugin.EdgeKVModel("edgekv/tiny", str(model)).prompt("Hello", system="Be brief.", **OPTIONS)
    assert [response.text()] == expected(model, [{"role": "system", "content": "Be brief."}, user("Hello")])
    assert response.usage().output == 8


def test_a_conversation_goes_on_from_its_cells(plugin, model):
    conversation = plugin.EdgeKVModel("edgekv/tiny", str(model)).conversation()
    first = conversation.prompt("Hello", **OPTIONS).text()
    second = conversation.prompt("Why?", **OPTIONS).text()
    history = [user("Hello"), {"role": "assistant", "content": first}, user("Why?")]
    assert [first, second] == expected(model, history[:1], history)
    assert plugin._LOADED._session.stats.reused_tokens > 0


def test_what_edgekv_refuses_is_an_error_of_llm(plugin, model):
    refused = plugin.EdgeKVModel("edgekv/tiny", str(model)).prompt("Hello", memory="2MiB")
    with pytest.raises(llm.ModelError, match="does not hold"):
        refused.text()
    absent = plugin.EdgeKVModel("edgekv/absent", "absent").prompt("Hello")
    with pytest.raises(llm.ModelError, match="neither a file nor a known model"):
        absent.text()


def test_a_session_that_could_not_be_opened_leaves_no_closed_one(plugin, model, monkeypatch):
    conversation = plugin.EdgeKVModel("edgekv/tiny", str(model)).conversation()
    conversation.prompt("Hello", **OPTIONS).text()
    monkeypatch.setattr(edgekv.Runtime, "session", _no_room)
    with pytest.raises(llm.ModelError, match="no room"):
        plugin.EdgeKVModel("edgekv/tiny", str(model)).prompt("Hi", **OPTIONS).text()
    monkeypatch.undo()
    assert conversation.prompt("Why?", **OPTIONS).text()


def _no_room(runtime, **_):
    raise edgekv.SessionFileError("no room")


def test_the_default_model_is_registered_first(plugin):
    registered = []
    plugin.register_models(registered.append)
    assert (registered[0].model_id, registered[0].name) == ("edgekv", "smollm2-135m-instruct")
