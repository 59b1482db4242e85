"""POST /v1/responses: what a body asks for, whole and in pieces."""

from __future__ import annotations

import base64
import json

import pytest
from asgi import said

from edgekv.api.api_errors import ApiError
from edgekv.api.body import parsed
from edgekv.api.responses import ResponsesBody, parse, response_of
from edgekv.api.server_settings import Settings

PATH = "/v1/responses"
GREEDY = {"temperature": 0, "max_output_tokens": 12}


def request(**body):
    """The request of a body."""
    return parse(parsed(ResponsesBody, json.dumps({"input": "Hello"} | body).encode()), Settings())


def turns(**body):
    """Roles and contents of what a body asks to be read."""
    return [(message["role"], message["content"]) for message in request(**body).messages]


def message(role, content):
    return {"role": role, "content": content}


def test_a_text_is_a_message_of_the_user():
    assert turns(input="Hello") == [("user", "Hello")]
    assert turns(input="Hello", instructions="Be brief.") == [("system", "Be brief."), ("user", "Hello")]


def test_items_are_a_conversation():
    answer = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
    items = [
        message("developer", "In French."),
        message("user", [{"type": "input_text", "text": "One."}, {"type": "input_text", "text": "Two."}]),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        answer
        | {
            "content": [
                {"type": "output_text", "text": "Trois", "annotations": []},
                {"type": "refusal", "refusal": "!"},
            ]
        },
        message("user", "And then?"),
        message("user", "Well?"),
    ]
    assert turns(instructions="Be brief.", input=items) == [
        ("system", "Be brief.\n\nIn French."),
        ("user", "One.\n\nTwo."),
        ("assistant", "Trois!"),
        ("user", "And then?\n\nWell?"),
    ]


def test_a_file_of_text_is_read():
    data = "data:text/plain;base64," + base64.b64encode("Äpfel".encode()).decode()
    file = {"type": "input_file", "filename": "a.txt", "file_data": data}
    assert turns(input=[message("user", [file, {"type": "input_text", "text": "What?"}])]) == [
        ("user", "Äpfel\n\nWhat?")
    ]


@pytest.mark.parametrize(
    "data", ["x", "data:text/plain,x", "data:a;base64,%", "data:a;base64,/w==", "data:a;base64,AA=="]
)
def test_a_file_that_is_no_text_is_refused(data):
    with pytest.raises(ApiError, match=r"input\.0\.content\.0\.file_data"):
        turns(input=[message("user", [{"type": "input_file", "file_data": data}])])


def test_how_a_reply_is_made():
    made = request(max_output_tokens=5, temperature=0.5, top_p=0.9, seed=7, user="me")
    assert made.max_tokens == 5
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.seed) == (0.5, 0.9, 7)
    assert made.on_overflow == "evict"
    assert request(truncation="disabled").on_overflow == request(edgekv={"on_overflow": "error"}).on_overflow == "error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("background", True),
        ("prompt", {"id": "p"}),
        ("text", {"format": {"type": "yaml"}}),
        ("text", {"format": {"type": "json_schema", "name": "x"}}),
        ("tools", [{"type": "function"}]),
        ("tools", [{"type": "namespace", "tools": []}]),
        ("tools", [{"type": "namespace", "name": "files", "tools": [{"type": "function"}]}]),
        ("top_logprobs", 21),
        ("truncation", "some"),
        ("input", []),
        ("input", [message("user", [{"type": "input_image", "image_url": "x"}])]),
        ("input", [message("tool", "x")]),
        ("input", [{"type": "item_reference", "id": "msg_1"}]),
        ("input", [{"role": "user"}]),
        ("input", [message("user", [{"type": "input_text"}])]),
        ("max_output_tokens", -2),
        ("metadata", {"a": "x" * 513}),
        ("metadata", {str(i): "x" for i in range(17)}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(field, value):
    with pytest.raises(ApiError) as refused:
        request(**{field: value})
    assert refused.value.status == 400
    assert refused.value.param.startswith(field)
    assert field in refused.value.message


def test_what_waits_holds_no_long_text():
    body = parsed(ResponsesBody, json.dumps({"input": "x", "instructions": "y" * 20_000}).encode())
    assert response_of(body, parse(body, Settings()), "a-model")["instructions"] is None
    choice = {"type": "function", "name": "f", "further": "y" * 20_000}
    body = parsed(ResponsesBody, json.dumps({"input": "x", "tool_choice": choice}).encode())
    told = response_of(body, parse(body, Settings()), "a-model")["tool_choice"]
    assert told == {"type": "function", "name": "f"}
    with pytest.raises(ApiError, match="at most 64 characters"):
        request(text={"format": {"type": "json_schema", "name": "y" * 20_000, "schema": {}}})


def test_what_is_not_known_is_ignored():
    turns(
        unheard_of=1,
        store=True,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
        include=["reasoning.encrypted_content"],
    )


@pytest.mark.usefixtures("talkative")
def test_a_whole_reply_and_a_stream(ask):
    body = {"input": "Hello there", "instructions": "Be brief.", "metadata": {"a": "b"}, **GREEDY}
    answer = ask(PATH, body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    assert (whole["object"], whole["status"]) == ("response", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (whole["metadata"], whole["instructions"], whole["temperature"]) == ({"a": "b"}, "Be brief.", 0)
    assert whole["usage"]["output_tokens"] == 12
    assert whole["edgekv"]["budget"] == 64
    text = whole["output"][0]["content"][0]["text"]
    assert text

    streamed = ask(PATH, body | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = said(streamed)
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == text
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text

    items = [message("user", "Hello there"), *whole["output"], message("user", "And then?")]
    usage = ask(PATH, body | {"input": items}).json()["usage"]
    assert usage["input_tokens"] / 2 < usage["input_tokens_details"]["cached_tokens"] < usage["input_tokens"]


def test_what_goes_wrong_has_the_shape_of_openai(ask):
    error = ask(PATH, {"input": "x", "previous_response_id": "resp_1"}).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "previous_response_id")
    assert ask(PATH, "[").json()["error"]["code"] == "invalid_json"
    too_long = ask(PATH, {"input": "word " * 300, "truncation": "disabled"})
    assert too_long.status_code == 400, too_long.text
