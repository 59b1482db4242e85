"""`edgekv ask --json-schema` and `--grammar`."""

from __future__ import annotations

import json

import jsonschema
import pytest
from command import SMALL, run_here

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def ask(tiny_model):
    """A function from options to the answer to "Hello"."""
    path = tiny_model(n_layer=2, n_ctx_train=2048)

    def ask(*options, model=path, small=SMALL, question="Hello"):
        return run_here("ask", "-m", model, *small, *options, question)

    return ask


@pytest.mark.parametrize("how", ["file", "text"])
def test_an_answer_fits_a_schema(ask, text_file, how):
    schema = json.dumps(SCHEMA | {"$schema": "https://json-schema.org/draft/2020-12/schema"})
    result = ask("--json-schema", text_file(schema) if how == "file" else f" {schema}")
    assert result.returncode == 0, result.stderr
    jsonschema.validate(json.loads(result.stdout), SCHEMA)


@pytest.mark.parametrize("grammar", ['root ::= "maybe" | "perhaps"', 'start: "maybe"\n     | "perhaps"'])
@pytest.mark.parametrize("how", ["file", "text"])
def test_an_answer_follows_a_grammar(ask, text_file, grammar, how):
    result = ask("--grammar", text_file(grammar) if how == "file" else grammar)
    assert result.stdout.strip() in ("maybe", "perhaps")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--json-schema": '{"not": {}}'}, "--json-schema cannot be followed: "),
        ({"--json-schema": "no JSON"}, "--json-schema is not JSON"),
        ({"--grammar": "root ="}, "grammar has '=' in line 1 where ::= must stand"),
        ({"--grammar": 'root ::= "a"', "--json-schema": "{}"}, "are both given"),
        ({"--json-schema": ""}, "holds nothing"),
    ],
)
def test_what_cannot_be_honoured_is_told_in_the_words_of_the_command(ask, text_file, options, message):
    files = [word for name, text in options.items() for word in (name, text_file(text))]
    result = ask(*files)
    assert result.returncode == 2, result.stderr
    assert message in " ".join(result.stderr.split())


def test_the_default_model_gives_json(ask, text_file, default_model):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    }
    small = ["--memory", "4GiB", "--budget", "512", "--threads", "1"]
    question = "What is the capital of France? Answer as JSON with city and is_capital."
    result = ask("--json-schema", text_file(json.dumps(schema)), model=default_model, small=small, question=question)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    jsonschema.validate(answer, schema)
    assert answer == {"city": "Paris", "is_capital": True}
