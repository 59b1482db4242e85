"""`edgekv serve`, asked over the network."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading

import httpx
import pytest
from asgi import said
from children import LIMIT_S, started
from command import COMMAND, SMALL, run_here
from test_chat_completions import GREEDY, HELLO, PATH
from waiting import until


@contextlib.contextmanager
def serving(*options, small=SMALL):
    """A running server and where it is asked; what it logs is read along."""
    command = [*COMMAND, "serve", *small, "--port", "0", *options]
    with started(command, stderr=subprocess.PIPE, text=True) as process:
        lines = iter(process.stderr.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http://\S+(?=/v1)", line)))
        logged = []
        reader = threading.Thread(target=lambda: logged.extend(lines))
        reader.start()
        try:
            yield process, url, logged
        finally:
            process.kill()
            reader.join()


def until_said(url, metric):
    """Wait until the server's metrics say so."""
    until(lambda: metric in httpx.get(f"{url}/metrics", timeout=LIMIT_S).text, metric, LIMIT_S)


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_ctx_train=2048)


def test_a_server_from_beginning_to_end(model, tmp_path):
    """Asked, and ended by SIGTERM while it replies: that reply comes to its end, and the conversation is kept.

    A server before it was killed, and left its temporary folder.
    """
    options = ("-m", model, "--state-dir", tmp_path / "kept", "--swap-dir", tmp_path)
    with serving(*options):
        pass
    assert len(list(tmp_path.iterdir())) == 3  # a folder, its lock, and that of kept sessions
    body = {"messages": HELLO, "stream": True, "temperature": 1, "max_tokens": 400}
    with serving(*options) as (process, url, logged):
        with httpx.stream("POST", url + PATH, json=body, timeout=LIMIT_S) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            process.send_signal(signal.SIGTERM)
            text += "".join(pieces)
        assert text.endswith("data: [DONE]\n\n")
        assert process.wait(LIMIT_S) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
    assert any(f"POST {PATH} 200" in line for line in logged)
    assert not any("Hello" in line for line in logged)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert len(list((tmp_path / "kept" / "conversations").iterdir())) == 1
    with serving(*options, "--isolated") as (process, url, _):
        assert "edgekv_sessions 1.0" in httpx.get(f"{url}/metrics", timeout=LIMIT_S).text
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130


def test_an_address_that_others_reach_needs_a_key(model):
    ended = subprocess.run(
        [*COMMAND, "serve", *SMALL, "-m", model, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 2
    assert "--host '0.0.0.0' lets other machines ask; give an --api-key" in ended.stderr


def test_folders_that_cannot_be_made(model, tmp_path):
    (tmp_path / "file").touch()
    for option in ("--state-dir", "--swap-dir"):
        ended = subprocess.run(
            [*COMMAND, "serve", *SMALL, "-m", model, option, tmp_path / "file" / "folder"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert ended.returncode == 2
        assert f"{option} '{tmp_path}" in ended.stderr


def test_a_disk_limit_below_a_conversation_is_refused(model):
    ended = run_here("serve", *SMALL, "-m", model, "--swap-bytes", "1KiB")
    assert ended.returncode == 2
    assert "--swap-bytes 1.0 KiB does not hold a session" in ended.stderr


def test_a_client_that_leaves_makes_way(model):
    """The reply has no end, so the client leaves in its midst or while the long text is read."""
    with serving("-m", model) as (_, url, _):
        long = [{"role": "user", "content": "word " * 100_000}]
        address = httpx.URL(url)
        raw = json.dumps({"messages": long, "ignore_eos": True, "max_tokens": 1 << 30}).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
        )
        with socket.create_connection((address.host, address.port)) as left:
            left.sendall(head.encode() + b"\r\n\r\n" + raw)
            until_said(url, "edgekv_busy 1.0")
        *_, done = said(httpx.post(url + PATH, json={"messages": HELLO, "stream": True, **GREEDY}, timeout=LIMIT_S))
        assert done == "[DONE]"
        until_said(url, "edgekv_busy 0.0")  # the conversation is put away after its last word
