"""The choice of the session that a request goes on with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asgi import fetched
from diagonals import HERE_BY_DAY
from history_steps import noted_steps
from test_chat_completions import GREEDY, PATH
from waiting import until

import edgekv
from edgekv.server.application import Application, Settings
from edgekv.server.session_pool import SessionPool
from edgekv.server.warmup_requests import warm_up, warmup_runtime

pytestmark = pytest.mark.usefixtures("talkative")


def words(n, word="word"):
    return " ".join(f"{word}{i % 97}" for i in range(n))


def kill(runtime):
    """Kill the worker, and wait until it has ended."""
    os.kill(runtime.worker_pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    until(lambda: not runtime.alive, "the end of a worker", limit_s=60)


class Client:
    """A conversation, resent with every message."""

    def __init__(self, application, *messages):
        self.application = application
        self.messages = list(messages)

    def say(self, text, **wishes):
        self.messages.append({"role": "user", "content": text})
        reply = asyncio.run(fetched(self.application, PATH, {"messages": self.messages, **GREEDY, **wishes}))
        assert reply.status_code == 200, reply.text
        self.messages.append(reply.json()["choices"][0]["message"])
        usage = reply.json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], reply.json()["edgekv"]


def idle(application):
    """Wait until the conversation is saved after its reply."""
    while application.state.queue.n_answered:
        time.sleep(0.01)


@pytest.fixture(params=HERE_BY_DAY, ids=["here", "isolated"])
def application(open_server, request, tmp_path):
    with open_server(sessions=3, state_dir=tmp_path, options={"isolated": request.param, "budget": 900}) as made:
        yield made


def test_every_request_of_the_warm_up_is_answered(caplog):
    """Otherwise a plan would not count what replies import."""
    warm_up(lambda: Application(SessionPool(warmup_runtime, max_sessions=1), Settings()))
    assert caplog.records == []


def test_conversations_go_on_beside_each_other(application):
    clients = [Client(application) for _ in range(3)]
    for i, client in enumerate(clients):
        assert client.say(f"{i} begins {words(20)}")[0] < 20
    for _ in range(2):
        for client in clients:
            before = len(client.messages)
            cached, total, _ = client.say("And then?")
            assert total - cached < 40, before
    assert len(application.state.pool.sessions) == 3


def test_side_requests_leave_the_conversation(application):
    """Side requests have a session of their own, and end each other's, not that of the conversation."""
    main = Client(application)
    main.say(words(40))
    main.say("Go on")
    for i in range(6):
        Client(application).say(f"Find a title for this chat {i}: {words(40)}")
    cached, total, _ = main.say("And then?")
    assert total - cached < 40
    assert len(application.state.pool.sessions) == 3


def test_a_last_message_that_is_edited(application):
    client = Client(application)
    client.say(words(40))
    client.say("A question")
    del client.messages[-2:]
    cached, total, _ = client.say("Another question")
    assert total - cached < 40
    assert len(application.state.pool.sessions) == 1


def test_roles_in_any_order(application):
    system, user = ({"role": role, "content": f"{role} {words(10)}"} for role in ("system", "user"))
    client = Client(application, system, user, user)
    client.say("Now")
    cached, total, _ = client.say("And then?")
    assert total - cached < 40
    assert application.state.pool.sessions[0].system == system["content"]
    Client(application, {"role": "system", "content": words(300)}).say("Too long a message to be kept for ever")
    assert application.state.pool.sessions[1].system is None


def test_long_prompts_are_read_and_reported(open_server):
    with open_server() as application:
        client = Client(application, {"role": "user", "content": words(4000)})
        _, total, told = client.say("What was it?")
        assert total > 4000
        assert told["seen"] == total + 11
        assert told["evicted"] == told["seen"] - told["kept"] > 3900
        assert told["evictions"] > 50
        body = {"messages": client.messages, "edgekv": {"on_overflow": "error"}}
        refused = asyncio.run(fetched(application, PATH, body))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_request_is_read_with_its_parts(open_server):
    body = {
        "messages": [{"role": "user", "content": words(300)}],
        "edgekv": {"focus": ["What was it?", "Who?"]},
        **GREEDY,
    }
    with open_server(options={"probe_tokens": 48}) as application:
        assert asyncio.run(fetched(application, PATH, body)).status_code == 200
        assert application.state.pool.sessions[-1].stats.probes > 0
        long = body | {"edgekv": {"focus": ["What was it? " * 9] * 2}}
        refused = asyncio.run(fetched(application, PATH, long))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
        assert "focus has 2 parts" in refused.json()["error"]["message"]


def test_focus_and_its_switches(open_server):
    probed = []
    with open_server() as application:
        pool = application.state.pool
        for focus in (None, False, True):
            client = Client(application, {"role": "user", "content": f"{focus} {words(300)}"})
            client.say("What was it?", **({} if focus is None else {"edgekv": {"focus": focus}}))
            probed.append(pool.sessions[-1].stats.probes > 0)
    assert probed == [True, False, True]
    with open_server(focus=False) as application:
        Client(application, {"role": "user", "content": words(300)}).say("What was it?")
        assert application.state.pool.sessions[-1].stats.probes == 0
    with open_server(options={"focus": False}) as application:
        Client(application, {"role": "user", "content": words(300)}).say("What was it?")


