"""A batch over a tiny model: every request is answered once, and the same whoever does it and in whatever order."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace

import pytest

pytest.importorskip("starlette")
from batch_files import CHAT, MODEL, RESPONSES, SMALL, TEXT, about_documents, chat, rows, said, words, write
from diagonals import by_night
from lent_device import lent_device

import edgekv
from edgekv.batch.batch import Batch
from edgekv.batch.results_file import digest_of
from edgekv.batch.worker import LocalWorker, Setup
from edgekv.errors import ConfigError, InputError
from edgekv.planning.planner import make_plan


@pytest.fixture
def opened(tiny_model, tmp_path):
    """A function that opens a batch over a tiny model; None = the requests are there already."""
    model = str(tiny_model(**MODEL))

    def open_batch(requests=None, results="results.jsonl", **options):
        if requests is not None:
            write(tmp_path / "requests.jsonl", requests)
        return Batch(tmp_path / "requests.jsonl", tmp_path / results, model, **(SMALL | options))

    return open_batch


@pytest.fixture
def answer(opened, tmp_path):
    """A function that answers requests; returns the results, and what it took."""

    def run(requests=None, results="results.jsonl", *, workers=1, **options):
        with opened(requests, results, **options) as batch:
            numbers = [answered.number for answered in batch.run(workers=workers)]
        assert sorted(numbers) == list(range(len(batch)))
        return rows(tmp_path / results), batch.stats

    return run


@pytest.fixture(autouse=True)
def near(request, monkeypatch):
    """Workers have their models in this process, where they begin sooner and say the same, and plans are made here; not
    in FAR tests."""
    begin = LocalWorker.__init__

    def begin_here(worker, setup, *shared):
        begin(worker, replace(setup, options=setup.options | {"isolated": False}), *shared)

    if getattr(request, "param", True):
        monkeypatch.setattr(LocalWorker, "__init__", begin_here)
        monkeypatch.setattr("edgekv.model_plans.plan_for", make_plan)


FAR = pytest.mark.parametrize("near", [pytest.param(False, id="far")], indirect=True)

REQUESTS = [
    *about_documents(3, 4),
    chat("alone", "Hello"),
    chat("with-system", "Hello", system="Be brief."),
    chat("long-alone", words(200, "z"), stop=["q"]),
    {"custom_id": "text", "method": "POST", "url": TEXT, "body": {"prompt": "One two three", "max_tokens": 5}},
    *(
        {"custom_id": f"r{i}", "method": "POST", "url": RESPONSES, "body": {"input": f"{words(50, 'r')} {i}"}}
        for i in range(2)
    ),
]


@FAR
def test_every_request_is_answered_and_each_document_read_once(answer):
    found, stats = answer(REQUESTS)
    assert sorted(found) == sorted(request["custom_id"] for request in REQUESTS)
    for custom_id, row in found.items():
        assert row["error"] is None
        assert row["id"].startswith("batch_req_")
        assert row["response"]["status_code"] == 200
        assert row["response"]["request_id"].startswith("req_")
        body = row["response"]["body"]
        kinds = {"t": "text_completion", "r": "response"}
        assert body["object"] == kinds.get(custom_id[0], "chat.completion")
        assert "peak_bytes" not in body["edgekv"]
        usage = body["usage"]
        shared = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))["cached_tokens"]
        assert (shared > 0) == (custom_id[0] in "dr")
        assert shared % SMALL["block"] == 0
    assert len({said(row) for row in found.values()}) > 8
    assert stats.prefixes == 4
    assert stats.answered == len(REQUESTS)
    assert 2 * stats.prefix_tokens < stats.shared_tokens < 3 * stats.prefix_tokens
    assert 0 < stats.peak_bytes < 4 << 30


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({"kv_type": "q8_0", "policy": "snapkv"}, True),
        pytest.param({}, True, marks=pytest.mark.nightly),  # by day with archives alone
        pytest.param({}, False, marks=pytest.mark.nightly),
        # by day a request is compared with what it says alone under these
        pytest.param({"focus": False}, True, marks=pytest.mark.nightly),
        pytest.param({"budget": 1024}, True, marks=pytest.mark.nightly),
    ],
    indirect=["near"],
)
def test_neither_order_nor_sharing_makes_a_difference(answer, options):
    alone, _ = answer(REQUESTS, **options)
    for name, how in (("workers.jsonl", {"workers": 3}), ("steps.jsonl", {"parallel": 3})):
        shared, stats = answer(None, name, **how, **options)
        assert shared == alone
        assert stats.prefixes >= 4
        assert stats.answered == len(REQUESTS)
    shuffled = random.Random(1).sample(REQUESTS, len(REQUESTS))
    other, _ = answer(shuffled, "other.jsonl", **options)
    assert {name: said(row) for name, row in other.items()} == {name: said(row) for name, row in alone.items()}


def test_neither_order_nor_slots_make_a_difference_with_archives(answer):
    """Each request has an archive of its own."""
    archived = {"policy": "keydiff", "archive": "4MiB"}
    alone, _ = answer(REQUESTS, **archived)
    assert any(row["response"]["body"]["edgekv"].get("archived", 0) > 0 for row in alone.values())
    shuffled = random.Random(2).sample(REQUESTS, len(REQUESTS))
    for name, how in (("order.jsonl", {}), ("slots.jsonl", {"parallel": 3})):
        other, stats = answer(shuffled, name, **archived, **how)
        assert {name: said(row) for name, row in other.items()} == {name: said(row) for name, row in alone.items()}
        assert stats.answered == len(REQUESTS)


def test_slots_and_workers_are_two_ways(answer, opened, tmp_path):
    with pytest.raises(ConfigError, match=r"parallel=2 has one model in this process; leave it or workers=2 out"):
        answer(REQUESTS[:2], workers=2, parallel=2)
    with opened(parallel=2) as batch, pytest.raises(ConfigError, match=r"leave it or cluster=tcp://nowhere out"):
        next(batch.run(cluster="tcp://nowhere"))
    answer(parallel=2)
    with pytest.raises(ConfigError, match=r"was begun with parallel=2, and this would be parallel="):
        opened()


@pytest.mark.nightly
def test_a_batch_that_shares_steps_goes_on_where_it_was(answer, opened, tmp_path):
    whole, _ = answer(REQUESTS, "whole.jsonl", parallel=3)
    with opened(parallel=3) as batch:
        for n_answered, _ in enumerate(batch.run(), 1):
            if n_answered == 5:
                break
    assert (tmp_path / "results.jsonl").read_bytes().count(b"\n") == 5
    found, _ = answer(parallel=3)
    assert found == whole


def test_as_many_slots_as_cost_no_cells(answer, opened):
    """A batch keeps its slots when it goes on."""
    found, _ = answer(REQUESTS[:4], "chosen.jsonl", parallel=None)
    assert found == answer(REQUESTS[:4], "alone.jsonl")[0]
    for results, n in (("chosen.jsonl", 4), ("alone.jsonl", 1)):
        with opened(results=results, parallel=None) as batch:
            assert batch.config.chosen.parallel == n
    with opened(results="isolated.jsonl", parallel=None, isolated=True) as batch:
        assert batch.config.chosen.parallel == 1


SEVERAL = {"budget": 1024, "block": 256}


@pytest.mark.parametrize(
    "options",
    by_night([{"budget": 64}, {"budget": 1024}, SEVERAL], [{"budget": 64}, SEVERAL]),
    ids=["evicts", "fits", "a block is several decodes"],
)
def test_without_focus_a_request_says_what_it_says_alone(answer, tiny_model, options):
    found, stats = answer(REQUESTS, focus=False, **options)
    assert stats.prefixes >= 3
    path = tiny_model(**MODEL)
    with edgekv.Runtime(path, **SMALL | options, focus=False) as runtime:
        for request in REQUESTS[:6]:
            seed = int(digest_of(request["custom_id"], digits=7), 16)
            sampling = edgekv.Sampling(temperature=1.5, min_p=0.1, repeat_penalty=1, seed=seed)
            with runtime.session(history=True) as session:
                pieces = session.continue_from(request["body"]["messages"], max_tokens=8, sampling=sampling)
                assert "".join(pieces) == said(found[request["custom_id"]])


@pytest.mark.parametrize("focus", [None, False, "Who?"])
def test_what_is_shared_is_read_without_a_question_unless_all_name_one(answer, monkeypatch, focus):
    asked = []
    prefill_prefix = edgekv.Session.prefill_prefix

    def watched(session, tokens, *, focus=None, **further):
        asked.append(focus)
        prefill_prefix(session, tokens, focus=focus, **further)

    monkeypatch.setattr(edgekv.Session, "prefill_prefix", watched)
    requests = about_documents(2, 2)
    if focus is not None:
        requests = [request | {"body": request["body"] | {"edgekv": {"focus": focus}}} for request in requests]
    answer(requests)
    assert asked == [focus or None] * 2


def test_a_batch_goes_on_where_it_was(answer, opened, tmp_path):
    whole, _ = answer(REQUESTS, "whole.jsonl")
    with opened() as batch:
        for n_answered, _ in enumerate(batch.run(), 1):
            if n_answered == 5:
                break
    first = (tmp_path / "results.jsonl").read_bytes()
    assert first.count(b"\n") == 5
    (tmp_path / "results.jsonl").write_bytes(first + b'{"id": "batch_req_torn')
    found, stats = answer()
    assert found == whole
    assert stats.answered == len(REQUESTS) - 5
    assert (tmp_path / "results.jsonl").read_bytes().startswith(first)
    before = (tmp_path / "results.jsonl").read_bytes()
    _, stats = answer()
    assert (stats.answered, (tmp_path / "results.jsonl").read_bytes()) == (0, before)


HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
WRONG = {
    "method": ({"method": "GET", "body": HELLO}, "method"),
    "url": ({"url": "/v1/embeddings", "body": HELLO}, "url"),
    "no url": ({"url": None, "body": HELLO}, "url"),
    "no body": ({"body": None}, "body"),
    "no messages": ({"body": {}}, "messages"),
    "temperature": ({"body": HELLO | {"temperature": -1}}, "temperature"),
    "stream": ({"body": HELLO | {"stream": True}}, "stream"),
    "two replies": ({"body": HELLO | {"n": 2}}, "n"),
    "blank": ({"body": {"messages": [{"role": "user", "content": " "}]}}, None),
    "overflow": (chat("", words(300), edgekv={"on_overflow": "error"}), None),
    "no token": ({"url": TEXT, "body": {"prompt": [1 << 30]}}, None),
}


def test_a_request_that_cannot_be_answered_has_an_error_and_the_rest_goes_on(answer):
    wrong = [{"method": "POST", "url": CHAT} | request | {"custom_id": name} for name, (request, _) in WRONG.items()]
    found, _ = answer([chat("before", "Hello"), *wrong, chat("after", "Hello you")])
    assert [found[name]["response"]["status_code"] for name in ("before", "after")] == [200, 200]
    for name, (_, param) in WRONG.items():
        assert found[name]["response"]["status_code"] == 400, name
        assert found[name]["error"] is None
        error = found[name]["response"]["body"]["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (name, error["type"], error["param"]) == (name, "invalid_request_error", param)


def test_a_text_beyond_the_trained_context_has_an_error(answer):
    options = {"reposition": "never", "policy": "sink"}
    found, _ = answer([*about_documents(2, 2), chat("long", words(2000))], **options)
    assert [row["response"]["status_code"] for _, row in sorted(found.items())] == [200] * 4 + [400]
    assert "2048" in found["long"]["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no request"),
        ("\n \n", "holds no request"),
        ("{", "line 1 of .* is not JSON"),
        ('{"custom_id": "1"}\n[1]\n', "line 2 of .* is no JSON object"),
        ('{"custom_id": "1"}\n{"custom_id": 2}\n', "line 2 of .* has the custom_id 2"),
        ('{"custom_id": " "}\n', "line 1 of .* has the custom_id ' '"),
        ('{"custom_id": "1"}\n\n{"custom_id": "1"}\n', "lines 1 and 3 of .* have the custom_id '1'"),
        ("[" * 200_000, "line 1 of .* is not JSON"),
        (b'{"custom_id": "\xff"}', "line 1 of .* is not JSON"),
    ],
)
def test_a_file_that_holds_no_requests_is_refused(opened, tmp_path, text, message):
    (tmp_path / "requests.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        opened()
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_requests_are_read_again_so_they_are_a_file(opened, tmp_path):
    os.mkfifo(tmp_path / "requests.jsonl")
    with pytest.raises(InputError, match=r"requests\.jsonl is no plain file"):
        opened()
    (tmp_path / "requests.jsonl").unlink()
    with pytest.raises(InputError, match="No such file"):
        opened()


def test_results_of_something_else_are_refused(answer, opened, tmp_path):
    requests = [chat("one", "Hello"), chat("two", "Hello you")]
    answer(requests)
    kept = (tmp_path / "results.jsonl").read_bytes()
    for changed in ([*requests, chat("three", "More")], requests[::-1], [requests[0], chat("two", "Changed")]):
        with pytest.raises(ConfigError, match=r"results\.jsonl has answers to another file than .*requests\.jsonl"):
            opened(changed)
    write(tmp_path / "requests.jsonl", requests)
    for options, what in (
        ({"budget": 80}, "budget=64, and this would be budget=80"),
        ({"policy": "snapkv"}, r"policy=keydiff\(rope=off\), and this would be policy=snapkv"),
        ({"focus": False}, "focus_policy="),
        ({"ubatch": 16}, "ubatch="),
        ({"n_sink": 5}, "n_sink="),
        ({"recent": 8}, "recent="),
        ({"evict_every": 16}, "evict_every="),
        ({"probe_tokens": 8}, "probe_tokens="),
        ({"reposition": "always"}, "reposition="),
        ({"prompt_lookup": "on"}, "prompt_lookup="),
        ({"allow_beyond_trained": True}, "allow_beyond_trained="),
    ):
        with pytest.raises(ConfigError, match=f"was begun with {what}"):
            opened(**options)
    (tmp_path / "own.jinja").write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant]")
    with pytest.raises(ConfigError, match=r"begun with chat_template=None, and this would be chat_template=own\.jinja"):
        opened(chat_template=tmp_path / "own.jinja")
    (tmp_path / "results.jsonl.batch").unlink()
    with pytest.raises(ConfigError, match=r"results\.jsonl\.batch does not say how"):
        opened()
    assert (tmp_path / "results.jsonl").read_bytes() == kept
    (tmp_path / "notes.txt").write_text("milk")
    with pytest.raises(InputError, match=r"line 1 of .*notes\.txt is no result"):
        opened(None, "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "milk"
    with pytest.raises(ConfigError, match="is the file of requests"):
        opened(None, "requests.jsonl")
    for text in ('{"id": [1], "custom_id": [2]}\n', '{"id": "batch_req_1"}\n', "7\n"):
        (tmp_path / "notes.txt").write_text(text)
        with pytest.raises(InputError, match="line 1 of"):
            opened(None, "notes.txt")
    os.symlink(tmp_path / "requests.jsonl", tmp_path / "link.jsonl")
    with pytest.raises(ConfigError, match="is the file of requests"):
        opened(None, "link.jsonl")


@FAR
def test_the_plan_has_room_for_going_back_to_a_prefix(opened):
    with opened([chat("one", "Hello")], memory="700MiB") as batch:
        assert edgekv.plan(batch.config.model, **batch.config.options).parts.swap > 0


@FAR
def test_what_the_planner_chose_stays(answer, opened):
    """Also where it would choose otherwise now."""
    answer([chat("one", "Hello")], budget=None, block=None, kv_type=None, memory="700MiB")
    with opened(budget=None, block=None, kv_type=None, memory="800MiB") as batch:
        assert batch.config.described["budget"] == batch.config.options["budget"]
        assert batch.config.options["memory"] == 800 << 20


def test_the_ceiling_of_a_worker_is_the_one_that_was_named(opened):
    with opened([chat("a", "One")], budget=None, memory="1GiB", parallel=1) as batch:
        assert batch.config.options["memory"] == 1 << 30


def test_nothing_is_answered_without_a_worker(opened, tmp_path):
    """Not even what is refused."""
    requests = [chat("hot", "One", temperature=-1), chat("b", "Two")]
    with opened(requests) as batch, pytest.raises(ConfigError, match="cluster"):
        list(batch.run(cluster="nowhere"))
    assert not (tmp_path / "results.jsonl").read_text()


def test_requests_that_change_meanwhile_are_found_out(opened, tmp_path):
    with opened([chat("one", "Hello"), chat("two", "Hello you")]) as batch:
        running = batch.run()
        text = (tmp_path / "requests.jsonl").read_text()
        with (tmp_path / "requests.jsonl").open("r+") as file:
            file.write(text.replace("Hello", "Jello"))
        with pytest.raises(InputError, match="changed while it was answered"):
            list(running)


@FAR
@pytest.mark.parametrize("n_deaths", [pytest.param(1, marks=pytest.mark.nightly), 5])
def test_a_worker_that_dies_is_started_again(answer, monkeypatch, n_deaths):
    """And a request that ends every one that is at it has an error, of no status of HTTP."""
    deaths, runtimes = [], []
    session_of, continue_from = edgekv.Runtime.session, edgekv.Session.continue_from

    def noted(runtime, *arguments, **options):
        runtimes.append(runtime)
        return session_of(runtime, *arguments, **options)

    def killed(session, history, **options):
        if "fatal" in str(history) and len(deaths) < n_deaths:
            deaths.append(session)
            os.kill(runtimes[-1].worker_pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        return continue_from(session, history, **options)

    monkeypatch.setattr(edgekv.Runtime, "session", noted)
    monkeypatch.setattr(edgekv.Session, "continue_from", killed)
    documents = about_documents(1, 4)
    documents[1]["body"]["messages"][0]["content"] += " fatal"
    found, _ = answer(documents)
    died = found[documents[1]["custom_id"]]
    assert len(deaths) == min(n_deaths, 3)
    if n_deaths == 1:
        assert died["response"]["status_code"] == 200
        monkeypatch.undo()
        whole, _ = answer(documents, "whole.jsonl")
        assert whole == found
    else:
        assert (died["response"], died["error"]["code"]) == (None, "worker_died")
    assert sum(row["error"] is None for row in found.values()) == (4 if n_deaths == 1 else 3)


def test_what_is_no_fault_of_a_request_stops_the_batch(opened, monkeypatch, tmp_path):
    with opened(about_documents(2, 2)) as batch:
        monkeypatch.setattr(LocalWorker, "answer", _over)
        with pytest.raises(edgekv.CeilingExceededError):
            list(batch.run(workers=2))
        assert batch.results.answered == {}


def _over(worker, task):
    raise edgekv.CeilingExceededError("too much", planned_bytes=1, measured_bytes=2, ceiling_bytes=1)


@FAR
def test_the_reading_of_a_prefix_is_cancelled(opened, monkeypatch):
    seen, prefill_prefix = [], edgekv.Session.prefill_prefix

    def watched(session, tokens, *, focus, progress):
        def look(found):
            seen.append(found.tokens_done)
            worker.cancel()
            progress(found)

        prefill_prefix(session, tokens, focus=focus, progress=look)

    monkeypatch.setattr(edgekv.Session, "prefill_prefix", watched)
    with opened(about_documents(1, 2, n_words=300)) as batch:
        worker = LocalWorker(Setup(str(batch.config.model), batch.config.options))
        with pytest.raises(edgekv.WorkerError, match="told to stop"):
            worker.answer(batch.prompt_plan.task_of(0))
        worker.close()
        assert seen == [SMALL["block"]]
        assert batch.prompt_plan.n_shared[0] > 5 * SMALL["block"]


def test_a_document_is_read_once_for_each_question_that_chooses_its_cells(answer):
    """Requests with other questions beside them do not have it read again and again."""
    document = words(60, "w")
    requests = [
        chat(f"{i}", f"{document}\n\nNumber {i}?", edgekv={"focus": ("Which dog?", "Which cat?")[i % 2]})
        for i in range(6)
    ]
    found, stats = answer(requests)
    assert [row["error"] for row in found.values()] == [None] * 6
    assert stats.prefixes == 2


def test_a_prefix_whose_end_is_lost_is_read_again(answer, monkeypatch):
    """The replies are the same. With an archive no end is lost."""
    whole, stats = answer(about_documents(2, 3), "whole.jsonl", archive="off")
    session = edgekv.Runtime.session
    monkeypatch.setattr(
        edgekv.Runtime,
        "session",
        lambda runtime, *arguments, **options: session(runtime, *arguments, **options, checkpoint_bytes=0),
    )
    found, again = answer(None, archive="off")
    assert found == whole
    assert (stats.prefixes, again.prefixes) == (2, 6)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON = {"type": "object", "properties": {"age": {"enum": [7, 9]}}, "required": ["age"], "additionalProperties": False}


def test_schemas_and_tools_are_had_where_a_request_needs_them(answer, tmp_path):
    schema = {"type": "json_schema", "json_schema": {"schema": PERSON}}
    document = words(60, "d")
    found, _ = answer(
        [
            *(chat(f"json-{i}", f"{document} {i}", response_format=schema, max_tokens=99) for i in range(2)),
            chat("call", "Rain?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=99),
            {
                "custom_id": "response",
                "method": "POST",
                "url": RESPONSES,
                "body": {"input": "Who?", "text": {"format": {"type": "json_schema", "schema": PERSON}}},
            },
            chat("any", "Hello"),
        ],
        budget=512,
    )
    for custom_id in ("json-0", "json-1", "response"):
        assert json.loads(said(found[custom_id]))["age"] in (7, 9)
    assert found["json-0"]["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    (call,) = found["call"]["response"]["body"]["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
    assert found["any"]["response"]["status_code"] == 200
    assert json.loads((tmp_path / "results.jsonl.batch").read_text())["grammars"] is True


def test_without_schemas_there_are_no_grammars(answer, tmp_path):
    plain = {"response_format": {"type": "text"}, "tools": []}
    found, _ = answer([chat("1", "Hello", **plain), chat("2", "Hi", tools=[WEATHER], tool_choice="none")])
    assert {row["response"]["status_code"] for row in found.values()} == {200}
    assert json.loads((tmp_path / "results.jsonl.batch").read_text())["grammars"] is False


def test_results_are_lines_of_ascii(answer, tmp_path):
    answer([chat("ä\ud800", "Hello")])
    (line,) = (tmp_path / "results.jsonl").read_bytes().splitlines()
    assert json.loads(line.decode("ascii"))["custom_id"] == "ä\ud800"


@pytest.mark.nightly
@FAR
def test_one_worker_may_have_layers_on_a_server(answer, opened):
    requests = REQUESTS[:5]
    with lent_device() as (address, _):
        found, stats = answer(requests, rpc=address, tensor_split="1")
        assert sorted(found) == sorted(request["custom_id"] for request in requests)
        assert stats.answered == len(requests)
        with opened(requests, "more.jsonl", rpc=address) as batch:
            with pytest.raises(ConfigError, match=f"rpc={address} serves one worker at a time; leave workers=2 out"):
                list(batch.run(workers=2))
            with pytest.raises(ConfigError, match="leave cluster=tcp://here out"):
                list(batch.run(cluster="tcp://here"))
