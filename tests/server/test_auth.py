"""Access to the server: keys, hosts and errors."""

from __future__ import annotations

import asyncio

import pytest
from asgi import fetched
from starlette.applications import Starlette
from starlette.routing import Mount
from test_chat_completions import GREEDY, HELLO, PATH

import edgekv
from edgekv.server import Settings


def get(application, path="/v1/models", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(fetched(application, path, headers=headers))


@pytest.fixture(scope="module")
def guarded(open_server):
    with open_server(api_keys=("first", "zwölf"), hosts=("localhost", "127.0.0.1", "::1")) as application:
        yield application


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "first"}, 401),
        ({"Authorization": "Basic first"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer first"}, 200),
        ({"authorization": "bearer  first "}, 200),
        ({"x-api-key": "first"}, 200),
        ({"x-api-key": "firs"}, 401),
    ],
    ids=str,
)
def test_keys(guarded, headers, status):
    answer = asyncio.run(fetched(guarded, "/v1/models", headers=headers))
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_a_key_of_any_letters(guarded):
    answer = asyncio.run(fetched(guarded, "/v1/models", headers={"x-api-key": "zwölf".encode()}))
    assert answer.status_code == 200


def test_health_needs_no_key(guarded):
    assert get(guarded, "/health").status_code == 200
    assert get(guarded, "/metrics").status_code == 401


def test_an_application_below_another_has_its_own_addresses(guarded):
    host = Starlette(routes=[Mount("/model", guarded)])
    assert get(host, "/model/health").status_code == 200
    assert get(host, "/model/").text.startswith("<!DOCTYPE html>")
    assert get(host, "/model/v1/models").status_code == 401
    assert get(host, "/model/v1/messages").json()["type"] == "error"
    assert "key" in get(host, "/model/api/chat").json()["error"]
    assert 'path="/v1/models",status="401"' in get(host, "/model/metrics", x_api_key="first").text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8080", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("user@evil.example", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_hosts(guarded, host, status):
    assert get(guarded, host=host, x_api_key="first").status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:81", 403),
        ("https://chat.example", 403),
        ("http://[::1", 403),
        ("", 403),
    ],
)
def test_origins(server, origin, status):
    answer = get(server, origin=origin)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


def test_an_origin_that_is_named(open_server):
    with open_server(origins=("https://chat.example",), api_keys=("k",)) as application:
        answer = get(application, origin="https://chat.example", x_api_key="k")
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://chat.example")
        assert get(application, origin="https://other.example", x_api_key="k").status_code == 403
        before = {
            "origin": "https://chat.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        assert asyncio.run(fetched(application, PATH, method="OPTIONS", headers=before)).status_code == 200


def test_another_address_needs_a_key():
    assert "192.168.1.5" in Settings.at("192.168.1.5", api_keys=("k",)).hosts
    assert Settings.at("127.0.0.1").hosts[:3] == ("localhost", "127.0.0.1", "::1")
    assert Settings.at("0.0.0.0", api_keys=("k",)).hosts == ()
    assert Settings.at("::", api_keys=("k",), hosts=("box.lan",)).hosts == ("box.lan",)
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org", ""):
        with pytest.raises(edgekv.ConfigError, match="lets other machines ask; give an api_key"):
            Settings.at(host)
    with pytest.raises(edgekv.ConfigError, match="protects nothing"):
        Settings(api_keys=("",))


def test_a_body_fits_in_the_memory_of_all_bodies():
    with pytest.raises(edgekv.ConfigError, match=r"max_body=8388608; give at least 25165824, or a smaller max_body"):
        Settings(max_body=8 << 20)
    assert Settings(max_body=8 << 20, bodies=24 << 20)


def test_no_error_tells_a_path(server, ask, monkeypatch):
    """Every error tells the client what to do, and nothing of this machine."""
    errors = [
        edgekv.SessionFileError("'/home/me/x.session' is full"),
        edgekv.SwapError("swap_dir='/var/tmp/x' does not take"),
        edgekv.NativeError("/usr/lib/libllama.so"),
        edgekv.WorkerError("the worker process 123 died"),
        RuntimeError("/etc/passwd"),
    ]
    for error in errors:

        def fails(*_, error=error, **__):
            raise error

        monkeypatch.setattr(edgekv.Session, "continue_from", fails)
        answer = ask(PATH, {"messages": HELLO, **GREEDY})
        assert answer.status_code in (500, 503)
        assert "/" not in answer.text
        assert answer.status_code == 500 or int(answer.headers["retry-after"]) > 0
