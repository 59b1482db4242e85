"""Requests that are answered at a time: what each is told, who waits, and how many slots a server takes."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from asgi import fetched
from test_chat_completions import PATH

from edgekv.api.reply_request import Ended, Piece, ReplyRequest
from edgekv.errors import ConfigError
from edgekv.generation.sampler import Sampling
from edgekv.options import Options
from edgekv.server import Settings
from edgekv.server.cancel_flag import CancelFlag
from edgekv.server.session_pool import SessionPool
from edgekv.server.slots import n_slots

pytestmark = pytest.mark.usefixtures("talkative")

WAYS = (
    {"temperature": 0},
    {"temperature": 1.2, "seed": 3},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "response_format": {"type": "json_object"}, "max_tokens": 60},
)
PLAN = {"memory": "4GiB", "block": 32, "threads": 1, "recent": 16}


# Products of these weights are to the bit what they are alone, whichever requests happen to share a step.
ALIKE = {"quantization": "Q8_0"}


@pytest.fixture
def application(open_server):
    with open_server(options={"parallel": 4, "repack": False}, **ALIKE) as made:
        yield made


class Asking:
    """A request in a thread of its own. It stays at its first piece until `go` is set, so it is under way till then."""

    def __init__(self, pool, *texts, go=None, **wishes):
        said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        self._request = ReplyRequest(messages=tuple(said), max_tokens=6, sampling=Sampling(temperature=0), **wishes)
        self._go = go
        self.begun = threading.Event()
        self.stop = CancelFlag()
        self.said, self.usage = "", None
        answering = pool.answer(self._request, self._tell, self.stop)
        self._thread = threading.Thread(target=lambda: [*answering], daemon=True)
        self._thread.start()

    def _tell(self, event):
        if isinstance(event, Piece):
            self.said += event.text
            self.begun.set()
            if self._go is not None:
                self._go.wait()
        elif isinstance(event, Ended):
            self.usage = event.usage

    def ended(self):
        self._thread.join()
        return self


def all_at_once(application, bodies):
    async def together():
        return await asyncio.gather(*(fetched(application, PATH, body) for body in bodies))

    answers = asyncio.run(together())
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    return [answer.json()["choices"][0] for answer in answers]


def probabilities(choice):
    return [token["logprob"] for token in (choice["logprobs"] or {"content": ()})["content"]]


def test_each_is_told_what_it_is_told_alone(application, open_server):
    """More than there are slots, of every kind; texts are longer than the cells, and bear a mark of their own."""
    bodies = [
        {"messages": [{"role": "user", "content": f"{i}{j} client " * (2 + 30 * (i % 3))}], "max_tokens": 9, **way}
        for i in range(3)
        for j, way in enumerate(WAYS)
    ]
    together = all_at_once(application, bodies)
    with open_server(options={"repack": False}, **ALIKE) as server:
        alone = [all_at_once(server, [body])[0] for body in bodies]
    assert [choice["message"] for choice in together] == [choice["message"] for choice in alone]
    assert [*map(probabilities, together)] == [*map(probabilities, alone)]
    assert len({choice["message"]["content"] for choice in together}) > 6


@pytest.mark.parametrize(
    "quantization",
    ["Q8_0", pytest.param("F16", marks=pytest.mark.nightly), pytest.param("F32", marks=pytest.mark.nightly)],
)
def test_eight_greedy_clients_are_told_the_same_at_once_and_one_at_a_time_with_any_block(open_server, quantization):
    """Prompts are shorter and longer than a block, so their tokens are decoded with few others and with many."""
    bodies = [
        {"messages": [{"role": "user", "content": f"{i} asks. " * (1 + 3 * i)}], "temperature": 0, "max_tokens": 24}
        for i in range(8)
    ]
    told = []
    for block, parallel in [(32, 1), *((block, 8) for block in (32, 64, 128, 512))]:
        options = {"parallel": parallel, "block": block, "budget": 300}  # nothing is evicted
        with open_server(options=options, quantization=quantization) as server:
            told.append(all_at_once(server, [body | {"logprobs": True} for body in bodies]))
    assert all(choices == told[0] for choices in told)
    assert len({choice["message"]["content"] for choice in told[0]}) > 4


def test_a_short_request_passes_a_long_one(application):
    go = threading.Event()
    long = Asking(application.state.pool, "A long story", go=go)
    long.begun.wait()
    short = Asking(application.state.pool, "A title").ended()
    assert (short.usage.completion_tokens, long.usage) == (6, None)
    go.set()
    assert long.ended().usage.completion_tokens == 6


def test_every_conversation_goes_on_with_its_own_session(application):
    """Also when all ask again as soon as they see the end of the reply, and when others were busy then."""
    said = [f"{i} begins. " * 12 for i in range(4)]

    async def talk(text):
        messages, found = [{"role": "user", "content": text}], []
        for _ in range(3):
            answer = await fetched(application, PATH, {"messages": messages, "temperature": 0, "max_tokens": 6})
            usage = answer.json()["usage"]
            found.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        return found

    async def together():
        return await asyncio.gather(*map(talk, said))

    for first, *later in asyncio.run(together()):
        assert first > 60
        assert all(n < 40 for n in later)
    assert len(application.state.pool.sessions) == 4


def test_whoever_stops_a_reply_and_asks_again_finds_what_was_read(application):
    text, go = "a long text " * 40, threading.Event()
    stopped = Asking(application.state.pool, text, go=go)
    stopped.begun.wait()
    stopped.stop.set()
    again = Asking(application.state.pool, text, stopped.said, "Go on")
    go.set()
    assert again.ended().usage.cached_tokens > 100
    assert stopped.ended().usage.completion_tokens < 6
    assert len(application.state.pool.sessions) == 1


def test_a_session_under_way_is_not_ended_for_another(open_server):
    go = threading.Event()
    with open_server(sessions=2, options={"parallel": 2}) as application:
        pool = application.state.pool
        under_way = Asking(pool, "The first", go=go)
        under_way.begun.wait()
        others = [Asking(pool, f"Another one, {i}").ended().said for i in range(3)]
        assert len(pool.sessions) == 2
        go.set()
        expected = under_way.ended().said
        assert all(others)
        assert len(expected) > 0
        assert Asking(pool, "The first").ended().said == expected


def test_metrics_and_props_tell_of_slots(application):
    go = threading.Event()
    requests = [application.state.queue.n_answered]
    under_way = Asking(application.state.pool, "The first", go=go)
    under_way.begun.wait()
    metrics = asyncio.run(fetched(application, "/metrics")).text.splitlines()
    assert "edgekv_slots 4.0" in metrics
    assert f"edgekv_busy {float(requests[0])}" in metrics
    assert asyncio.run(fetched(application, "/props")).json()["parallel"] == 4
    go.set()
    under_way.ended()


def test_fewer_conversations_than_slots_are_refused(open_server):
    with (
        pytest.raises(ConfigError, match=r"sessions=3 keeps fewer conversations than parallel=4 .* at least 4"),
        open_server(sessions=3, options={"parallel": 4}),
    ):
        pass
    assert Settings(sessions=4).check_slots(4) is None


@pytest.mark.parametrize(
    ("options", "most", "expected"),
    [
        ({"budget": 64}, 8, 8),
        ({"budget": 64}, 3, 2),
        ({"budget": 64}, 1, 1),
        ({}, 8, 8),  # every slot has the whole trained context
        ({"budget": 64, "isolated": True}, 8, 1),
        ({"budget": 64, "prompt_lookup": "on"}, 8, 8),
        ({"budget": 64, "block": 4}, 8, 4),  # a step takes at most a block
    ],
)
def test_as_many_slots_as_cost_no_conversation_its_cells(tiny_model, options, most, expected):
    assert n_slots(tiny_model(n_ctx_train=2048), most, **PLAN | options) == expected


def test_slots_share_a_ceiling_that_is_short(tiny_model):
    """Under this one, a slot of two would have less than one alone has."""
    import edgekv

    path = tiny_model(n_ctx_train=2048, n_layer=4, n_embd=256, n_head=4, n_head_kv=4, head_dim=64)
    whole = edgekv.plan(path, **PLAN)
    short = whole.peak_bytes - whole.kv_bytes // 2
    assert n_slots(path, 8, **PLAN | {"memory": short, "kv_type": "f16"}) == 1


def test_a_long_conversation_gets_no_slot_beside_it(tiny_model):
    """Two slots of 4,096 cells would fit here, and a prompt of 6,000 tokens would be evicted."""
    import edgekv

    path = tiny_model(n_ctx_train=16384)
    alone = edgekv.plan(path, **PLAN)
    assert alone.budget_cells > 2 * 4096
    tight = alone.peak_bytes + 4 * 4096 * alone.cell_bytes // 8
    assert n_slots(path, 8, **PLAN | {"memory": tight}) == 1


@pytest.mark.parametrize(
    ("n_slots_now", "n_cells", "n_ctx_train", "alone"),
    [
        (2, 100, 2048, 200),
        (1, 100, 2048, None),
        (2, 70, 2048, None),
        (2, 200, 2048, None),
        (2, 100, 750, 174),  # beside a block and a probe the model has no more positions
        (2, 100, 700, None),
    ],
)
def test_the_log_tells_of_an_eviction_that_one_slot_would_have_spared(caplog, n_slots_now, n_cells, n_ctx_train, alone):
    session = SimpleNamespace(n_past=150, stats=SimpleNamespace(evictions=1))
    options = Options(memory="1GiB", parallel=n_slots_now, block=512)
    plan = SimpleNamespace(budget_cells=n_cells, n_ctx_train=n_ctx_train)
    SessionPool._tell_eviction(SimpleNamespace(runtime=SimpleNamespace(options=options, plan=plan)), session)
    expected = (
        "a conversation of 150 tokens was evicted to the 100 cells of one of 2 slots; "
        f"parallel=1 would give it some {alone} cells"
    )
    assert [record.getMessage() for record in caplog.records] == ([expected] if alone else [])
