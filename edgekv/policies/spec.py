"""The spelling of policies: `base`, or `base(key=value, ...)`, the same in Python and on the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import re

from edgekv.errors import PolicyError

from .base import Policy
from .keydiff import KeyDiff
from .random import Random
from .sink import Sink

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (KeyDiff, Sink, Random)}

_SPEC = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*")


def parse_policy(spec: str | Policy) -> Policy:
    """The policy that a spec means; a Policy is returned as it is.

    Raises PolicyError, listing what is possible, for names, keys and values that do not exist.
    """
    if isinstance(spec, Policy):
        return spec
    match = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise PolicyError(f"policy {spec!r} is not spelt base or base(key=value, ...); bases: {', '.join(POLICIES)}")
    name, options = match.groups()
    if name not in POLICIES:
        raise PolicyError(f"policy {name!r} is unknown; possible: {', '.join(POLICIES)}")
    kind = POLICIES[name]
    known = [field.name for field in dataclasses.fields(kind)]
    given: dict[str, object] = {}
    for item in filter(None, map(str.strip, (options or "").split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise PolicyError(f"{name} has no option {item!r}; possible: {', '.join(f'{k}=' for k in known)}")
        if key in given:
            raise PolicyError(f"{name} is given {key}= twice; give it once")
        given[key] = _value(value)
    return kind(**given)


def _value(text: str) -> object:
    """A number where the text is one, else the text."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text
