"""The spelling of policies: `base[+wrapper]*`, each with optional `(key=value, ...)`; the same everywhere."""

from __future__ import annotations

import contextlib
import re

from edgekv.errors import PolicyError

from .ahakv import AhaKV
from .base import Policy
from .caote import Caote, FastCaote
from .critical import Critical
from .h2o import H2O
from .keydiff import KeyDiff
from .l2norm import L2Norm
from .random import Random
from .sink import Sink
from .snapkv import SnapKV
from .tova import Tova
from .wrappers import Wrapper

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (KeyDiff, SnapKV, AhaKV, H2O, Tova, L2Norm, Sink, Random)
}
WRAPPERS: dict[str, type[Wrapper]] = {wrapper.name: wrapper for wrapper in (Caote, FastCaote, Critical)}

_PART = re.compile(r"\s*([\w-]+)\s*(?:\(([^()]*)\))?\s*")
_WORDS = {"true": True, "on": True, "false": False, "off": False, "none": None}


def parse_policy(spec: str | Policy) -> Policy:
    """The policy that a spec means; a Policy is returned as it is.

    Raises PolicyError, listing what is possible, for names, keys, values and combinations that do not exist.
    """
    if isinstance(spec, Policy):
        return spec
    parts = [_PART.fullmatch(part) for part in re.split(r"\+(?![^(]*\))", spec)] if isinstance(spec, str) else [None]
    first, *rest = parts
    if first is None or None in rest:
        raise PolicyError(
            f"policy {spec!r} is not spelt base or base(key=value, ...)+wrapper(...); bases: {', '.join(POLICIES)}; "
            f"wrappers: {', '.join(WRAPPERS)}"
        )
    name = first[1]
    if name in WRAPPERS:
        raise PolicyError(f"{name} wraps a base, as in keydiff+{name}; bases: {', '.join(POLICIES)}")
    if name not in POLICIES:
        raise PolicyError(f"policy {name!r} is unknown; possible: {', '.join(POLICIES)}")
    policy = POLICIES[name](**_options(POLICIES[name], first[2]))
    for part in filter(None, rest):
        if part[1] not in WRAPPERS:
            raise PolicyError(f"wrapper {part[1]!r} is unknown; possible: {', '.join(WRAPPERS)}")
        wrapper = WRAPPERS[part[1]]
        policy = wrapper(inner=policy, **_options(wrapper, part[2]))
    return policy


def _options(kind: type[Policy], text: str | None) -> dict[str, object]:
    """`key=value, ...` as arguments of a policy."""
    fields = list(kind.options())
    names = {field.name: field.name for field in fields}
    names |= {field.metadata["alias"]: field.name for field in fields if field.metadata["alias"]}
    given: dict[str, object] = {}
    for item in map(str.strip, text.split(",") if text and text.strip() else ()):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in names:
            possible = ", ".join(f"{field.name}=" for field in fields) or "none"
            raise PolicyError(f"{kind.name} has no option {item!r}; possible: {possible}")
        if names[key] in given:
            raise PolicyError(f"{kind.name} is given {key}= twice; give it once")
        given[names[key]] = _value(value)
    return given


def _value(text: str) -> object:
    """A number, a truth value or None where the text is one, else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text
