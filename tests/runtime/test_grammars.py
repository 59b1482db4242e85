"""Replies that follow a grammar or a JSON schema, whatever the model would rather say and whatever else is going on."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress

import jsonschema
import pytest
from diagonals import HERE_BY_DAY
from hostile_schemas import HEAVY, HOSTILE
from small import SETTINGS, words

import edgekv
from edgekv.cells.loaded_model import LoadedModel
from edgekv.cells.speculation import SpeculationGate
from edgekv.grammar.source import grammar_of
from edgekv.memory import process

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DIGITS = 'root ::= [0-9]+ ("." [0-9]+)? "!"'
DRAWN = edgekv.Sampling(temperature=5.0, top_k=0, top_p=1.0, seed=7, repeat_penalty=1.3)


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime over a tiny model, for grammars."""
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")
    return lambda **options: edgekv.Runtime(path, **(SETTINGS | {"grammars": True} | options))


def said(session, text="Hello", **options):
    return "".join(session.chat(text, **({"max_tokens": 400, "allow_loops": True} | options)))


@pytest.mark.parametrize("sampling", [edgekv.Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_a_reply_fits_its_schema(session, sampling):
    reply = said(session, json_schema=PERSON, sampling=sampling)
    assert session.stats.finish_reason == "end"
    jsonschema.validate(json.loads(reply), PERSON)


def test_a_schema_may_be_a_text_and_anything_may_be_json(session):
    jsonschema.validate(json.loads(said(session, json_schema=json.dumps(PERSON), sampling=DRAWN)), PERSON)
    reply = said(session, json_schema=True, sampling=DRAWN, max_tokens=600)
    if session.stats.finish_reason == "end":
        json.loads(reply)


def test_an_object_has_a_key_once(session):
    bits = {"type": "object", "patternProperties": {"^[ab]{1,2}$": {"const": 1}}, "additionalProperties": False}
    reply = said(session, json_schema=bits | {"minProperties": 6, "maxProperties": 6}, sampling=DRAWN)
    assert sorted(json.loads(reply)) == ["a", "aa", "ab", "b", "ba", "bb"]


@pytest.mark.parametrize("grammar", [DIGITS, 'start: /[0-9]+(\\.[0-9]+)?/ "!"'], ids=["gbnf", "lark"])
def test_a_reply_follows_its_grammar(session, grammar):
    reply = said(session, grammar=grammar, sampling=DRAWN)
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?!", reply)
    assert session.stats.finish_reason == "end"


def test_a_grammar_may_name_tokens_of_the_model(runtime, session):
    (token,), (end,) = (runtime.tokenize(name, special=True) for name in ("<|im_start|>", "<|im_end|>"))
    marker = "<|im_start|>"
    assert said(session, grammar=f'root ::= "a" {marker} <[{token}]> !{marker} "b"', sampling=DRAWN)[0] == "a"
    assert session.stats.generated_tokens == 5
    with pytest.raises(edgekv.GrammarError, match="ends a reply"):
        said(session, grammar=f"root ::= <[{end}]>")
    reply = said(session, grammar=r"root ::= start [\-\u00e9]{2}" + '\nstart ::= "a"{0} "x"', sampling=DRAWN)
    assert re.fullmatch("x[-é]{2}", reply)


def test_without_a_grammar_the_model_says_something_else(session):
    assert not re.match(r"[0-9]", said(session, sampling=DRAWN, max_tokens=20))


def test_probabilities_are_the_models_own(session):
    before = session.snapshot()
    (free, *_) = session.chat("Hello", logprobs=3, max_tokens=8)
    session.restore(before)
    (held, *_) = session.chat("Hello", logprobs=3, grammar='root ::= "zebra"')
    assert held.tokens[0].top == free.tokens[0].top
    assert held.tokens[0].logprob < free.tokens[0].logprob


def test_a_reply_that_is_complete_has_said_its_last_token(session):
    said(session, json_schema=PERSON)
    sampler = session.snapshot().dialogue.sampler
    assert sampler.n_drawn == session.stats.generated_tokens
    assert len(sampler.newest) == min(sampler.n_drawn, sampler.sampling.repeat_last)


def test_a_constraint_is_for_one_reply(session):
    said(session, json_schema=PERSON)
    free = said(session, sampling=DRAWN, max_tokens=30)
    with pytest.raises(json.JSONDecodeError):
        json.loads(free)


def test_what_cuts_a_reply_says_so(session):
    reply = said(session, json_schema=PERSON, max_tokens=5)
    assert session.stats.finish_reason == "length"
    assert session.stats.generated_tokens == 5
    assert reply.startswith("{")
    reply = said(session, json_schema=PERSON, stop='"age"')
    assert session.stats.finish_reason == "stop"
    assert '"name"' in reply
    assert '"age"' not in reply


def test_a_stop_text_within_a_grammar(session):
    """A stop text may be cut between tokens. The text's tokens are those that begin in it."""
    before = session.snapshot()
    words = 'root ::= "one" (" two" | " three")+ "!"'
    whole = said(session, grammar=words, sampling=DRAWN, max_tokens=60)
    stop = whole[5:9]
    session.restore(before)
    pieces = list(session.chat("Hello", grammar=words, sampling=DRAWN, max_tokens=60, stop=stop, logprobs=2))
    assert (session.stats.finish_reason, session.stats.stop_text) == ("stop", stop)
    text = "".join(pieces)
    assert text == whole[: whole.index(stop)]
    noted = b"".join(token.piece for piece in pieces for token in piece.tokens).decode()
    assert noted.startswith(text)
    assert whole.startswith(noted)


def test_the_last_token_of_a_whole_reply_is_no_cut(session):
    whole = said(session, grammar='root ::= "yes"')
    n = session.stats.generated_tokens
    assert said(session, grammar='root ::= "yes"', max_tokens=n) == whole == "yes"
    assert session.stats.finish_reason == "end"


def test_a_cancelled_reply_leaves_a_session_that_goes_on(session):
    pieces = session.chat("Hello", json_schema=PERSON, max_tokens=400)
    next(pieces)
    session.cancel()
    list(pieces)
    assert session.stats.finish_reason == "cancelled"
    jsonschema.validate(json.loads(said(session, json_schema=PERSON)), PERSON)


def test_a_restored_session_says_the_same_again(session):
    said(session, sampling=DRAWN, max_tokens=5)
    before = session.snapshot()
    first = said(session, json_schema=PERSON, sampling=DRAWN)
    session.restore(before)
    assert said(session, json_schema=PERSON, sampling=DRAWN) == first


def test_sessions_with_grammars_take_turns(open_runtime):
    with open_runtime(swap_memory="8MiB") as rt, rt.session() as one, rt.session() as other:
        numbers = one.chat("A number", grammar=DIGITS, sampling=DRAWN, max_tokens=200)
        people = other.chat("A person", json_schema=PERSON, sampling=DRAWN, max_tokens=400, allow_loops=True)
        replies = {0: [], 1: []}
        live = {0: numbers, 1: people}
        while live:
            for key, pieces in list(live.items()):
                try:
                    replies[key].append(next(pieces))
                except StopIteration:
                    del live[key]
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?!", "".join(replies[0]))
        jsonschema.validate(json.loads("".join(replies[1])), PERSON)


def test_generating_and_reading_long_texts_work_alike(runtime):
    with runtime.session() as session:
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?!", "".join(session.generate(words(200), grammar=DIGITS)))
        assert session.stats.evictions > 0


def test_rewinding_and_histories(runtime):
    with runtime.session(history=True) as session:
        messages = [{"role": "user", "content": "A person?"}]
        reply = "".join(session.continue_from(messages, json_schema=PERSON, max_tokens=400, allow_loops=True))
        jsonschema.validate(json.loads(reply), PERSON)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "A number?"}]
        number = "".join(session.continue_from(messages, grammar=DIGITS, max_tokens=400))
        assert session.stats.reused_tokens > 0
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?!", number)


