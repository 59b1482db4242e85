"""The model and the options that a batch runs with. Replies depend on these and on their requests alone.

The options lie beside the results, so that a batch goes on as it began even if the planner would now choose others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import edgekv
from edgekv.errors import CeilingError, ConfigError
from edgekv.memory.sizes import MIB
from edgekv.options import Options
from edgekv.server.slots import n_slots
from edgekv.store.atomic_write import atomic_write
from edgekv.store.fingerprint import fingerprint

SUFFIX = ".batch"  # follows the name of the results
MOST_SLOTS = 4  # most slots to choose; steps of more tokens round in another way than steps of one
SLACK_BYTES = 2 * MIB  # difference between what two processes measure of themselves, at most
CHOSEN = (
    "policy",
    "budget",
    "block",
    "kv_type",
    "repack",
    "resident",
    "gpu_layers",
    "tensor_split",
)  # the planner chooses these if nobody names them
NAMED = (
    "budget",
    "block",
    "ubatch",
    "kv_type",
    "repack",
    "resident",
    "n_sink",
    "recent",
    "evict_every",
    "focus",
    "probe_tokens",
    "reposition",
    "prompt_lookup",
    "allow_beyond_trained",
    "archive",
    "gpu_layers",
    "grammars",
)


@dataclass(frozen=True)
class RunConfig:
    """The model and options of a batch. Equal ones give equal replies.

    model: path of its file
    options: arguments of `edgekv.Runtime`, with nothing left to the planner. The model is in a worker process, or in
        this one if `parallel` has several sessions share its steps
    chosen: the same options, validated
    described: all that replies depend on, as plain values; the model by name and digest
    """

    model: Path
    options: dict[str, Any]
    chosen: Options
    described: dict[str, Any]

    @property
    def step(self) -> int:
        """Tokens between the places where a text may be cut and is still decoded as in one piece."""
        block, ubatch = self.chosen.block, self.chosen.n_ubatch
        return ubatch if block % ubatch == 0 else block


def resolve(path: Path, options: dict[str, Any], results: Path, *, has_results: bool) -> RunConfig:
    """Return the config that the results were begun with, or choose a new one and write it beside them.

    path: file of the model; options: arguments of `edgekv.Runtime`; options that are None are chosen here, `parallel`
        as many as cost no cells, at most MOST_SLOTS
    has_results: True = there are results already

    Raises ConfigError for options that differ from those of the results, and if the file with these is lost; and what
    `edgekv.plan` raises.
    """
    file = results.with_name(results.name + SUFFIX)
    kept = _read(file, results) if has_results else None
    named = {name: value for name, value in options.items() if value is not None}
    if kept is not None:
        named = {name: kept[name] for name in CHOSEN if name in kept} | {"parallel": kept.get("parallel", 1)} | named
    elif "parallel" not in named:
        named["parallel"] = n_slots(path, MOST_SLOTS, **named)
    chosen = _planned(path, named)
    described = _described(path, chosen)
    if kept is None:
        _write(file, described)
    elif kept != described:
        name = next(name for name in (*described, *kept) if kept.get(name) != described.get(name))
        raise ConfigError(
            f"{results} was begun with {name}={kept.get(name)}, and this would be {name}={described.get(name)}; give "
            "what it was begun with, or name another file for the results"
        )
    settled = {name: getattr(chosen, name) for name in (*CHOSEN, "mmap")}
    settled |= {"policy": chosen.policy or chosen.parsed_policy.spec}
    settled |= {"memory": chosen.ceiling_bytes, "isolated": chosen.isolated}
    return RunConfig(path, named | settled, chosen, described)


def _planned(model: Path, named: dict[str, Any]) -> Options:
    """Return options, with nothing left open, that every worker can open under this ceiling."""
    named = named | {"isolated": named["parallel"] == 1}
    options = Options(**named)
    if options.budget is None:
        try:
            plan = edgekv.plan(model, **named | {"memory": options.ceiling_bytes - SLACK_BYTES})
        except CeilingError:
            pass  # there is no slack to leave
        else:
            return replace(plan.resolve(options), memory=options.ceiling_bytes)
    return edgekv.plan(model, **named).resolve(options)


def _described(model: Path, options: Options) -> dict[str, Any]:
    return {
        "edgekv": version("edgekv"),
        "model": fingerprint(model),
        "policy": options.parsed_policy.spec,
        "focus_policy": options.parsed_focus.spec if options.focus else None,
        **{name: getattr(options, name) for name in NAMED},
        **({"tensor_split": list(options.split)} if options.split else {}),
        **({"chat_template": fingerprint(Path(options.chat_template))} if options.chat_template else {}),
        **({} if options.thinking is None else {"thinking": options.thinking}),
        **({"parallel": options.parallel} if options.parallel > 1 else {}),  # larger steps round in another way
    }


def _read(file: Path, results: Path) -> dict[str, Any]:
    try:
        kept = json.loads(file.read_bytes())
    except FileNotFoundError:
        kept = None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; name another file for the results") from error
    if not isinstance(kept, dict):
        raise ConfigError(
            f"{file} does not say how the results in {results} were made; put it back, or name another file for them"
        )
    return kept


def _write(file: Path, described: dict[str, Any]) -> None:
    try:
        with atomic_write(file) as new:
            new.write((json.dumps(described, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror or error}; name another file for the results"
        ) from error
