"""Conversations and shared beginnings are found again by the next server, whatever ended the last one."""

from __future__ import annotations

import asyncio
import os
import re
import shutil

import pytest
from asgi import fetched
from test_chat_completions import GREEDY, PATH
from test_session_pool import Client, idle, words

import edgekv
from edgekv.server.state_folder import StateFolder
from edgekv.store.kept_folder import JOURNAL, is_kept

ARCHIVED = {"archive": "64MiB", "policy": "keydiff", "allow_beyond_trained": True}
RULES = {"role": "system", "content": words(150, "rule")}
SHOWN = ("written_bytes", "bytes")
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(params=["archive", "whole", pytest.param("isolated", marks=pytest.mark.nightly)])
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
            assert pool.storage.folder.n_bytes <= 3 * n_bytes
        assert not one.exists()
        assert 1 <= len(pool.sessions) <= 3
        assert {path.name for path in (state / "conversations").iterdir()} == {it.path.name for it in pool._pooled}


def test_a_restarted_server_replies_as_its_log_says(open_server, tmp_path):
    """A runtime that loads the same folder alone, with the same options and sampling, says the same."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    with open_server(state_dir=state, options=ARCHIVED) as application:
        clients = [Client(application, RULES), Client(application)]
        for client in clients:
            client.say(words(60))
            client.say(words(40, "more"))
        idle(application)
        killed(state, copy)
    with open_server(state_dir=copy, options=ARCHIVED) as application:
        paths = [pooled.path.name for pooled in application.state.pool._pooled]
        for client in clients:
            client.application = application
            assert client.say("And then?", min_p=0)[2]["evicted"] > 0
    with open_server(options=ARCHIVED) as application:
        for client, name in zip(clients, paths, strict=True):
            *messages, said = client.messages
            with application.state.pool.runtime.load_session(state / "conversations" / name) as session:
                reply = session.continue_from(messages, focus=True, max_tokens=12, sampling=edgekv.Sampling())
                assert "".join(reply) == said["content"]
                assert session.stats.recalls > 0


@pytest.mark.parametrize("options", [ARCHIVED, {"archive": "off"}], ids=["archive", "whole"])
def test_what_is_written_is_counted(open_server, tmp_path, options):
    """Journals, cells and whole conversations. Rows are counted as bytes of archives."""
    with open_server(state_dir=tmp_path, options=options) as application:
        for client in (Client(application, RULES), Client(application, RULES)):
            client.say("Hello")
            idle(application)
            client.say("And then?")
            idle(application)
        text = asyncio.run(fetched(application, "/metrics")).text
        n_written, n_bytes = (int(float(re.search(rf"^edgekv_state_{it} (.*)$", text, re.M)[1])) for it in SHOWN)
        assert n_bytes == StateFolder(tmp_path).n_bytes > 0
        files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("rows-")]
        n_there = sum(path.stat().st_size for path in files)
    if options is ARCHIVED:
        assert n_written == n_there
    else:  # a conversation is written whole after each reply
        assert n_there < n_written < 2 * n_there


# ---- the limit ----


def conversation(folder, number, n_bytes, shared=None):
    """Make a conversation of n_bytes that has a file with others, used after those of lower numbers."""
    path = folder / "conversations" / f"{number:06}.session"
    path.mkdir(parents=True)
    (path / JOURNAL).write_bytes(bytes(n_bytes))
    if shared is not None:
        os.link(shared, path / "rows-0")
    os.utime(path / JOURNAL, (number, number))
    return path


def test_files_that_several_have_go_with_the_last_of_them(tmp_path):
    shared = tmp_path / "shared"
    shared.write_bytes(bytes(1000))
    paths = [conversation(tmp_path, number, 400, shared) for number in range(1, 5)]
    shared.unlink()
    state = StateFolder(tmp_path, 1500)
    assert state.n_bytes == 2600
    state.keep_to_limit(shutil.rmtree)
    assert (state.n_bytes, [path.exists() for path in paths]) == (1400, [False, False, False, True])


def test_conversations_and_beginnings_have_one_limit(tmp_path):
    paths = [conversation(tmp_path, number, 400) for number in (1, 3, 4)]
    state = StateFolder(tmp_path, 900)
    beginning = state.beginnings / ("0a" * 16 + ".beginning")
    beginning.mkdir()
    (beginning / "cells").write_bytes(bytes(400))
    os.utime(beginning / "cells", (2, 2))
    state.keep_to_limit(lambda path: None if path == paths[0] else shutil.rmtree(path))  # the oldest is in use
    assert [path.exists() for path in (paths[0], beginning, *paths[1:])] == [True, False, False, True]


def test_a_session_with_a_name_stays_whatever_the_limit(tmp_path):
    state = StateFolder(tmp_path, 0)
    named = [tmp_path / "conversations" / name for name in ("mine.session", "2026.session")]
    for path in named:
        path.write_bytes(bytes(100))
    others = state.beginnings / "mine.beginning"
    others.mkdir()
    path = conversation(tmp_path, 1, 100)
    state.keep_to_limit(shutil.rmtree)
    assert [it.exists() for it in (*named, others, path)] == [True, True, True, False]
    assert state.newest(8) == []


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
