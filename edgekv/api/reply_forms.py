"""Define fields for the form of a reply: a JSON schema, a grammar, a regular expression, or one of several texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from .api_errors import ApiError, unsupported
from .body import Body

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class Form(NamedTuple):
    """The form of a reply, from the field `name`: a JSON schema or a grammar."""

    name: str
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None


class StructuredOutputs(Body):
    """The field `structured_outputs` of vLLM's server."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: Any = None


class FormFields(Body):
    """Fields of every endpoint: of llama.cpp's server, of vLLM's (guided_...), and `format` of Ollama's.

    grammar, guided_grammar: in GBNF or Lark's syntax
    """

    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    format: str | dict[str, Any] | None = None

    def form(self, own: str, schema: Any) -> dict[str, Any]:
        """Return the form of the reply as arguments of a `ReplyRequest`. Raises ApiError if two fields name one.

        own: the API's own field for it; schema: the schema in that field; None = no schema
        """
        said = [*([Form(own, schema)] if schema is not None else []), *self._forms()]
        if len(said) > 1:
            what = f"{' and '.join(form.name for form in said)} each say what the reply must be; give one of them"
            raise ApiError(400, "invalid_value", what, param=said[1].name)
        return {"json_schema": said[0].json_schema, "grammar": said[0].grammar} if said else {}

    def _forms(self) -> Iterator[Form]:
        if self.json_schema is not None:
            yield Form("json_schema", self.json_schema)
        if self.grammar:
            yield Form("grammar", grammar=self.grammar)
        given = self.structured_outputs or StructuredOutputs()
        if given.structural_tag is not None:
            raise unsupported("structured_outputs.structural_tag", "tags within a reply cannot be had; give a grammar")
        for name, schema in (("guided_json", self.guided_json), ("structured_outputs.json", given.json_)):
            if schema is not None:
                yield Form(name, _schema(schema, name))
        if given.json_object:
            yield Form("structured_outputs.json_object", ANY_OBJECT)
        if (form := schema_of_format(self.format)) is not None:
            yield Form("format", form)
        for name, regex in (("guided_regex", self.guided_regex), ("structured_outputs.regex", given.regex)):
            if regex:
                yield Form(name, grammar=_grammar_of_regex(regex))
        for name, choice in (("guided_choice", self.guided_choice), ("structured_outputs.choice", given.choice)):
            if choice is not None:
                yield Form(name, grammar=f"root ::= {' | '.join(map(_literal, choice))}")
        for name, grammar in (("guided_grammar", self.guided_grammar), ("structured_outputs.grammar", given.grammar)):
            if grammar:
                yield Form(name, grammar=grammar)


def schema_of_format(form: str | dict[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the JSON schema of a field `format`; None = any text. Raises ApiError."""
    if isinstance(form, str) and form not in ("", "json"):
        what = f"format is {form[:40]!r}; give 'json', or a JSON schema as an object"
        raise ApiError(400, "unsupported_value", what, param="format")
    return ANY_OBJECT if form == "json" else form if isinstance(form, dict) else None


def _schema(given: dict[str, Any] | str, name: str) -> dict[str, Any]:
    """Return a schema, which may come as the text of one. Raises ApiError."""
    if isinstance(given, dict):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise ApiError(400, "invalid_value", f"{name} is no JSON schema; give an object, or its text", param=name)
    return schema


def _grammar_of_regex(regex: str) -> str:
    """Return the grammar of a regular expression that the whole reply fits, in Lark's syntax."""
    escaped = re.sub(r"(?s:\\.)|/", lambda found: r"\/" if found[0] == "/" else found[0], regex)
    return f"start: /{escaped}/".replace("\n", r"\n")


def _literal(text: str) -> str:
    """Return a text as a grammar in GBNF writes it."""
    escaped = re.sub(r'[\\"]', r"\\\g<0>", text)
    return '"' + re.sub(r"[\0-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", escaped) + '"'
