"""Conversations of the page that the server keeps: what is written is found again, and nothing else can be written."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc

import pytest
from asgi import fetched

from edgekv.server import conversations

SAID = {"role": "user", "text": "two\nlines\u2028 and \u00e4", "files": []}
TALK = {"id": "17-a", "title": "", "at": 5, "messages": [SAID], "draft": "x"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("talks")


@pytest.fixture(scope="module")
def server(open_server, folder):
    with open_server(conversations_dir=folder, max_body=1 << 16) as application:
        yield application


@pytest.fixture(autouse=True)
def empty(folder):
    yield
    for path in folder.iterdir():
        path.unlink()


def put(ask, talk, **further):
    return ask(f"/conversations/{talk['id']}", talk, method="PUT", **further)


def listed(ask):
    answer = ask("/conversations")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.split("\n") if line]


def test_what_is_written_is_found_again(ask, folder):
    assert listed(ask) == []
    other = TALK | {"id": "B", "settings": {"system": "Be brief."}}
    for talk in (TALK, other):
        assert put(ask, talk).json() == {"id": talk["id"]}
    assert sorted(listed(ask), key=lambda talk: talk["id"]) == [TALK, other]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    changed = TALK | {"title": "Two lines"}
    put(ask, changed)
    assert changed in listed(ask)
    for _ in range(2):
        assert ask("/conversations/B", method="DELETE").status_code == 200
    assert listed(ask) == [changed]


def test_while_it_is_written_a_conversation_takes_the_memory_that_is_counted(server, monkeypatch):
    go, writing = threading.Event(), []

    def write(path, text):
        writing.append(path)
        go.wait()

    async def work():
        talks = [TALK | {"id": str(i), "messages": [{"a": 1}] * 7000} for i in range(4)]
        tracemalloc.start()
        asked = [
            asyncio.create_task(fetched(server, f"/conversations/{talk['id']}", talk, method="PUT")) for talk in talks
        ]
        while len(writing) < len(talks):
            await asyncio.sleep(0.01)
        found, counted = tracemalloc.get_traced_memory()[0], server.state.memory.held
        tracemalloc.stop()
        go.set()
        await asyncio.gather(*asked)
        assert 4 * 56_000 < counted < found < 5 * counted  # the client holds its bodies, too

    monkeypatch.setattr(conversations, "_write", write)
    asyncio.run(work())


@pytest.mark.parametrize("name", ["..", "a.b", "%2e%2e%2fx", "a" * 65, "%C3%A4", "a%00b", "a%0A"])
def test_no_other_file_can_be_named(ask, folder, name):
    for method, body in (("PUT", TALK), ("DELETE", None)):
        answer = ask(f"/conversations/{name}", body, method=method)
        assert answer.status_code in (400, 404, 405), answer.text
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (TALK | {"id": "other"}, 400, "id"),
        ({"id": "17-a", "at": 1}, 400, "messages"),
        (TALK | {"messages": ["text"]}, 400, "messages.0"),
        (TALK | {"at": "now"}, 400, "at"),
        ("[1]", 400, None),
        (TALK | {"draft": "x" * (1 << 16)}, 413, None),
    ],
)
def test_what_is_no_conversation_is_refused(ask, folder, body, status, param):
    answer = ask("/conversations/17-a", body, method="PUT")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert list(folder.iterdir()) == []


def test_a_folder_holds_so_many(ask, monkeypatch):
    monkeypatch.setattr(conversations, "MOST", 1)
    put(ask, TALK)
    refused = put(ask, TALK | {"id": "B"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_room")
    assert put(ask, TALK | {"title": "again"}).status_code == 200


def test_files_of_others_are_left_alone(ask, folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "broken.json").write_text('{"id": "bro')
    put(ask, TALK)
    lines = [line for line in ask("/conversations").text.split("\n") if line]
    assert sorted(lines, key=len)[0] == '{"id": "bro'  # the page passes over it
    assert json.loads(max(lines, key=len)) == TALK


def test_a_disk_that_takes_nothing(ask, monkeypatch, folder):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversations, "atomic_write", full)
    refused = put(ask, TALK)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "No space left" in refused.json()["error"]["message"]
    assert str(folder) not in refused.text


def test_a_server_keeps_none_unless_its_owner_says_so(open_server):
    with open_server() as application:
        for method in ("GET", "PUT", "DELETE"):
            path = "/conversations" if method == "GET" else "/conversations/17-a"
            answer = asyncio.run(fetched(application, path, TALK if method == "PUT" else None, method=method))
            assert answer.status_code == 404
            assert "--conversations DIR" in answer.json()["error"]["message"]
        assert asyncio.run(fetched(application, "/props")).json()["conversations"] is False


def test_a_key_and_the_own_origin_are_asked_for(open_server, tmp_path):
    with open_server(conversations_dir=tmp_path, api_keys=("secret",)) as application:

        def status(**headers):
            return asyncio.run(fetched(application, "/conversations", headers=headers)).status_code

        assert status() == 401
        assert status(Authorization="Bearer secret") == 200
        assert status(Authorization="Bearer secret", Origin="https://elsewhere.example") == 403
