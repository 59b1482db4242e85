"""Conversations and shared beginnings are found again by the next server, whatever ended the last one."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from asgi import fetched
from test_chat_completions import GREEDY, PATH
from test_session_pool import Client, idle, words

from edgekv.server.state_folder import StateFolder
from edgekv.store.kept_folder import is_kept

ARCHIVED = {"archive": "64MiB", "policy": "keydiff", "allow_beyond_trained": True}
RULES = {"role": "system", "content": words(150, "rule")}
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(params=["archive", "whole", "isolated"])
def options(request):
    """Options of a server that keeps its conversations as they grow, whole after each reply, or by a worker."""
    return {"archive": ARCHIVED, "whole": {}, "isolated": ARCHIVED | {"isolated": True}}[request.param]


def killed(folder, into):
    """Return a copy of a state folder, as a kill at this moment leaves it."""
    return shutil.copytree(folder, into)


def test_conversations_and_beginnings_are_there_after_a_kill(open_server, tmp_path, options):
    with open_server(state_dir=tmp_path / "state", options=options) as application:
        clients = [Client(application, RULES), Client(application, RULES)]
        for i, client in enumerate(clients):
            client.say(f"{i} begins")
            client.say(words(60, f"more{i}-"))
        idle(application)
        asked = {"messages": [RULES, {"role": "user", "content": "Who else?"}], **GREEDY}
        copy = killed(tmp_path / "state", tmp_path / "copy")
        expected = asyncio.run(fetched(application, PATH, asked)).json()
    with open_server(state_dir=copy, options=options) as application:
        assert len(application.state.pool.sessions) == 2
        for client in clients:
            client.application = application
            cached, total, _ = client.say("And then?")
            assert total - cached < 40
        found = asyncio.run(fetched(application, PATH, asked)).json()
        for name in ("choices", "usage"):
            assert found[name] == expected[name]
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 150
        metrics = asyncio.run(fetched(application, "/metrics")).text
        assert "edgekv_state_bytes 0.0" not in metrics


def test_what_was_used_longest_ago_goes_first(open_server, tmp_path):
    state = tmp_path / "state"
    with open_server(state_dir=state, options=ARCHIVED) as application:
        client = Client(application)
        client.say(words(30))
        idle(application)
        (one,) = (state / "conversations").iterdir()
        n_bytes = StateFolder(state).n_bytes
    with open_server(state_dir=state, state_bytes=3 * n_bytes, options=ARCHIVED) as application:
        pool = application.state.pool
        for i in range(4):
            Client(application).say(f"{i} {words(30)}")
            idle(application)
            assert pool.state.n_bytes <= 3 * n_bytes
        assert not one.exists()
        assert 1 <= len(pool.sessions) <= 3
        assert {path.name for path in (state / "conversations").iterdir()} == {it.path.name for it in pool._pooled}


def test_a_folder_of_somebody_else_stays(open_server, tmp_path):
    folder = tmp_path / "conversations" / "notes.session"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    (tmp_path / "conversations" / "mine.txt").write_text("mine")
    with open_server(state_dir=tmp_path, state_bytes=1 << 20, options=ARCHIVED) as application:
        Client(application).say(words(30))
        idle(application)
    assert (folder / "mine.txt").exists()
    assert (tmp_path / "conversations" / "mine.txt").exists()


@pytest.mark.parametrize("spoil", ["cells", "rows"])
def test_a_damaged_beginning_is_read_again(open_server, tmp_path, caplog, spoil):
    with open_server(state_dir=tmp_path, options=ARCHIVED) as application:
        expected = Client(application, RULES)
        expected.say("Hello")
        idle(application)
    shutil.rmtree(tmp_path / "conversations")
    beginnings = [*(tmp_path / "beginnings").iterdir()]
    assert beginnings
    for path in beginnings:
        for file in path.iterdir():
            if file.name.startswith(spoil):
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)
    with open_server(state_dir=tmp_path, options=ARCHIVED) as application:
        client = Client(application, RULES)
        cached, _, _ = client.say("Hello")
        assert ("is not gone on with" in caplog.text) == (spoil == "cells") == (cached < 20)


def test_conversations_share_the_rows_of_their_beginning(open_server, tmp_path):
    with open_server(state_dir=tmp_path, options=ARCHIVED) as application:
        for i in range(3):
            Client(application, RULES).say(f"{i} begins")
            idle(application)
    files = [file for path in (tmp_path / "conversations").iterdir() for file in path.iterdir()]
    assert sum(file.stat().st_nlink > 1 for file in files) >= 3
    assert all(is_kept(path) for path in (tmp_path / "conversations").iterdir())
