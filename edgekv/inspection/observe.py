"""Observations: a text is read, and its kept tokens are shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgekv.documents.text_file import read_text
from edgekv.errors import ConfigError, InputError, UnsupportedModelError
from edgekv.generation.request import INSTRUCTION, ProgressCallback
from edgekv.generation.stats import Stats
from edgekv.options import Options
from edgekv.planning.plan import Plan
from edgekv.prompt.named_files import File, NamedFile, contents_of, named_files
from edgekv.prompt.spool import rereadable
from edgekv.prompt.text import Prompt
from edgekv.runtime import Runtime

from .feed_recorder import Head, recording
from .kept_tokens import Kept, runs
from .keys import KeyStudy

LONGEST = 8192  # tokens
MAX_HEADS = 16  # the most heads that have their keys noted
SPREAD = 4  # noted heads if none are named
PIECE_BYTES = 72  # bytes of a token's text, and of its place in a list


@dataclass(frozen=True)
class Observation:
    """Tokens of a text that were kept, and how the text was read.

    question: the question that the text was read for; None = none
    budgets: cells that the last eviction left to each head, by layer; 0 if nothing was evicted
    answer: empty if only the prompt was read
    """

    question: str | None
    kept: Kept
    keys: tuple[KeyStudy, ...]
    budgets: list[list[int]]
    answer: str
    plan: Plan
    options: Options
    stats: Stats

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON. Positions that a head keeps are ranges [p0, p1)."""
        stats = self.stats
        return {
            "model": str(self.plan.model),
            "policy": self.options.parsed_policy.spec,
            "focus": self.options.parsed_focus.spec if stats.probes else None,
            "budget_cells": self.plan.budget_cells,
            "block": self.plan.block,
            "kv_type": self.plan.kv_type,
            "prompt_tokens": stats.prompt_tokens,
            "evictions": stats.evictions,
            "repositions": stats.repositions,
            "peak_rss_bytes": stats.peak_rss_bytes,
            "question": self.question,
            "answer": self.answer,
            "budgets": self.budgets,
            "pieces": list(self.kept.pieces),
            "counts": self.kept.counts.tolist(),
            "archived": self.kept.archived,
            "heads": [
                {"layer": layer, "head": head, "n_kept": int(row.sum()), "kept": runs(row)}
                for (layer, head), row in zip(self.kept.heads, self.kept.mask, strict=True)
            ],
            "keys": [study.as_dict() for study in self.keys],
        }


def observe(
    runtime: Runtime,
    question: str | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    instruction: str = INSTRUCTION,
    system: str | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    keys: bool = True,
    max_tokens: int = 0,
    longest: int | None = None,
    progress: ProgressCallback | None = None,
) -> Observation:
    """Read files with a question in mind as `Session.ask` does, or without a question as a plain text.

    instruction: text before a question about files, as in `Session.ask`; "" = none
    layers, heads: study the keys of these heads of these layers. With layers alone: of all their heads; with heads
        alone: in all layers; with neither: of a few heads spread over the model
    keys: False = study no keys
    max_tokens: answer first, with at most this many tokens; 0 = look as soon as the prompt is read
    longest: the most tokens of prompt and answer together, because the copies grow with them; None = LONGEST
    Raises InputError for a longer text before anything is read, CeilingError if there is no room for
    copies, UnsupportedModelError for a model without attention, ConfigError for an isolated runtime, unknown heads, or
    a missing package, and the errors of sessions.
    """
    block_loop = runtime.block_loop
    if max_tokens < 0:
        raise ConfigError(f"max_tokens={max_tokens} is not possible; give at least 0")
    if question is None and not files:
        raise InputError("there is nothing to read; give a question, a text file, or both")
    if question is None and system is not None:
        raise ConfigError("a system message belongs to a chat; give a question too, or leave it out")
    with ExitStack() as copies, runtime.session(system) as session:
        n_heads = [len(layer) for layer in session.budgets()]
        if not n_heads:
            raise UnsupportedModelError(
                f"{runtime.plan.model.name} has no cells of single heads, so it keeps no tokens that could be shown; "
                "choose a model with attention"
            )
        files = [_reread(file, copies) for file in named_files(files)]
        noted = chosen_heads(n_heads, layers, heads) if keys else []
        parts: list[str | os.PathLike[str]] = [
            *(part for content in contents_of(files) for part in content),
            *(text for text in (system, question) if text is not None),
        ]
        _check_length(
            Prompt(runtime.model).content(*parts).count() + max_tokens, LONGEST if longest is None else longest
        )
        # The first token of an answer is computed but not fed, so with one token the cells are those after the prompt.
        limit = max(1, max_tokens)
        with recording(block_loop, noted) as recorder:
            if question is None:
                text = "".join(piece for path in files for piece in read_text(path))
                answer = "".join(session.generate(text, max_tokens=limit, progress=progress))
            else:
                reply = session.ask(question, files, instruction=instruction, max_tokens=limit, progress=progress)
                answer = "".join(reply)
        _check_room(runtime, session.budgets(), len(recorder.tokens), len(noted))
        archived = (0, 0) if block_loop.archive is None else block_loop.archive.positions
        kept = Kept.of(session, runtime.model, recorder.tokens, archived)
        studies = tuple(KeyStudy.of(*head, recorder.keys(head), kept.row(*head)) for head in noted)
        return Observation(
            question=question,
            kept=kept,
            keys=studies,
            budgets=session.budgets(),
            answer=answer if max_tokens else "",
            plan=runtime.plan,
            options=runtime.options,
            stats=session.stats,
        )


