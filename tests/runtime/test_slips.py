"""A slip in an argument works as it was meant, or is an error of edgekv's own: each argument of each public method."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from small import SETTINGS

import edgekv
from edgekv.generation.request import GenerationOptions

HELLO = [{"role": "user", "content": "Hello"}]
SLIPS = [
    None,
    "",
    "x",
    b"x",
    Path("x"),
    5,
    -1,
    1.5,
    True,
    [],
    ["x"],
    [b"x"],
    [None],
    [5],
    (),
    {"a": 1},
    {5},
    object(),
    str,
]

# arguments that make each method work; a slip takes the place of one
SESSION = {
    "reply": {"prompt": "Hello"},
    "chat": {"prompt": "Hello"},
    "ask": {"question": "Hello?"},
    "generate": {"prompt": "Hello"},
    "read": {"text": "Hello"},
    "continue_from": {"history": HELLO},
    "prefill_prefix": {"tokens": [5, 6]},
    "common_prefix_length": {"history": HELLO},
    "rewind": {"n_tokens": 0},
    "kept_positions": {"layer": 0, "head": 0},
    "turns": {},
    "text": {},
    "kept": {},
    "export": {"path": "talk.md"},
    "restore": {"snapshot": None},
    "save": {"path": "saved"},
    "keep": {"path": "kept"},
    "fork": {},
}
RUNTIME = {
    "session": {},
    "load_session": {"path": "saved"},
    "tokenize": {"text": "Hello"},
    "text_of": {"tokens": [5]},
    "pieces_of": {"tokens": [5]},
    "count_tokens": {"history": HELLO},
    "prompt_text": {"messages": HELLO},
    "stored": {"history": HELLO},
    "set_memory": {"memory": "4GiB"},
    "note_pressure": {"is_short": False},
    "keep_beginnings": {"folder": "kept"},
}
ASYNC = {"reply_async", "ask_async", "chat_async", "generate_async"}
NOT_HERE = ASYNC | {"events", "snapshot", "alone", "is_of", "giving_way", "budgets", "close", "cancel"}


@pytest.fixture(scope="module")
def runtime(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")
    with edgekv.Runtime(path, **(SETTINGS | {"grammars": True})) as rt:
        yield rt


def public(kind):
    """Return the names of the public methods of a class."""
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def arguments_of(kind, method):
    """Return the names of a method's arguments, without `self`, and with the options of a reply."""
    found = dict(inspect.signature(getattr(kind, method)).parameters)
    del found["self"]
    if found.pop("options", None) is not None:
        found |= dict.fromkeys(GenerationOptions.__annotations__)
    return [*found]


def used(call):
    """Call a function, and use what it returns to its end."""
    made = call()
    if hasattr(made, "__next__"):
        for _ in made:
            pass
    elif hasattr(made, "__enter__"):
        with made:
            pass


def test_every_method_is_here():
    assert public(edgekv.Session) == SESSION.keys() | NOT_HERE
    assert public(edgekv.Runtime) == RUNTIME.keys() | {"close", "reply_opening", "set_memory_async"}


CASES = [
    (kind, method, name)
    for kind, methods in ((edgekv.Session, SESSION), (edgekv.Runtime, RUNTIME))
    for method in methods
    for name in arguments_of(kind, method)
]


@pytest.mark.parametrize(("kind", "method", "name"), CASES, ids=lambda it: it if isinstance(it, str) else "")
def test_a_slip_works_or_is_an_error_of_edgekvs_own(runtime, tmp_path, monkeypatch, kind, method, name):
    monkeypatch.chdir(tmp_path)
    base = (SESSION if kind is edgekv.Session else RUNTIME)[method]
    replies = "max_tokens" in arguments_of(kind, method)
    errors = []
    for slip in SLIPS:
        Path("x").write_text("A text.")
        arguments = base | ({"max_tokens": 1} if replies else {}) | {name: slip}
        with runtime.session(history=True) as session:
            if method == "restore" and slip is None:
                continue
            subject = session if kind is edgekv.Session else runtime
            try:
                used(lambda subject=subject, arguments=arguments: getattr(subject, method)(**arguments))
            except edgekv.EdgeKVError as error:
                errors.append(str(error))
    assert all(len(error) > 20 for error in errors)


