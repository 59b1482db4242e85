"""`edgekv mcp`: its tools, by the client of the official package."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from command import SMALL, words

import edgekv
from edgekv.store.session_names import saved_names

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """A user's data folder of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def model(tiny_model):
    """Path of a model that answers in seconds."""
    return tiny_model(n_layer=2, n_ctx_train=2048)


@pytest.fixture
def folder(tmp_path):
    """The folder that the server may read, with a text in it."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a book.txt").write_text(words(200))
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "docs"


def called(server, *calls):
    """The results of calls of tools, one after the other: text, and True for an error."""

    async def run():
        async with mcp.Client(server) as client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [("".join(part.text for part in it.content), bool(it.is_error)) for it in results]

    return asyncio.run(run())


def test_a_document_is_read_once_and_asked_again_and_again(model, folder):
    from edgekv.server.mcp_documents import ANSWER_TOKENS, Documents, mcp_server

    ask = "ask_document", {"name": "a-book", "question": "What?"}
    path = str(folder / "a book.txt")
    options = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1}
    with edgekv.Runtime(model, **options) as rt:
        server = mcp_server(Documents(rt, [folder]))
        read, listed, first, second, before = called(
            server,
            ("read_document", {"path": path}),
            ("list_documents", {}),
            ask,
            ask,
            ("read_document", {"path": path}),
        )
        with rt.session() as session:
            session.read(files=[path])
            greedy = edgekv.Sampling(temperature=0)
            expected = "".join(session.ask("What?", max_tokens=ANSWER_TOKENS, sampling=greedy))
    assert read[0].startswith("read a book.txt as 'a-book': ")
    assert listed == ("a-book", False)
    assert first == second == (expected, False)
    assert "was read before" in before[0]
    assert saved_names() == ["a-book"]


def test_a_document_keeps_its_archive(model, folder):
    from edgekv.server.mcp_documents import ANSWER_TOKENS, Documents, mcp_server

    path = str(folder / "a book.txt")
    options = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1, "policy": "keydiff", "archive": "8MiB"}
    ask = "ask_document", {"name": "a-book", "question": "What?"}
    with edgekv.Runtime(model, **options) as rt:
        read, first, second = called(mcp_server(Documents(rt, [folder])), ("read_document", {"path": path}), ask, ask)
        with rt.session() as session:
            session.read(files=[path])
            greedy = edgekv.Sampling(temperature=0)
            expected = "".join(session.ask("What?", max_tokens=ANSWER_TOKENS, sampling=greedy))
            assert session.stats.recalls > 0
    assert not read[1]
    assert first == second == (expected, False)


def test_what_is_refused(model, folder):
    from edgekv.server.mcp_documents import Documents, mcp_server

    with edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt:
        with rt.session(history=True) as session:
            list(session.chat("Hello", max_tokens=2))
            (folder.parent / "data" / "edgekv" / "sessions").mkdir(parents=True)
            session.save(folder.parent / "data" / "edgekv" / "sessions" / "talk.session")
        server = mcp_server(Documents(rt, [folder]))
        path = str(folder / "a book.txt")
        refused = called(
            server,
            ("read_document", {"path": str(folder.parent / "secret.txt")}),
            ("read_document", {"path": f"{folder}/../secret.txt"}),
            ("read_document", {"path": str(folder)}),
            ("read_document", {"path": path, "name": "a/b"}),
            ("read_document", {"path": path, "name": "talk", "again": True}),
            ("ask_document", {"name": "nothing", "question": "What?"}),
        )
        assert called(server, ("list_documents", {})) == [("", False)]  # a chat is no document
    expected = (
        "is not in ",
        "is not in ",
        "is not a file",
        "cannot name",
        "is a chat, which stays",
        "no saved session",
    )
    for (message, is_error), words_of_it in zip(refused, expected, strict=True):
        assert (is_error, words_of_it in message) == (True, True), message


def test_the_command_speaks_over_its_standard_streams(model, folder):
    """A client starts it as a program."""
    code = "import sys; from edgekv.cli.main import main; sys.exit(main())"
    arguments = ["-c", code, "mcp", "-m", str(model), *SMALL, "--folder", str(folder)]
    server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    read, asked = called(
        server,
        ("read_document", {"path": str(folder / "a book.txt"), "name": "book"}),
        ("ask_document", {"name": "book", "question": "What?"}),
    )
    assert read[0].startswith("read a book.txt as 'book'")
    assert not asked[1]