def test_a_saved_session_goes_on(runtime, tmp_path):
    with runtime.session() as session:
        said(session, json_schema=PERSON)
        session.save(tmp_path / "session")
    with runtime.load_session(tmp_path / "session") as session:
        jsonschema.validate(json.loads(said(session, json_schema=PERSON)), PERSON)


def test_drafts_say_what_is_said_without_them(open_runtime, monkeypatch):
    monkeypatch.setattr(SpeculationGate, "allows_draft", lambda gate, draft: True)
    reds = {"type": "array", "items": {"const": "red"}, "minItems": 20, "maxItems": 20}
    replies, accepted = {}, 0
    for prompt_lookup in ("off", "on"):
        with open_runtime(prompt_lookup=prompt_lookup) as rt, rt.session() as session:
            replies[prompt_lookup] = []
            for schema in (PERSON, reds, reds):
                replies[prompt_lookup].append(said(session, words(40), json_schema=schema))
                accepted += session.stats.accepted_tokens
    assert replies["on"] == replies["off"]
    assert accepted > 20


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_honoured_is_refused_before_anything_is_read(session, name):
    with pytest.raises(edgekv.GrammarError, match=r"json_schema"):
        said(session, json_schema=HOSTILE[name])
    assert session.n_past == 0


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_heavy_has_an_end(session, name):
    with suppress(edgekv.GrammarError):
        said(session, json_schema=HEAVY[name], sampling=DRAWN, max_tokens=300)
    assert session.stats.finish_reason in ("end", "length", "failed")
    jsonschema.validate(json.loads(said(session, json_schema=PERSON)), PERSON)


