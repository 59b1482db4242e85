"""The policies by name: built in, registered by the program, or from installed packages; and specs, which name them.

A spec is `base[+wrapper]*`, each with optional `(key=value, ...)`; the same everywhere. A base is a name, or
`onnx:PATH.onnx`; the path may contain any characters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgekv.errors import PolicyError

from .ada import Ada
from .ahakv import AhaKV
from .base import Policy
from .caote import Caote, FastCaote
from .critical import Critical
from .custom.onnx import GraphOptions, load_graph
from .custom.python_policy import PythonPolicy
from .custom.scorer import Custom, Scorer, ScratchBytes
from .h2o import H2O
from .keydiff import KeyDiff
from .l2norm import L2Norm
from .pyramid import Pyramid
from .random import Random
from .sink import Sink
from .snapkv import SnapKV
from .tova import Tova
from .wrappers import Wrapper

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (KeyDiff, SnapKV, AhaKV, H2O, Tova, L2Norm, Sink, Random)
}
WRAPPERS: dict[str, type[Wrapper]] = {wrapper.name: wrapper for wrapper in (Caote, FastCaote, Critical, Ada, Pyramid)}
GRAPH = "onnx"  # base of the spec onnx:PATH.onnx

GROUP = "edgekv.policies"  # entry points of packages

_PART = re.compile(r"\s*([\w-]+)(?:\s*\(([^()]*)\))?\s*")
# The last `.onnx` that only options and wrappers follow ends the path.
_GRAPH = re.compile(rf"\s*{GRAPH}:\s*(.*\.(?i:onnx))(?:\s*\(([^()]*)\))?\s*(\+.*)?", re.DOTALL)
_WORDS = {"true": True, "on": True, "false": False, "off": False, "none": None}

_registered: dict[str, Scorer] = {}


@dataclass(frozen=True, slots=True)
class Available:
    """A policy that a spec may name.

    kind: "base" or "wrapper"; source: "built in", "registered", or the distribution that it comes from
    options: its options; a package's policy has none here until it is used
    paper: the paper of a built-in policy; None = there is none
    """

    name: str
    kind: str
    source: str
    summary: str
    options: tuple[dataclasses.Field[Any], ...] = ()
    paper: str | None = None


def register(
    name: str,
    scorer: Callable[..., Any],
    *,
    summary: str = "",
    weights: bool = False,
    rows: int = 32,
    scratch_bytes: ScratchBytes | None = None,
    replace: bool = False,
) -> None:
    """Register a function as a policy of this process, under a name.

    scorer: a function of some of keys, values, queries, positions and query_positions, by name, that returns a score
        for every cell; see `Scorer`
    summary: one line for `edgekv policies`
    weights: its scores are never negative
    rows: number of newest tokens whose queries it gets, if it takes queries
    scratch_bytes: a function of (n_cells, n_head_kv, n_head, head_dim_k, head_dim_v) that returns the most bytes that
        a call needs beside its arguments
    replace: it may replace a scorer of the same name

    Raises PolicyError for a name or parameters that are not possible.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
        raise PolicyError(f"policy name {name!r} is not possible; give letters, digits, - and _")
    if name in POLICIES or name in WRAPPERS or name == GRAPH:
        raise PolicyError(f"policy {name!r} is built in; give another name")
    made = Scorer.of(name, scorer, summary=summary, weights=weights, rows=rows, scratch_bytes=scratch_bytes)
    if name in _registered and not replace:
        raise PolicyError(f"policy {name!r} is registered already; give another name, or replace=True")
    _registered[name] = made


def unregister(name: str) -> None:
    """Remove a registered scorer. Policies made of it still work. Raises PolicyError for an unknown name."""
    if name not in _registered:
        raise PolicyError(f"policy {name!r} is not registered; registered: {', '.join(_registered) or 'none'}")
    del _registered[name]


def is_registered(policy: Policy) -> bool:
    """Return True if its scorer is registered, so that only this process knows it by name."""
    return isinstance(policy, Custom) and policy.scorer in _registered.values()


