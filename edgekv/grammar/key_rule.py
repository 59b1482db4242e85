"""The rule that no object of a reply has a key twice, which no grammar can express."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .schema_parts import parts


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule that no object of a reply has a key twice.

    before: text that comes before each object; None = the whole reply is JSON
    by_pattern: patterns say which keys there are, so that none may be left
    """

    before: bytes | None = None
    by_pattern: bool = False


def key_rule(schemas: Iterable[Mapping[str, Any]], before: str | None = None) -> KeyRule:
    """Return the rule for replies with JSON that fits these schemas. before: as of `KeyRule`"""
    found = (part.schema for schema in schemas for part in parts(dict(schema)))
    return KeyRule(None if before is None else before.encode(), any("patternProperties" in schema for schema in found))