@pytest.mark.parametrize(
    "grammar",
    ["", 5, 'root ::= "a', "root ::= nothing", 'top ::= "a"', "start: nothing", "((((", "a" * (1 << 19),
     "root ::= root", "root ::= [", 'root ::= "a" {9999999999}', "(" * 20_000, 'root ::= ' + "(" * 20_000],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(session, grammar):
    with pytest.raises(edgekv.GrammarError, match=r"grammar"):
        said(session, grammar=grammar)
    assert session.n_past == 0


def test_one_of_the_two(session):
    with pytest.raises(edgekv.GrammarError, match="both"):
        said(session, grammar=DIGITS, json_schema=PERSON)


def test_recursive_schemas_are_honoured(session):
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}},
                "required": ["children"],
                "additionalProperties": False,
            }
        },
    }
    reply = said(session, json_schema=tree)
    if session.stats.finish_reason == "end":
        jsonschema.validate(json.loads(reply), tree)
    assert reply.startswith("{")


ALTERNATIVES = [{"anyOf": [{"type": "object", "required": [f"{i}.{j}"]} for j in range(12)]} for i in range(4)]


@pytest.mark.parametrize(
    ("schema", "combined"),
    [
        ({"allOf": ALTERNATIVES}, True),
        ({"anyOf": ALTERNATIVES, "$ref": "#/$defs/x", "$defs": {"x": {"anyOf": ALTERNATIVES * 3}}}, True),
        ({"allOf": [{"$ref": "#/$defs/x"}] * 2, "$defs": {"x": {"items": {"allOf": ALTERNATIVES}}}}, True),
        ({"properties": {"a": {"items": [{"allOf": ALTERNATIVES}]}}}, True),
        ({"anyOf": ALTERNATIVES}, False),
        ({"allOf": ALTERNATIVES[:1]}, False),
        ({"allOf": ALTERNATIVES[:2]}, False),
        ({"anyOf": ALTERNATIVES, "$ref": "#/$defs/x"}, False),
        ({"allOf": [PERSON, {"type": "object", "required": ["name"]}]}, False),
        ({"allOf": [{"$ref": "#"}, {"anyOf": [{}, {"$ref": "#"}]}]}, False),
        (PERSON, False),
    ],
)
def test_schemas_whose_alternatives_are_combined(schema, combined):
    assert grammar_of(None, schema).multiplies is combined


