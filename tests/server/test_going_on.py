"""A last message of the assistant is the beginning of the reply, in every API."""

from __future__ import annotations

import pytest

ASKED = {"role": "user", "content": "Who lives in Kansas?"}
BEGUN = {"role": "assistant", "content": "In Kansas lives"}
GREEDY = {"temperature": 0, "max_tokens": 12}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.mark.usefixtures("talkative")
def test_the_reply_goes_on_with_what_the_assistant_began(ask):
    """The prompt ends with its text, as a text that is completed shows."""
    history = {"messages": [ASKED, BEGUN]}
    prompt = ask("/apply-template", history).json()["prompt"]
    assert prompt.endswith("In Kansas lives")
    chat = ask(CHAT, history | GREEDY).json()
    assert chat["choices"][0]["finish_reason"] == "length"
    said = chat["choices"][0]["message"]["content"]
    message = ask(MESSAGES, history | GREEDY).json()
    assert message["content"][0]["text"] == said
    response = ask("/v1/responses", {"input": [ASKED, BEGUN], "temperature": 0, "max_output_tokens": 12}).json()
    assert response["output"][0]["content"][0]["text"] == said
    whole = ask(CHAT, {"messages": [ASKED]} | GREEDY).json()["usage"]["prompt_tokens"]
    n_begun = len(ask("/tokenize", {"content": BEGUN["content"]}).json()["tokens"])
    assert chat["usage"]["prompt_tokens"] == whole + n_begun


@pytest.mark.usefixtures("talkative")
def test_the_whole_reply_is_known_when_it_is_sent_again(ask):
    history = [{"role": "user", "content": "Who lives in Oz?"}, BEGUN]
    first = ask(CHAT, {"messages": history, **GREEDY}).json()
    whole = BEGUN["content"] + first["choices"][0]["message"]["content"]
    history = [history[0], {"role": "assistant", "content": whole}, {"role": "user", "content": "And then?"}]
    usage = ask(CHAT, {"messages": history, **GREEDY}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 1


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([ASKED], {"add_generation_prompt": False}),
        ([ASKED], {"continue_final_message": True}),
        ([ASKED, BEGUN], {"add_generation_prompt": True}),
        ([ASKED, BEGUN], {"continue_final_message": False}),
    ],
)
def test_words_that_do_not_fit_the_last_message_are_refused(ask, messages, said):
    (name,) = said
    refused = ask(CHAT, {"messages": messages, **GREEDY, **said})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    other = {name: not said[name]}
    assert ask(CHAT, {"messages": messages, **GREEDY, **other}).status_code == 200


def test_calls_of_tools_are_not_gone_on_with(ask):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert not ask("/apply-template", {"messages": history}).json()["prompt"].endswith("</tool_call>")
