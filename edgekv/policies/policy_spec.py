"""Specs of policies: `base[+wrapper]*`, each with optional `(key=value, ...)`; the same everywhere.

A base is a name, or `onnx:PATH.onnx`; the path may contain any characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from edgekv.errors import PolicyError

from .base import Policy
from .custom.onnx import GraphOptions, load_graph
from .registry import GRAPH, WRAPPERS, as_custom, base_names, find_policy
from .wrappers import Wrapper

_PART = re.compile(r"\s*([\w-]+)(?:\s*\(([^()]*)\))?\s*")
# The last `.onnx` that only options and wrappers follow ends the path.
_GRAPH = re.compile(rf"\s*{GRAPH}:\s*(.*\.(?i:onnx))(?:\s*\(([^()]*)\))?\s*(\+.*)?", re.DOTALL)
_WORDS = {"true": True, "on": True, "false": False, "off": False, "none": None}


def parse_policy(spec: str | Policy) -> Policy:
    """Return the policy of a spec. A built-in Policy is returned as it is; another Policy is scored by its own formula.

    Raises PolicyError for names, keys, values and combinations that do not exist, with those that do, and for packages
    and graphs that cannot be used.
    """
    if isinstance(spec, Policy):
        return as_custom(spec)
    if not isinstance(spec, str):
        raise _misspelt(spec)
    if graph := _GRAPH.fullmatch(spec):
        path, options, tail = graph.groups()
        wrappers = _parts(spec, tail[1:]) if tail else []
        policy: Policy = load_graph(path, GraphOptions(**_options(GRAPH, dataclasses.fields(GraphOptions), options)))
    elif spec.lstrip().startswith(f"{GRAPH}:"):
        raise PolicyError(
            f"policy {spec!r} names no graph; spell it {GRAPH}:PATH.onnx, with (options) and +wrappers after it"
        )
    else:
        (name, options), *wrappers = _parts(spec, spec)
        policy = _base(name, options)
    for name, options in wrappers:
        if name not in WRAPPERS:
            raise PolicyError(f"wrapper {name!r} is unknown; possible: {', '.join(WRAPPERS)}")
        wrapper: type[Wrapper] = WRAPPERS[name]
        policy = wrapper(inner=policy, **_options(name, wrapper.options(), options))
    return policy


def _base(name: str, options: str | None) -> Policy:
    """Return the base of that name. Raises PolicyError."""
    if name in WRAPPERS:
        raise PolicyError(f"{name} wraps a base, as in keydiff+{name}; bases: {', '.join(base_names())}")
    found = find_policy(name)
    if isinstance(found, Policy):
        _options(name, (), options)
        return found
    given = _options(name, found.options(), options)
    try:
        return as_custom(found(**given))
    except PolicyError:
        raise
    except Exception as error:  # a package's class
        raise PolicyError(f"policy {name!r} of {found.__module__} fails: {type(error).__name__}: {error}") from error


def _parts(spec: str, text: str) -> list[tuple[str, str | None]]:
    """`name(options)+name(options)` -> names and the texts of their options. Raises PolicyError."""
    parts = []
    for part in re.split(r"\+(?![^(]*\))", text):
        found = _PART.fullmatch(part)
        if found is None:
            raise _misspelt(spec)
        parts.append((found[1], found[2]))
    return parts


def _misspelt(spec: object) -> PolicyError:
    return PolicyError(
        f"policy {spec!r} is not spelt base or base(key=value, ...)+wrapper(...); bases: {', '.join(base_names())}; "
        f"wrappers: {', '.join(WRAPPERS)}"
    )


def _options(name: str, fields: Iterable[dataclasses.Field[Any]], text: str | None) -> dict[str, Any]:
    """Parse `key=value, ...` as arguments of a policy with these fields."""
    fields = list(fields)
    names = {field.name: field.name for field in fields}
    names |= {field.metadata["alias"]: field.name for field in fields if field.metadata["alias"]}
    given: dict[str, Any] = {}
    for item in map(str.strip, text.split(",") if text and text.strip() else ()):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in names:
            possible = ", ".join(f"{field.name}=" for field in fields) or "none"
            raise PolicyError(f"{name} has no option {item!r}; possible: {possible}")
        if names[key] in given:
            raise PolicyError(f"{name} is given {key}= twice; give it once")
        given[names[key]] = _value(value)
    return given


def _value(text: str) -> object:
    """Return a number, a truth value or None if the text is one, else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text