def test_what_combining_takes_must_be_there(open_runtime):
    with open_runtime() as rt, rt.session() as session:
        with pytest.raises(edgekv.GrammarError, match="json_schema"):
            said(session, json_schema={"allOf": ALTERNATIVES})
        rt.guard._plan = dataclasses.replace(rt.plan, ceiling_bytes=process.resident_bytes() + (16 << 20))
        with pytest.raises(edgekv.GrammarError, match=r"memory=.* combine the alternatives of json_schema.* no allOf"):
            said(session, json_schema={"allOf": ALTERNATIVES})
        assert session.n_past == 0


def test_a_few_alternatives_are_combined_without_further_memory(session, monkeypatch):
    monkeypatch.delattr(LoadedModel, "room_to_combine")
    both = {"allOf": [PERSON, {"properties": {"age": {"maximum": 9}}}, {"anyOf": [{"required": ["name"]}] * 2}]}
    person = json.loads(said(session, json_schema=both))
    jsonschema.validate(person, PERSON)
    assert person["age"] <= 9


def test_a_runtime_that_rules_grammars_out_says_what_it_needs(open_runtime):
    with open_runtime(grammars=False) as rt, rt.session() as session:
        with pytest.raises(
            edgekv.ConfigError, match=r"grammars=False rules that out; open the runtime with grammars=True"
        ):
            said(session, json_schema=PERSON)
        assert session.n_past == 0


@pytest.fixture(scope="module")
def cramped(tiny_model):
    """A function that opens a runtime whose cells fill the ceiling, and which nobody told of grammars."""
    path = tiny_model(n_layer=4, n_ctx_train=1 << 14, n_head=8, n_head_kv=8, head_dim=128, quantization="Q8_0")

    def cramped(**options):
        rt = edgekv.Runtime(path, **SETTINGS | {"budget": 1200, "swap_memory": 0} | options)
        rt.memory = rt.plan.peak_bytes  # another plan of the same options would measure this process anew
        return rt

    return cramped


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_cells_are_given_up_for_the_first_grammar(cramped, isolated):
    with cramped(isolated=isolated) as rt, rt.session() as session, rt.session() as beside:
        opened = rt.plan
        beside.read(words(300), focus=False)
        n_cells = beside.n_cells
        session.read(words(10))
        jsonschema.validate(json.loads(said(session, "Who?", json_schema=PERSON)), PERSON)
        taken = rt.plan.parts.grammars
        assert opened.parts.grammars == 0 < taken
        assert rt.plan.peak_bytes <= rt.memory == opened.ceiling_bytes
        assert (opened.budget_cells - rt.plan.budget_cells) * rt.plan.cell_bytes >= taken
        assert beside.n_cells == rt.plan.budget_cells < n_cells
        planned = rt.plan
        assert said(beside, "Yes?", grammar='root ::= "yes" | "no"') in ("yes", "no")
        assert rt.plan is planned  # once is enough
        rt.memory = rt.memory + (64 << 20)
        assert (rt.plan.budget_cells, rt.plan.parts.grammars) == (opened.budget_cells, taken)


def test_a_ceiling_without_room_for_grammars_refuses_them(cramped):
    with cramped(budget=512) as rt, rt.session() as session:  # they take less than grammars
        opened = rt.plan
        session.read(words(10))
        n_past = session.n_past
        with pytest.raises(edgekv.CeilingError, match="name at least"):
            said(session, json_schema=PERSON)
        assert (rt.plan, session.n_past) == (opened, n_past)
        assert said(session, max_tokens=2) or session.stats.finish_reason == "end"
        rt.memory = "4GiB"
        jsonschema.validate(json.loads(said(session, json_schema=PERSON)), PERSON)
