"""Texts and system messages that several requests begin with are read once. All is counted in tokens."""

from __future__ import annotations

import asyncio

import pytest
from asgi import fetched
from diagonals import HERE_BY_DAY
from test_chat_completions import GREEDY, PATH

pytestmark = pytest.mark.usefixtures("talkative")

TEXT = " ".join(f"word{i % 97}" for i in range(900))
FORGETTING = {"archive": "off"}  # a session with an archive goes back to what two texts have in common
RULES = " ".join(f"rule{i % 89}" for i in range(120))
QUESTIONS = ("Who came first?", "Where was it?", "What then?", "How many are there?", "Why?", "Is that all?")
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def told(application, *messages, **wishes):
    """Return the reply, the tokens reused, and the tokens of the prompt."""
    messages = [{"role": role, "content": content} for role, content in messages]
    answer = asyncio.run(fetched(application, PATH, {"messages": messages, **GREEDY, **wishes}))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    reply = answer.json()["choices"][0]["message"]["content"]
    return reply, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def asked(application, question, **wishes):
    return told(application, ("user", f"{TEXT}\n\n{question}"), **wishes)


@pytest.fixture(params=HERE_BY_DAY, ids=["here", "isolated"])
def application(open_server, request):
    with open_server(options=FORGETTING | {"isolated": request.param}) as made:
        yield made


def test_six_questions_about_a_text_read_it_twice(application):
    """The first time with its question in mind, then without one. The server has room for far fewer tokens."""
    found = [asked(application, question) for question in QUESTIONS]
    n_tokens = found[0][2]
    assert n_tokens > 900 > 10 * application.state.pool.runtime.plan.budget_cells
    assert [reused < 40 for _, reused, _ in found] == [True, True, False, False, False, False]
    assert all(n - reused < 64 + 40 for _, reused, n in found[2:])
    again = asked(application, QUESTIONS[1])
    assert again[0] == found[1][0]


def test_a_request_chooses_to_have_its_question_in_mind(application):
    first = asked(application, QUESTIONS[0])
    for _ in range(2):
        assert asked(application, QUESTIONS[1])[2] > 900
    for focus in (True, QUESTIONS[0], [QUESTIONS[0]]):
        reply, reused, _ = asked(application, QUESTIONS[0], edgekv={"focus": focus})
        assert reused < 40
        assert reply == first[0] or focus is not True
    assert asked(application, QUESTIONS[2])[1] > 800
    assert asked(application, QUESTIONS[3], edgekv={"focus": False})[1] > 800


def test_what_is_read_once_for_all_serves_a_request_without_a_question(open_server):
    with open_server(options=FORGETTING | {"policy": "keydiff"}) as application:
        assert [asked(application, question)[1] > 800 for question in QUESTIONS[:3]] == [False, False, True]
        assert asked(application, QUESTIONS[3], edgekv={"focus": False})[1] > 800


def test_a_server_without_focus_reads_a_text_without_a_question(open_server):
    with open_server(options=FORGETTING, focus=False) as application:
        assert [asked(application, question)[1] > 800 for question in QUESTIONS[:3]] == [False, False, True]
        assert asked(application, QUESTIONS[3], edgekv={"focus": True})[1] < 40


@pytest.mark.parametrize("rules", [RULES, "Be brief. " * 8], ids=["long", "pinned"])
def test_a_new_conversation_begins_after_its_system_message(open_server, rules):
    """Tools are part of it. Conversations before go on."""
    with open_server(options={"budget": 1000}) as application:
        wishes = {"tools": [TOOL], "tool_choice": "none"}
        hello = told(application, ("system", rules), ("user", "Hello"), **wishes)
        _, reused, n = told(application, ("system", rules), ("user", "What is that?"), **wishes)
        assert hello[1] == 0 < 32 < reused
        assert n - reused < 40
        assert told(application, ("system", rules), ("user", "What is that?"))[1] < reused  # other tools
        going_on = (("system", rules), ("user", "Hello"), ("assistant", hello[0]), ("user", "And then?"))
        assert told(application, *going_on, **wishes)[1] > hello[2]
        assert len(application.state.pool.sessions) > 2


def test_a_system_message_that_is_longer_than_the_cells_is_read_once(open_server):
    """As that of many tools is."""
    with open_server() as application:
        counts = [told(application, ("system", RULES), ("user", question))[1] for question in ("Hello", "What?")]
        assert counts[0] == 0 < 120 < counts[1]


def test_messages_tell_what_was_reused(open_server):
    with open_server() as application:
        for i in range(2):
            body = {"system": RULES, "messages": [{"role": "user", "content": f"{i} is it"}], "max_tokens": 4}
            usage = asyncio.run(fetched(application, "/v1/messages", body)).json()["usage"]
            assert (usage["cache_read_input_tokens"] > 120) == (i > 0)
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 120


def test_nothing_is_kept_where_the_disk_may_take_nothing(open_server):
    with open_server(options=FORGETTING | {"swap_bytes": 0}) as application:
        assert [asked(application, question)[1] < 40 for question in QUESTIONS[:3]] == [True, True, True]