def available() -> list[Available]:
    """Return all policies that a spec may name: bases, then wrappers. Packages are not imported for it."""
    listed = [_built_in(kind, "base") for kind in POLICIES.values()]
    graph = tuple(dataclasses.fields(GraphOptions))
    listed.append(Available(f"{GRAPH}:PATH.onnx", "base", "built in", "an ONNX graph, run by onnxruntime", graph))
    listed += [Available(name, "base", "registered", scorer.summary) for name, scorer in _registered.items()]
    taken = {*POLICIES, *WRAPPERS, *_registered, GRAPH}
    listed += [
        Available(entry.name, "base", _source(entry), entry.value)
        for entry in _entry_points()
        if entry.name not in taken
    ]
    listed += [_built_in(kind, "wrapper") for kind in WRAPPERS.values()]
    return listed


def _built_in(policy: type[Policy], kind: str) -> Available:
    return Available(policy.name, kind, "built in", policy.summary, tuple(policy.options()), policy.paper)


def parse_policy(spec: str | Policy) -> Policy:
    """Return the policy of a spec. A built-in Policy is returned as it is; another Policy is scored by its own formula.

    Raises PolicyError for names, keys, values and combinations that do not exist, with those that do, and for packages
    and graphs that cannot be used.
    """
    if isinstance(spec, Policy):
        return _as_custom(spec)
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
        f"policy {spec!r} is not spelt base or base(key=value, ...)+wrapper(...); bases: {', '.join(_base_names())}; "
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


def _base(name: str, options: str | None) -> Policy:
    """Return the base of that name. Raises PolicyError."""
    if name in WRAPPERS:
        raise PolicyError(f"{name} wraps a base, as in keydiff+{name}; bases: {', '.join(_base_names())}")
    found = _find_policy(name)
    if isinstance(found, Policy):
        _options(name, (), options)
        return found
    given = _options(name, found.options(), options)
    try:
        return _as_custom(found(**given))
    except PolicyError:
        raise
    except Exception as error:  # a package's class
        raise PolicyError(f"policy {name!r} of {found.__module__} fails: {type(error).__name__}: {error}") from error


def _find_policy(name: str) -> type[Policy] | Custom:
    """Return the class of a base that takes options, or a policy that takes none.

    The search goes from built-in policies to registered ones, then to entry points of installed packages. Raises
    PolicyError with the possible names if there is none, and with the distribution of a broken entry point.
    """
    if name in POLICIES:
        return POLICIES[name]
    if name in _registered:
        return Custom(_registered[name])
    found = [entry for entry in _entry_points() if entry.name == name]
    if not found:
        raise PolicyError(f"policy {name!r} is unknown; possible: {', '.join(_base_names())}")
    if len(found) > 1:
        sources = ", ".join(map(_source, found))
        raise PolicyError(f"policy {name!r} comes from several packages: {sources}; uninstall all but one")
    return _load(found[0])


def _as_custom(policy: Policy) -> Policy:
    """Return a policy for the runtime: a policy from outside edgekv is scored by its Python formula."""
    if isinstance(policy, Wrapper):
        inner = _as_custom(policy.inner)
        return policy if inner is policy.inner else dataclasses.replace(policy, inner=inner)
    return policy if isinstance(policy, Custom) or type(policy) in POLICIES.values() else PythonPolicy.of(policy)


def _base_names() -> list[str]:
    """Return the spellings of all bases, for messages."""
    brought = [entry.name for entry in _entry_points()]
    return list(dict.fromkeys([*POLICIES, *_registered, *brought, f"{GRAPH}:PATH.onnx"]))


def _entry_points() -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and most programs do not need it

    yield from entry_points(group=GROUP)


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def _load(entry: EntryPoint) -> type[Policy] | Custom:
    """Load the policy of an entry point. Raises PolicyError with its distribution."""
    where = f"policy {entry.name!r} of {_source(entry)} ({entry.value})"
    try:
        loaded = entry.load()
    except Exception as error:
        raise PolicyError(f"{where} cannot be loaded: {type(error).__name__}: {error}; mend or uninstall it") from error
    if isinstance(loaded, Scorer):
        return Custom(dataclasses.replace(loaded, name=entry.name))
    if isinstance(loaded, type) and issubclass(loaded, Policy) and not issubclass(loaded, Wrapper):
        named = getattr(loaded, "name", None)
        if named != entry.name:
            raise PolicyError(f"{where} has the name {named!r}; give class and entry point the same")
        return loaded
    try:
        return Custom(Scorer.of(entry.name, loaded))
    except PolicyError as error:
        raise PolicyError(f"{where} is no function, Scorer or base policy: {error}") from error