def _reread(file: File, copies: ExitStack) -> File:
    """Return a file that can be read more than once, as a text under the same name."""
    copy = copies.enter_context(rereadable(Path(file)))
    return NamedFile(copy, file.name) if isinstance(file, NamedFile) else copy


def _check_length(n_tokens: int, longest: int) -> None:
    if n_tokens > longest:
        raise InputError(
            f"prompt and answer come to {n_tokens} tokens, more than longest={longest}; give a shorter text, or "
            f"longest={n_tokens}, which takes memory"
        )


def _check_room(runtime: Runtime, budgets: list[list[int]], n_tokens: int, n_noted: int) -> None:
    """Raise CeilingError if copies of keys and tokens take the process over its ceiling."""
    of_element = 2 if runtime.options.kv_type == "f16" else 6  # other types are also held as float32
    a_key = of_element * runtime.block_loop.cache.shape.head_dim_k + 16 * n_noted  # a head's key, all points
    runtime.guard.check_room(
        n_tokens * (PIECE_BYTES + sum(map(len, budgets)) + (a_key if n_noted else 0)),
        f"what is copied of {n_tokens} tokens",
        f"or give a shorter text; longest={n_tokens - 1} refuses this one before it is read",
    )


def chosen_heads(n_heads: Sequence[int], layers: Sequence[int] = (), heads: Sequence[int] = ()) -> list[Head]:
    """Return the (layer, head)s that a caller names, ascending; n_heads: KV heads of each layer.

    Raises ConfigError if there is none of a kind, or if they are more than MAX_HEADS.
    """
    n_layer = len(n_heads)
    if not layers and not heads:
        spread = range(min(SPREAD, n_layer))
        picked = [i * (n_layer - 1) // max(1, len(spread) - 1) for i in spread]
        return [(layer, i % n_heads[layer]) for i, layer in enumerate(picked)]
    for layer in layers:
        if not 0 <= layer < n_layer:
            raise ConfigError(f"layer={layer} is not in the model; give one in [0, {n_layer})")
    of_layers = sorted(set(layers)) or range(n_layer)
    for head in heads:
        for layer in of_layers:
            if not 0 <= head < n_heads[layer]:
                raise ConfigError(f"head={head} is not in layer {layer}; give one in [0, {n_heads[layer]})")
    found = [(layer, head) for layer in of_layers for head in sorted(set(heads)) or range(n_heads[layer])]
    if len(found) > MAX_HEADS:
        raise ConfigError(f"the keys of {len(found)} heads are too many; name at most {MAX_HEADS} by layer and head")
    return found