def test_sessions_outlive_a_server(open_server, tmp_path, caplog):
    with open_server(state_dir=tmp_path) as application:
        client = Client(application, {"role": "system", "content": "Brief."})
        client.say(words(20))
    kept = tmp_path / "conversations"
    assert [path.suffix for path in kept.iterdir()] == [".session"]
    broken = [kept / f"{number:06}.session" for number in (997, 998, 999)]
    broken[0].write_bytes(b"no session")
    broken[1].symlink_to(tmp_path / "gone")
    broken[2].mkdir()
    (broken[2] / "of somebody else").touch()
    with open_server(state_dir=tmp_path) as application:
        assert len(application.state.pool.sessions) == 1
        assert all(f"{path} is not gone on with" in caplog.text for path in broken)
        client.application = application
        cached, total, _ = client.say("And then?")
        assert total - cached < 40


def test_a_saved_session_that_cannot_be_removed_is_no_matter_of_the_next_request(open_server, tmp_path, monkeypatch):
    with open_server(sessions=1, state_dir=tmp_path, options={"budget": 900}) as application:
        Client(application).say(f"One begins {words(20)}")
        monkeypatch.setattr(Path, "unlink", _refused)
        Client(application).say(f"Another begins {words(20, 'other')}")
        monkeypatch.undo()


def _refused(path, missing_ok=False):
    raise PermissionError(13, "Permission denied")


@pytest.fixture
def saving_server(open_server, tmp_path):
    with open_server(state_dir=tmp_path, options={"isolated": True, "budget": 900}) as made:
        yield made


def test_a_worker_that_dies_while_idle_is_replaced_before_the_next_request(saving_server):
    client, pool = Client(saving_server), saving_server.state.pool
    client.say(words(20))
    for n_deaths in (1, 2):
        idle(saving_server)
        kill(pool.runtime)
        cached, total, _ = client.say("And then?")
        assert total - cached < 40
        assert pool.n_restarts == n_deaths
    assert "edgekv_worker_restarts 2.0" in asyncio.run(fetched(saving_server, "/metrics")).text


def test_a_request_fails_at_which_the_worker_dies_and_its_conversation_goes_on(saving_server, monkeypatch):
    """The client is told before another worker starts, which takes a while."""
    client, pool = Client(saving_server), saving_server.state.pool
    client.say(words(20))
    idle(saving_server)
    stored, open_runtime, told = pool.replier.stored, pool._open_runtime, []

    def dies(*arguments):
        kill(pool.runtime)
        return stored(*arguments)

    def opened_later():
        assert answer.result(60).status_code == 503
        told.append(answer.result().json()["error"]["code"])
        return open_runtime()

    monkeypatch.setattr(pool.replier, "stored", dies)
    monkeypatch.setattr(pool, "_open_runtime", opened_later)
    with ThreadPoolExecutor(1) as threads:
        body = {"messages": client.messages, **GREEDY}
        answer = threads.submit(lambda: asyncio.run(fetched(saving_server, PATH, body)))
        answer.result()
    cached, total, _ = client.say("And then?")
    assert total - cached < 40
    assert (told, pool.n_restarts) == (["model_restarted"], 1)


def test_a_worker_that_dies_while_it_saves_is_no_matter_of_the_next_request(open_server, tmp_path, monkeypatch):
    save, deaths = edgekv.Session.save, [True]
    options = {"isolated": True, "budget": 900, "archive": "off"}  # a session without one is saved whole
    with open_server(state_dir=tmp_path, options=options) as application:
        pool = application.state.pool

        def dies(session, path, **options):
            if deaths and pool.runtime.worker_pid:
                deaths.pop()
                kill(pool.runtime)
            save(session, path, **options)

        client = Client(application)
        client.say(words(20))
        idle(application)
        monkeypatch.setattr(edgekv.Session, "save", dies)
        client.say("And then?")
        client.say("And then?")
        idle(application)
        assert pool.n_restarts == 1
        kill(pool.runtime)
    assert list(tmp_path.iterdir())


@pytest.fixture
def failing_server(tiny_model, tmp_path):
    """A function to an application whose runtime, once it is open, fails to open again with these errors."""

    @contextlib.contextmanager
    def opened(*errors):
        path, later = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64), [None, *errors]

        def open_runtime():
            error = later.pop(0) if later else None
            if error is not None:
                raise error
            return edgekv.Runtime(path, memory="4GiB", budget=900, block=32, threads=1, isolated=True)

        application = Application.over(open_runtime, Settings(hosts=(), state_dir=tmp_path, swap_dir=tmp_path))
        try:
            yield application
        finally:
            application.close()

    return opened


def test_a_runtime_that_cannot_be_opened_again_is_no_fault_of_a_request(failing_server):
    with failing_server(*[edgekv.ConfigError("swap_dir='/var/tmp/x' cannot be used")] * 2) as application:
        pool, body = application.state.pool, {"messages": [{"role": "user", "content": "Hello"}], **GREEDY}
        kill(pool.runtime)
        answers = [asyncio.run(fetched(application, PATH, body)) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [500, 500, 200]
        assert "/var" not in answers[0].text + answers[1].text


def test_a_worker_that_does_not_start_is_tried_again(failing_server):
    with failing_server(*[edgekv.WorkerError("no memory for a process")] * 2) as application:
        pool, body = application.state.pool, {"messages": [{"role": "user", "content": "Hello"}], **GREEDY}
        kill(pool.runtime)
        answers = [asyncio.run(fetched(application, PATH, body)).status_code for _ in range(3)]
        assert answers == [503, 503, 200]


def test_a_history_is_checked_rendered_and_tokenised_once(open_server, monkeypatch):
    """However many sessions it is compared with."""
    with open_server(options={"budget": 512}) as application:
        for i in range(3):
            Client(application).say(f"{i} begins {words(20)}")
        assert len(application.state.pool.sessions) == 3
        idle(application)
        done = noted_steps(monkeypatch, "unique")
        Client(application).say("a unique text")
    assert done == ["checked", "rendered", "tokenised"]
