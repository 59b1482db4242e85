"""Ollama's API: replies whole and as lines of JSON, and what clients ask about the server."""

from __future__ import annotations

import json
import threading

import pytest

from edgekv.api.ollama_api import ChatBody, parse_chat
from edgekv.api.ollama_lines import CHAT_PING, TEXT_PING, Lines
from edgekv.api.reply_request import Ended, Piece, ToolCall, Usage
from edgekv.api.server_settings import Settings

CHAT, TEXT = "/api/chat", "/api/generate"
HELLO = [{"role": "user", "content": "Hello there"}]
GREEDY = {"temperature": 0, "num_predict": 12}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}


def reply(ask, path=CHAT, **body):
    asked = {"model": "any", "stream": False, "options": GREEDY}
    answer = ask(path, asked | ({"messages": HELLO} if path == CHAT else {"prompt": "Hello there"}) | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def lines_of(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text[:-1].split("\n")]


def test_times_are_told_in_nanoseconds():
    lines = Lines("any", is_chat=True, hides_thoughts=False, not_applied=[])
    lines.add(Ended("stop", Usage(*[0] * 11, prefill_s=1.5, decode_s=0.25)))
    told = lines.whole()
    assert (told["prompt_eval_duration"], told["eval_duration"]) == (1_500_000_000, 250_000_000)


@pytest.mark.usefixtures("talkative")
def test_a_whole_reply_is_that_of_other_apis(ask):
    found = reply(ask)
    other = ask("/v1/chat/completions", {"messages": HELLO, "temperature": 0, "max_tokens": 12}).json()
    assert found["message"] == {"role": "assistant", "content": other["choices"][0]["message"]["content"]}
    assert (found["done"], found["done_reason"], found["model"]) == (True, "length", other["model"])
    assert (found["eval_count"], found["prompt_eval_count"]) == (12, other["usage"]["prompt_tokens"])
    assert found["total_duration"] >= found["eval_duration"] > 0
    assert found["created_at"].endswith("Z")
    assert found["edgekv"]["budget"] == 64


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_has_a_line_for_each_piece(ask, path):
    """Replies are streams unless the body says otherwise."""
    whole = reply(ask, path)
    body = {"messages": HELLO, "prompt": "Hello there", "options": GREEDY}
    *pieces, last = lines_of(ask(path, body))
    said = "".join(line["message"]["content"] if path == CHAT else line["response"] for line in pieces)
    assert said == (whole["message"]["content"] if path == CHAT else whole["response"])
    assert pieces  # several tokens may share one: those that came while the reader was busy
    assert not any(line["done"] for line in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 12)


@pytest.mark.usefixtures("talkative")
def test_a_prompt_is_a_message_or_goes_on_raw(ask):
    as_chat = reply(ask, CHAT, messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    as_prompt = reply(ask, TEXT, system="Be brief.")
    assert as_prompt["response"] == as_chat["message"]["content"]
    raw = reply(ask, TEXT, raw=True)
    other = ask("/v1/completions", {"prompt": "Hello there", "temperature": 0, "max_tokens": 12}).json()
    assert raw["response"] == other["choices"][0]["text"]


@pytest.mark.parametrize("form", ["json", SCHEMA])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_form_of_a_reply(ask, path, form):
    options = {"temperature": 2, "seed": 5, "num_predict": 900}
    found = reply(ask, path, format=form, options=options)
    value = json.loads(found["message"]["content"] if path == CHAT else found["response"])
    assert isinstance(value, dict)
    assert form == "json" or value["city"] in ("Oslo", "Rome")


def test_tools_and_their_results_are_read(ask):
    """A call has no id here. Arguments are an object."""
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    begun = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    history = [*begun, {"role": "tool", "tool_name": "weather", "content": "It rains."}]
    with_tool, without = reply(ask, messages=history, tools=[TOOL]), reply(ask, messages=HELLO)
    assert with_tool["prompt_eval_count"] > without["prompt_eval_count"] + 50
    prompt = ask("/apply-template", {"messages": history, "tools": [TOOL]}).json()["prompt"]
    assert '{"name": "weather", "arguments": {"city": "Oslo"}}' in prompt
    odd = {**SCHEMA, "minProperties": 1, "not": {"required": ["x"]}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    assert reply(ask, tools=[tool])["edgekv"]["relaxed_tools"] == {"odd": ["not"]}


def test_calls_of_tools_are_told_as_objects():
    call, told = ToolCall("1", "weather", '{"city": "Oslo"}'), {"name": "weather", "arguments": {"city": "Oslo"}}
    told = {"id": "1", "function": told}
    renderer = Lines("model", is_chat=True, hides_thoughts=False, not_applied=[])
    (line,) = renderer.stream(call)
    assert json.loads(line)["message"] == {"role": "assistant", "content": "", "tool_calls": [told]}
    renderer.add(call)
    assert renderer.whole()["message"]["tool_calls"] == [told]
    (line,) = renderer.stream(ToolCall("1", "weather", '{"city": 1e999}'))
    assert b'{"city":1.7976931348623157e+308}' in line  # JSON has no infinity


@pytest.mark.usefixtures("talkative")
def test_options_that_change_nothing_are_told(ask):
    """Desktop programs send them with every request: they are about how a model is loaded."""
    options = GREEDY | {"num_ctx": 4096, "num_gpu": 99, "num_keep": 5, "mirostat": 0, "tfs_z": 1, "typical_p": 1}
    found = reply(ask, options=options, keep_alive="5m", shift=True)
    told = ["options.num_ctx", "options.num_gpu", "options.num_keep", "keep_alive", "shift"]
    assert found["edgekv"]["not_applied"] == told
    assert found["message"] == reply(ask)["message"]
    assert "not_applied" not in reply(ask)["edgekv"]
    assert lines_of(ask(CHAT, {"messages": HELLO, "options": options}))[-1]["edgekv"]["not_applied"] == told[:3]


@pytest.mark.parametrize(
    ("path", "change", "named"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        (CHAT, {"messages": [{"role": "judge", "content": "x"}]}, "messages.0.role"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content"),
        (CHAT, {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{}]}]}, "tool_calls.0"),
        (CHAT, {"format": "yaml"}, "format is 'yaml'"),
        (CHAT, {"options": {"mirostat": 2}}, "mirostat"),
        (CHAT, {"options": {"tfs_z": 0.5}}, "tfs_z"),
        (CHAT, {"options": {"temperature": "hot"}}, "options.temperature"),
        (CHAT, {"options": {"num_predict": -3}}, "options.num_predict"),
        (CHAT, {"messages": [], "keep_alive": 0}, "keep_alive=0"),
        (TEXT, {"prompt": None, "keep_alive": "0s"}, "keep_alive=0"),
        (TEXT, {"suffix": "x", "system": "y"}, "system"),
        (TEXT, {"template": "{{ .Prompt }}"}, "template"),
        (TEXT, {"context": [1, 2]}, "/api/chat"),
        (TEXT, {"raw": True, "system": "x"}, "system"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_text_that_clients_show(ask, path, change, named):
    refused = ask(path, {"messages": HELLO, "prompt": "x"} | change)
    assert refused.status_code == 400
    (message,) = refused.json().values()
    assert list(refused.json()) == ["error"]
    assert isinstance(message, str)
    assert named in message


def test_a_body_that_only_loads_the_model(ask):
    for path, asked in ((CHAT, {"messages": []}), (TEXT, {}), (TEXT, {"prompt": "", "keep_alive": -1})):
        found = ask(path, {"model": "any"} | asked).json()
        assert (found["done"], found["done_reason"]) == (True, "load")


def test_a_prompt_that_must_not_be_cut(ask):
    long = " ".join(f"word{i}" for i in range(300))
    refused = ask(TEXT, {"prompt": long, "truncate": False})
    assert refused.status_code == 400
    assert "the budget is 64 cells" in refused.json()["error"]


def test_longest_replies():
    def most(**options):
        body = ChatBody.model_validate({"messages": HELLO, "options": options})
        return parse_chat(body, Settings()).max_tokens

    assert [most(), most(num_predict=7), most(num_predict=-1), most(num_predict=-2)] == [1024, 7, None, None]


def test_log_probabilities(ask):
    found = reply(ask, logprobs=True, top_logprobs=2)
    assert len(found["logprobs"]) == found["eval_count"]
    assert all(len(token["top_logprobs"]) == 2 for token in found["logprobs"])
    streamed = lines_of(ask(CHAT, {"messages": HELLO, "options": GREEDY, "logprobs": True}))
    assert sum(len(line.get("logprobs", [])) for line in streamed) == found["eval_count"]


@pytest.mark.parametrize("hides", [False, True])
def test_thoughts_stand_apart(hides):
    def made():
        return Lines("model", is_chat=True, hides_thoughts=hides, not_applied=[])

    pieces = [Piece("Hm", reasoning=True), Piece("Four")]
    renderer, streamed = made(), [json.loads(part) for piece in pieces for part in made().stream(piece)]
    for piece in pieces:
        renderer.add(piece)
    whole = renderer.whole()["message"]
    assert whole == {"role": "assistant", "content": "Four"} | ({} if hides else {"thinking": "Hm"})
    assert [line["message"].get("thinking", "") for line in streamed] == ([""] if hides else ["Hm", ""])


def test_while_nothing_is_said_lines_without_text_come(open_server):
    """Clients parse every line, so none is blank."""
    assert json.loads(CHAT_PING)["message"] == {"role": "assistant", "content": ""}
    assert json.loads(TEXT_PING)["response"] == ""


def test_an_error_in_a_stream_is_a_line(ask, server, monkeypatch):
    def fail(request, emit, stop):
        emit(Piece("begun"))
        said.wait(30)
        raise RuntimeError("no")

    said = threading.Event()
    said.set()
    monkeypatch.setattr(server.state.queue, "_answer", fail)
    lines = lines_of(ask(CHAT, {"messages": HELLO}))
    assert lines[-1] == {"error": "the server failed; its log says how"}


def test_the_model_is_described(ask, server):
    (model,) = ask("/api/tags").json()["models"]
    plan = server.state.pool.runtime.plan
    assert model["name"] == model["model"] == f"{plan.model.stem}:latest"
    assert model["size"] == plan.model.stat().st_size
    assert model["details"]["format"] == "gguf"
    assert model["details"]["family"] == "llama"
    assert model["details"]["parameter_size"].endswith("M")
    (running,) = ask("/api/ps").json()["models"]
    assert {key: running[key] for key in ("name", "digest", "details")} == {
        key: model[key] for key in ("name", "digest", "details")
    }
    assert running["context_length"] == 2048
    shown = ask("/api/show", {"model": model["name"]}).json()
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 2048
    assert shown["capabilities"] == ["completion", "tools"]
    assert "messages" in shown["template"]
    version = ask("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 5, 0)  # from here on clients send schemas
    for path in ("/api/tags", "/api/ps", "/api/version"):
        assert str(plan.model.parent) not in ask(path).text


@pytest.mark.parametrize("path", ["/api/pull", "/api/delete", "/api/embed", "/api/nothing"])
def test_what_is_not_there_says_so_in_a_text(ask, path):
    refused = ask(path, {"model": "x"})
    assert (refused.status_code, list(refused.json())) == (404, ["error"])
    assert path in refused.json()["error"]


def test_a_body_that_is_no_json_says_how_to_send_it(ask):
    refused = ask(CHAT, "{}", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (refused.status_code, refused.json()["error"]) == (415, "send the body as Content-Type: application/json")
