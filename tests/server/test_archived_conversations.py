"""A server whose conversations have archives: what it says of them in replies, /props and /metrics."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from asgi import fetched

ARCHIVED = {"policy": "keydiff", "reposition": "never"}
LONG = " ".join(f"word{i}" for i in range(150))


@pytest.fixture
def replies(open_server, talkative):
    """A function that asks a server with an archive of this size; returns the reply, /props and /metrics."""

    def replies(archive, **fields):
        async def asked():
            reply = await fetched(application, "/v1/chat/completions", body | fields)
            props = await fetched(application, "/props")
            return reply, props.json(), (await fetched(application, "/metrics")).text

        body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4, "temperature": 0}
        with open_server(options=ARCHIVED | {"archive": archive}) as application:
            return asyncio.run(asked())

    return replies


def figure(metrics, name):
    (value,) = (line.split()[1] for line in metrics.splitlines() if line.startswith(f"edgekv_{name} "))
    return float(value)


def test_a_reply_recalls_and_says_what_is_archived(replies):
    reply, props, metrics = replies("4MiB")
    assert reply.status_code == 200
    told = reply.json()["edgekv"]
    assert told["archived"] == told["evicted"] == told["seen"] - told["kept"] > 0
    assert "archive_failed" not in told
    assert (props["archive_bytes"], props["focus"]) == (4 << 20, True)
    assert figure(metrics, "archived_tokens") == told["archived"]
    assert (figure(metrics, "recalls_total"), figure(metrics, "recalled_cells_total")) == (1, 16)
    assert figure(metrics, "archived_bytes_total") > 0
    assert figure(metrics, "archive_failures_total") == 0


def test_a_full_archive_is_told_without_a_path_and_logged(replies, caplog):
    reply, _, metrics = replies("256KiB")
    told = reply.json()["edgekv"]
    assert told["archive_failed"] is True
    assert told["archived"] < told["evicted"]
    assert figure(metrics, "archive_failures_total") == 1
    assert "the archive of a conversation: its 0.2 MiB are full; tokens from" in caplog.text


def test_kept_tokens_have_the_shade_of_the_archive(replies):
    stream = replies("4MiB", stream=True, edgekv={"coverage": True})[0].text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    parts = [chunk["edgekv"]["coverage"] for chunk in chunks if "coverage" in chunk.get("edgekv", {})]
    shades = {shade for part in parts for _, shade in part["runs"]}
    assert 5 in shades
    assert 0 not in shades


def test_a_text_is_read_once_for_all_questions_unless_a_request_wants_it_read_with_its_own(open_server, talkative):
    def n_reused(question, **wishes):
        body = {"messages": [{"role": "user", "content": f"{LONG}\n\n{question}"}], "max_tokens": 2, **wishes}
        reply = asyncio.run(fetched(application, "/v1/chat/completions", body)).json()
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["edgekv"]["archived"]

    with open_server(options=ARCHIVED | {"archive": "auto"}) as application:
        found = [n_reused(question) for question in ("Who?", "Where?", "Why?")]
        own = [n_reused("When?", edgekv={"focus": focus}) for focus in (True, "When was it?")]
        assert [reused > 500 for reused, _ in found] == [False, True, True]
        assert [reused > 500 for reused, _ in own] == [False, False]
        assert all(archived > 500 for _, archived in found + own)


def test_comments_tell_each_part_of_the_reading_once_and_nothing_of_a_recall(replies):
    stream = replies("4MiB", stream=True)[0].text
    seen = [int(n) for n in re.findall(r"^: reading (\d+) of \d+$", stream, re.MULTILINE)]
    assert len(seen) > 5
    assert seen == sorted(set(seen))


def test_the_same_request_again_recalls_with_the_end_of_its_prompt(open_server, talkative):
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4, "temperature": 0}
    with open_server(focus=False, options=ARCHIVED | {"archive": "4MiB"}) as application:
        found = [asyncio.run(fetched(application, "/v1/chat/completions", body)).json() for _ in range(3)]
    n_read = [it["usage"]["prompt_tokens"] - it["usage"]["prompt_tokens_details"]["cached_tokens"] for it in found]
    assert n_read[0] > 500
    assert n_read[1:] == [8, 8]  # a quarter of a block
    assert found[1]["choices"][0]["message"] == found[2]["choices"][0]["message"]
