"""Tools: a template's own form of them or edgekv's, calls that fit their schemas, and their results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import llguidance
import numpy as np
import pytest
from small import SETTINGS

import edgekv
from edgekv.cells.loaded_model import LoadedModel
from edgekv.generation.logprobs import LogprobRecorder
from edgekv.generation.stats import Stats
from edgekv.generation.tool_calls import ToolCallReader
from edgekv.grammar.tool_schemas import plain
from edgekv.prompt.tool_form import INTRODUCTION, described, generic, tool_form
from edgekv.prompt.tools import CallFormat, ToolCall, calls_of, tool_use

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", "Oslo", "Rome"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"weather": WEATHER, "now": {"type": "object", "properties": {}}}
ASKED = [{"role": "user", "content": "What is the weather in Oslo?"}]
DRAWN = edgekv.Sampling(temperature=3.0, top_k=0, top_p=1.0, seed=3)

# Many models' manner: tools in the system message, calls as JSON between two words, results as the user's messages.
NATIVE = """
{%- if tools %}<system>
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools %}[{{ tool | tojson }}]{% endfor %}<end>
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}<user>RESULT {{ m.content }}<end>
    {%- elif m.role != 'system' or not tools %}<{{ m.role }}>{{ m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if not loop.first }}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}<end>
    {%- endif %}
{%- endfor %}<assistant>"""
# a reply that is JSON is a call
BARE = """
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) }}{% endfor %}
{%- for m in messages %}<{{ m.role }}>
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}' }}
    {%- else %}{{ m.content }}
    {%- endif %}<end>
{%- endfor %}<assistant>"""
XML = NATIVE.replace("""'<tool_call>\\n{"name": "' + call.function.name""", "'<function=' + call.function.name")
WITH_ID = NATIVE.replace("'<tool_call>", "'<tool_call ' + call.id + '>")
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def model(template, control=()):
    """As much of a model as tools are shown. control: names of control tokens, which are all the tokens that it has"""

    def tokenize(text, special=False):
        return [i for i, name in enumerate(control) if special and name in text]

    header = SimpleNamespace(chat_template=template, tools_template=template)
    own = {"control_text": lambda name: "", "tokenize": tokenize, "piece": lambda token: b""}
    return SimpleNamespace(header=header, path=Path("m.gguf"), **own)


@pytest.mark.parametrize(
    ("template", "native", "form"),
    [
        (NATIVE, True, CallFormat()),
        (BARE, True, CallFormat("", "name", "parameters", "", "")),
        (XML, False, CallFormat()),
        (WITH_ID, False, CallFormat()),
        (PLAIN, False, CallFormat()),
        (None, False, CallFormat()),
    ],
    ids=["native", "bare", "xml", "with_id", "plain", "none"],
)
def test_the_form_of_calls_is_read_off_the_template(template, native, form):
    found = tool_form(model(template))
    assert (found.is_native, found.calls) == (native, form)


def test_a_format_of_control_tokens_is_not_taken():
    assert not tool_form(model(NATIVE, control=["<tool_call>"])).is_native


def test_names_of_control_tokens_are_no_description():
    """A tool may well speak of them, as one for HTML of <s>. Its text is read with a blank in each."""
    parameters = {"type": "object", "properties": {"a": {"enum": ["x", "<s>"]}}}
    function = {"name": "f", "description": "Ends <s> by </s>, not <b>.", "parameters": parameters}
    tools = tool_use([{"type": "function", "function": function}]).tools
    (told,) = described(model(NATIVE, control=["<s>", "</s>"]), tools)
    assert told["function"]["description"] == "Ends < s> by < /s>, not < b>."
    assert told["function"]["parameters"]["properties"]["a"]["enum"] == ["x", "< s>"]
    assert described(model(NATIVE, control=["<|im_start|>"]), tools) == [tools[0].as_dict()]
    function["parameters"] = {"type": "object", "properties": {"<s>": {"type": "string"}}}
    with pytest.raises(edgekv.InputError, match="'f' with the name of a control token"):
        described(model(NATIVE, control=["<s>"]), tool_use([{"type": "function", "function": function}]).tools)


CALLS = (ToolCall("weather", '{"city": "Oslo", "days": 1}'), ToolCall("now", "{}"))


@pytest.mark.parametrize("form", [CallFormat(), CallFormat("[C]", "tool", "args", ";", "")])
def test_what_is_written_is_parsed(form):
    assert form.parsed("Let me see. " + form.written(CALLS)) == CALLS
    assert form.parsed(form.written(CALLS)[:-20]) == CALLS[:1]  # the second one was cut off
    assert form.parsed("no call at all") == ()
    assert form.parsed(form.before + "what is no call") == ()


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_pieces_without_the_calls(step):
    text = "I look <tool it up." + CallFormat().written(CALLS)
    reader, stats = ToolCallReader(CallFormat()), Stats()
    pieces = (text[i : i + step] for i in range(0, len(text), step))
    assert "".join(reader.follow(pieces, stats)) == "I look <tool it up."
    assert stats.tool_calls == CALLS


@pytest.mark.parametrize("form", [CallFormat(), CallFormat("[C]", "tool", "args", ";", ""), CallFormat("", after="")])
def test_calls_that_are_written_anew_are_alike(form):
    calls = [ToolCall("weather", '{ "days":1,\n"city": "Oslo"}')]
    anew = [ToolCall("weather", '{"city": "Oslo", "days": 1}')]
    assert form.alike(form.written(calls)) == form.alike(form.written(anew))
    other = [ToolCall("weather", '{"city": "Oslo", "days": 2}')]
    assert form.alike(form.written(calls)) != form.alike(form.written(other))
    for text in ("", "A text.", form.written(calls)[:-1], f"{form.written(calls)} more"):
        assert form.alike(text) == text


def test_a_call_may_have_a_number_of_more_digits_than_python_reads():
    form = CallFormat()
    call, other = (ToolCall("weather", f'{{"days": {digit * 5000}}}') for digit in "12")
    assert form.parsed(form.written([call])) == (call,)
    assert form.alike(form.written([call])) != form.alike(form.written([other]))
    assert calls_of([{"function": {"name": call.name, "arguments": call.arguments}}]) == (call,)


def test_a_text_that_only_begins_like_a_call_is_a_text():
    reader, stats = ToolCallReader(CallFormat()), Stats()
    assert "".join(reader.follow(["see <tool", "_call>"], stats)) == "see <tool_call>"
    assert stats.tool_calls == ()


@pytest.mark.parametrize("reason", ["length", "context", "loop", "cancelled"])
def test_the_beginning_of_a_call_that_is_cut_is_no_text(reason):
    for text, given in (("see <tool_call>", "see "), ("<tool_ca", ""), ("see it", "see it"), ("a < b", "a < b")):
        reader, stats = ToolCallReader(CallFormat()), Stats()

        def pieces(text=text, stats=stats):
            yield text
            stats.finish_reason = reason

        assert "".join(reader.follow(pieces(), stats)) == given
        assert stats.tool_calls == ()


def test_messages_for_a_template_without_tools():
    roles, contents = generic(
        ("system", "user", "assistant", "tool", "tool", "user"),
        (("Be brief.",), ("Q",), ("calls",), ("one",), (Path("two"),), ("more",)),
        tool_use(TOOLS).tools,
    )
    assert roles == ("system", "user", "assistant", "user", "user")
    system = "".join(contents[0])
    assert system.startswith("Be brief.\n\n" + INTRODUCTION[:20])
    assert '"name": "weather"' in system
    result = ("<tool_response>\n", "one", "\n</tool_response>")
    assert contents[3] == (*result, "\n", "<tool_response>\n", Path("two"), "\n</tool_response>")


@pytest.fixture(scope="module", params=[False, True], ids=["here", "isolated"])
def runtime(request, tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=4096, head_dim=64)
    with edgekv.Runtime(path, **SETTINGS | {"grammars": True, "budget": 512, "isolated": request.param}) as rt:
        yield rt


@pytest.fixture
def session(runtime):
    with runtime.session(history=True) as session:
        yield session


def said(session, messages=ASKED, **options):
    wanted = {"tools": TOOLS, "max_tokens": 600, "allow_loops": True, "sampling": DRAWN}
    return "".join(session.continue_from(messages, **wanted | options))


def check(calls):
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_a_call_is_required(session):
    assert said(session, tool_choice="required") == ""
    assert session.stats.tool_calls
    check(session.stats.tool_calls)


def test_a_call_of_one_tool(session):
    choice = {"type": "function", "function": {"name": "weather"}}
    assert said(session, tool_choice=choice) == ""
    assert [call.name for call in session.stats.tool_calls] == ["weather"]
    assert session.stats.finish_reason == "end"
    check(session.stats.tool_calls)


def test_calls_have_no_log_probabilities(session, monkeypatch):
    """Log probabilities are of the text alone. Nothing is noted of calls, however long they are."""
    noted = []
    monkeypatch.setattr(LogprobRecorder, "add", lambda self, token: noted.append(token))
    said(session, tool_choice="required", logprobs=3)
    assert len(noted) < session.stats.generated_tokens / 2


def test_one_call_at_a_time(session):
    said(session, tool_choice="required", parallel_tool_calls=False)
    assert len(session.stats.tool_calls) == 1


def test_a_text_where_no_call_may_be(session):
    assert said(session, tool_choice="none", max_tokens=20)
    assert session.stats.tool_calls == ()


def test_a_text_where_a_call_may_be(session):
    text = said(session, max_tokens=20)
    assert text or session.stats.tool_calls


def next_bytes(form, text, **options):
    """Return the characters that may come after a text under the grammar of a form, or None for the end."""
    tokenizer = llguidance.LLTokenizer("byte")
    use = tool_use(TOOLS, **options)
    schemas = [plain(tool.parameters) for tool in use.callable]
    matcher = llguidance.LLMatcher(tokenizer, form.grammar(use, schemas).text, log_level=0)
    assert matcher.consume_tokens(list(text.encode())), matcher.get_error()
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return {chr(token) if token < 256 else None for token in np.flatnonzero(bits)}


def test_once_a_call_begins_it_is_a_call():
    assert {"a", "<", "{", None} <= next_bytes(CallFormat(), "Let me see")
    assert {"a", "<", "\n", None} <= next_bytes(CallFormat(), "Let me see <tool_call>")
    assert next_bytes(CallFormat(), "Let me see <tool_call>\n") == {"{"}
    assert next_bytes(CallFormat(), '<tool_call>\n{"name": "') == {"w", "n"}
    assert next_bytes(CallFormat(), CallFormat().written(CALLS)) == {"\n", None}
    bare = CallFormat("", "name", "parameters", "", "")
    assert {"a", "{", None} <= next_bytes(bare, "")
    assert next_bytes(bare, "{") == {'"'}
    assert next_bytes(bare, bare.written(CALLS[:1])) == {None}


def test_how_many_calls_may_come():
    one = CallFormat().written(CALLS[:1])
    assert next_bytes(CallFormat(), "", choice="required") == {"<"}
    assert next_bytes(CallFormat(), one, choice="required") == {"\n", None}
    assert next_bytes(CallFormat(), one, choice="required", parallel=False) == {None}
    assert next_bytes(CallFormat(), one, choice={"function": {"name": "weather"}}) == {None}


@pytest.mark.parametrize("given", [str, json.loads], ids=["word for word", "written anew"])
def test_results_are_read_and_the_calls_before_them_are_not_read_again(session, given):
    said(session, tool_choice="required", parallel_tool_calls=False)
    (call,) = session.stats.tool_calls
    n_past = session.n_past
    calls = [{"id": "1", "type": "function", "function": {"name": call.name, "arguments": given(call.arguments)}}]
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "It rains.<|im_end|>"},
    ]
    assert session.common_prefix_length(messages, tools=TOOLS) >= n_past
    said(session, messages, tool_choice="none", max_tokens=10)
    assert session.stats.reused_tokens >= n_past - 1
    whole = "".join(session.text())
    assert "It rains." in whole
    assert whole.count("<tool_response>") >= 1


def test_a_session_that_called_a_tool_is_saved_and_reads_the_result(session, runtime, tmp_path):
    said(session, tool_choice="required", parallel_tool_calls=False)
    (call,) = session.stats.tool_calls
    session.save(tmp_path / "called.session")
    function = {"name": call.name, "arguments": call.arguments}
    result = {"role": "tool", "content": "It rains."}
    messages = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}, result]
    replies = []
    with runtime.load_session(tmp_path / "called.session") as loaded:
        for it in (session, loaded):
            n_past = it.n_past
            reply = said(it, messages, max_tokens=30, logprobs=2)
            assert it.stats.reused_tokens >= n_past - 1
            replies.append((reply, it.stats.tool_calls, it.n_past))
    assert replies[0] == replies[1]


def test_each_message_may_be_a_file(session, tmp_path):
    """A file is read as the same text is, whatever the template puts around it."""

    def filed(text):
        path = tmp_path / text[:4]
        path.write_text(text)
        return path

    def messages(given):
        calls = [{"function": {"name": "now", "arguments": "{}"}}]
        return [
            {"role": "system", "content": given("Be brief.")},
            {"role": "user", "content": given("Rain?")},
            {"role": "assistant", "content": given("Look.\n"), "tool_calls": calls},
            {"role": "tool", "content": given("It rains.")},
            {"role": "tool", "content": given("Still.")},
        ]

    said(session, messages(str), tool_choice="none", max_tokens=1)
    assert session.common_prefix_length(messages(filed), tools=TOOLS) == session.stats.prompt_tokens


def test_a_template_that_knows_tools_describes_them(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=4096, head_dim=64)
    with (
        edgekv.Runtime(path, **SETTINGS | {"grammars": True, "budget": 512}) as rt,
        rt.session(history=True) as session,
    ):
        rt.model.header.metadata["tokenizer.chat_template"] = NATIVE
        said(session, [{"role": "system", "content": "Be brief."}, *ASKED], tool_choice="required")
        check(session.stats.tool_calls)
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in session.stats.tool_calls]
        n_past = session.n_past
        messages = [
            {"role": "system", "content": "Be brief."},
            *ASKED,
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "content": f"Result {i}"} for i in range(len(calls))),
        ]
        said(session, messages, tool_choice="none", max_tokens=5)
        assert session.stats.reused_tokens >= n_past - 1
        whole = "".join(session.text())
        assert whole.startswith('<system>Be brief.[{"type": "function", "function": {"name": "weather"')
        assert "<user>RESULT Result 0<end>" in whole


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "search"}], "is no function"),
        ([5], "is no function"),
        ([{"type": "function", "function": {"name": "a b"}}], "at most 128 letters"),
        ([{"type": "function", "function": {"name": "f", "parameters": 5}}], "tools 'f'"),
        ([TOOLS[1], TOOLS[1]], "two of one name"),
        ([{"type": "function", "function": {"name": f"f{i}"}} for i in range(200)], "at most 128"),
    ],
)
def test_what_is_no_tool_is_refused(session, tools, message):
    with pytest.raises(edgekv.ConfigError, match=message):
        said(session, tools=tools)
    assert session.n_past == 0


@pytest.mark.parametrize("choice", ["any", {"function": {"name": "nothing"}}, {}])
def test_choices_that_are_none(session, choice):
    with pytest.raises(edgekv.ConfigError, match="tool_choice="):
        said(session, tool_choice=choice)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "$comment": "c", "examples": [1], "x-order": 1, "deprecated": True, "example": 2},
        {"type": "string", "maxLength": 5, "format": "uri-reference"},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2, "uniqueItems": True, "contains": {}},
        {"type": "object", "propertyNames": {"pattern": "a"}, "additionalProperties": False},
        {"type": "integer", "not": {"const": 3}, "if": {"minimum": 2}, "then": {"maximum": 9}},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"type": "string", "maxLength": 5, "pattern": "^(?!x).*$"},
        {"type": "integer", "const": -(2**63)},
        {"type": "object", "patternProperties": {r"^(a)\1$": {"type": "integer"}}, "additionalProperties": False},
    ],
    ids=["notes", "format", "list", "names", "not", "one of", "pattern", "least integer", "pattern of names"],
)
def test_a_constraint_that_no_grammar_expresses_is_dropped_and_the_others_hold(session, schema):
    """An agent is answered, whatever a library wrote into the schemas of its tools. What the model is told is whole."""
    loose = {key: value for key, value in schema.items() if key in ("type", "items", "maxItems", "maxLength")}
    parameters = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Arguments", "type": "object"}
    parameters |= {"properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert json.loads(tool_use(tools).tools[0].parameters) == parameters
    said(session, tools=tools, tool_choice="required")
    (call,) = session.stats.tool_calls[:1]
    jsonschema.validate(json.loads(call.arguments), parameters | {"properties": {"a": loose}})
    with pytest.raises(edgekv.GrammarError):  # a schema of the user's own stays strict
        list(session.chat("Go on", json_schema=schema | {"uniqueItems": True, "format": "my-own", "not": {}}))


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


DAY = {"enum": ["today", "tomorrow"]}


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2, "uniqueItems": True}, ["uniqueItems"]),
        ({"type": "object", "propertyNames": {"pattern": "^a"}, "maxProperties": 1}, ["propertyNames"]),
        ({"type": "integer", "enum": [2**60 + 1, 2**60 + 2]}, ["enum"]),
        ({"type": "integer", "minimum": 5, "maximum": 2**63}, ["maximum"]),
        ({"type": "string", "maxLength": 5, "format": "my-own"}, ["format my-own"]),
        ({"type": "string", "maxLength": 5, "pattern": "^(?=a)"}, ["pattern"]),
        ({"type": "string", "maxLength": 5, "pattern": "("}, ["pattern"]),
        ({"oneOf": [{"type": "integer", "maximum": 9}, {"type": "integer", "minimum": 1, "maximum": 5}]}, ["oneOf"]),
        ({"type": "person", "enum": [1, 2]}, ["type"]),
        ({"$ref": "#/$defs/nothing", "maxLength": 5, "type": "string"}, ["$ref"]),
        ({"type": "integer", "minimum": 5, "maximum": 4}, ["minimum", "maximum"]),
        ({"type": "integer", "minimum": "5", "maximum": 9}, ["minimum"]),
        ({"allOf": [{"type": "integer"}, {"type": "string"}]}, ["parameters"]),
    ],
    ids=lambda it: it[0] if isinstance(it, list) else "",
)
def test_one_word_of_one_tool_refuses_nothing_and_is_told(session, schema, dropped):
    """Whatever a library wrote, the other words of this tool hold, and so do the other tools."""
    tools = [tool("odd", day=DAY, a=schema), tool("plain", day=DAY)]
    for name in ("odd", "plain"):
        said(session, tools=tools, tool_choice={"function": {"name": name}})
        (call,) = session.stats.tool_calls
        arguments = json.loads(call.arguments)
        if name == "plain" or dropped != ["parameters"]:
            assert arguments["day"] in DAY["enum"]
        told = () if name == "plain" else (("odd", tuple(dropped)),)
        assert session.stats.relaxed_tools == told


# grammars are made alike in a worker, and this one takes seconds
@pytest.mark.nightly
@pytest.mark.parametrize("runtime", [False], ids=["here"], indirect=True)
def test_tools_that_are_too_much_together_are_relaxed_from_the_largest_on(session):
    """The names of all hold, and the schemas of the smaller ones."""
    large = {f"p{i}": {"type": "string", "minLength": 1, "maxLength": 200} for i in range(60)}
    tools = [tool(f"large{i}", **large) for i in range(20)] + [tool("small", day=DAY)]
    said(session, tools=tools, tool_choice="required", max_tokens=5)
    relaxed = dict(session.stats.relaxed_tools)
    assert 0 < len(relaxed) < len(tools)
    assert set(relaxed.values()) == {("parameters",)}
    assert "small" not in relaxed
    said(session, tools=tools, tool_choice={"function": {"name": "small"}})
    assert json.loads(session.stats.tool_calls[0].arguments)["day"] in DAY["enum"]


@pytest.mark.parametrize("runtime", [False], ids=["here"], indirect=True)
def test_alternatives_that_there_is_no_room_to_combine_are_relaxed(session, monkeypatch):
    lists = [{"anyOf": [{"type": "object", "required": [f"{i}.{j}"]} for j in range(12)]} for i in range(4)]
    tools = [tool("heavy", a={"allOf": lists}), tool("plain", day=DAY)]
    full = edgekv.CeilingError("full", required_bytes=2, ceiling_bytes=1)
    monkeypatch.setattr(LoadedModel, "room_to_combine", lambda loaded, name: full)
    said(session, tools=tools, tool_choice={"function": {"name": "plain"}})
    assert session.stats.relaxed_tools == ()
    said(session, tools=tools, tool_choice={"function": {"name": "heavy"}}, max_tokens=400)
    assert session.stats.relaxed_tools == (("heavy", ("parameters",)),)


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"anyOf": [{"type": "string"}, {"type": "object"}]}])
def test_arguments_are_an_object_whatever_the_schema_says(session, schema):
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    said(session, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=2000)
    for call in session.stats.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)
    assert session.stats.relaxed_tools == ((("f", ("type",)),) if schema.get("type") else ())


def test_a_reply_beside_tools_fits_a_schema_or_calls(session):
    """Whatever is drawn, there is no other text."""
    kinds = set()
    for seed in range(12):
        drawn = edgekv.Sampling(temperature=3.0, top_k=0, top_p=1.0, seed=seed)
        text = said(session, json_schema={"enum": ["yes", "no"]}, sampling=drawn, max_tokens=400)
        calls = session.stats.tool_calls
        assert bool(text) != bool(calls)
        kinds.add("calls" if calls else json.loads(text))
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert "calls" in kinds
    assert kinds & {"yes", "no"}
    assert said(session, json_schema={"const": "yes"}, tool_choice="none") == '"yes"'
    said(session, json_schema={"const": "yes"}, tool_choice="required", max_tokens=400)
    assert session.stats.tool_calls
    with pytest.raises(edgekv.GrammarError, match=r"json_schema cannot be followed.*which no grammar expresses"):
        said(session, json_schema={"uniqueItems": True})


def test_names_of_servers_are_names_of_tools(session):
    tools = [tool("files/read.one:v2", day=DAY)]
    said(session, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert session.stats.tool_calls[0].name == "files/read.one:v2"


def test_a_grammar_and_tools_exclude_each_other(session):
    with pytest.raises(edgekv.ConfigError, match="without a grammar"):
        said(session, grammar='root ::= "a"')
    with pytest.raises(edgekv.ConfigError, match="messages"):
        said(session, [1, 2, 3])


@pytest.mark.parametrize(
    "given", [5, {"function": {"name": "f", "arguments": "{"}}, {"function": {}}, ("n", 10**5000), ("n", {1})]
)
def test_calls_that_are_none(given):
    calls = [{"function": {"name": "f", "arguments": dict([given])}} if isinstance(given, tuple) else given]
    with pytest.raises(edgekv.InputError, match="tool call"):
        calls_of(calls)