@pytest.mark.parametrize("files", ["novel.txt", Path("novel.txt"), b"novel.txt", ["novel.txt"], (Path("novel.txt"),)])
def test_one_file_is_a_list_of_one(runtime, tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("The key is 417.\n")
    counts = []
    for given in ([tmp_path / "novel.txt"], files):
        with runtime.session() as session:
            list(session.chat("Which key?", files=given, max_tokens=1))
            counts.append(session.n_past)
    assert counts[0] == counts[1]


def test_nothing_is_the_default(runtime):
    with runtime.session(history=None) as session:
        assert len(list(session.chat("Hello", files=None, stop=None, sampling=None, allow_loops=None, max_tokens=2)))
    assert edgekv.plan(runtime.plan.model, **SETTINGS | {"isolated": None, "focus": None, "n_sink": None}) is not None


REMEDIES = [
    (lambda rt, s: s.ask(HELLO), "is no text; give a text; a file goes into files="),
    (lambda rt, s: s.chat(Path("novel.txt")), r"novel.txt.*a file goes into files="),
    (lambda rt, s: s.read(b"text"), "b'text' is no text"),
    (lambda rt, s: s.chat("x", files=5), "files=5 is no list; give a list of paths"),
    (lambda rt, s: s.chat("x", files=""), "files='' is no path"),
    (lambda rt, s: s.chat("x", files=[5]), "files=5 is no path"),
    (lambda rt, s: s.chat("x", stop=5), "stop=5 is no list; give a list of texts, or a text"),
    (lambda rt, s: s.chat("x", allow_loops="no"), "allow_loops='no' is not possible; give True or False"),
    (lambda rt, s: s.chat("x", do_sample=True), r"do_sample= is no option of a reply; a temperature above 0 draws"),
    (lambda rt, s: s.chat("x", n_predict=1), "give max_tokens="),
    (
        lambda rt, s: s.chat("x", whatever=1),
        "whatever= is no option of a reply; possible: allow_loops, freq",
    ),
    (lambda rt, s: s.chat("x", json_schema=[]), "json_schema=.* allows no reply|is not JSON"),
    (lambda rt, s: s.chat("x", progress=True), "progress=True cannot be called"),
    (lambda rt, s: s.text("user"), "turn='user' is no turn"),
    (lambda rt, s: s.restore("x"), "snapshot='x' is no snapshot"),
    (lambda rt, s: rt.tokenize(b"x"), "b'x' is no text"),
    (lambda rt, s: rt.text_of(5), "tokens=5 is no list"),
    (lambda rt, s: rt.load_session(5), "path=5 is no path"),
    (lambda rt, s: rt.session(history=5), "history=5 is no path"),
]


@pytest.mark.parametrize(("call", "message"), REMEDIES, ids=[message[:30] for _, message in REMEDIES])
def test_an_error_names_value_and_remedy(runtime, call, message):
    with runtime.session(history=True) as session, pytest.raises(edgekv.EdgeKVError, match=message):
        used(lambda: call(runtime, session))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 2048}, "n_ctx= is no option of Runtime; memory= says how many cells"),
        ({"n_gpu_layers": 5}, "give gpu_layers="),
        ({"temperature": 1}, "give it to a reply"),
        ({"whatever": 1}, "whatever= is no option of Runtime; possible: .*budget"),
        ({"isolated": "yes"}, "isolated='yes' is not possible; give True or False"),
        ({"mmap": "no"}, "mmap='no' is not possible"),
        ({"rpc": 5}, "rpc=5 is no list"),
        ({"rpc": [5]}, "rpc=5 is no HOST:PORT"),
        ({"swap_dir": 5}, "swap_dir=5 is no path"),
        ({"chat_template": ["x"]}, r"chat_template=\['x'\] is no path"),
        ({"policy": []}, "policy"),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)
@pytest.mark.parametrize("call", [edgekv.plan, edgekv.survey, edgekv.Runtime], ids=["plan", "survey", "Runtime"])
def test_options_of_a_runtime(tiny_model, call, options, message):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    with pytest.raises(edgekv.ConfigError, match=message):
        call(path, **(SETTINGS | options))


@pytest.mark.parametrize("model", [5, ["x"], b"", object()])
def test_a_model_is_a_name_or_a_path(model):
    with pytest.raises(edgekv.ConfigError, match=r"model=.* is no path"):
        edgekv.plan(model, **SETTINGS)
