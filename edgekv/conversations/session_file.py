"""Session files: written cell by cell, and loaded into a runtime that may have another budget or cache type."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.archive.session_archive import Archive
from edgekv.archive.stored_rows import take_rows
from edgekv.binding import structs
from edgekv.binding.cache import Cache
from edgekv.binding.convert_cells import convert_cells
from edgekv.binding.model import Context
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta, read_header
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.block_loop_snapshot import BlockLoopNotes
from edgekv.cells.loaded_model import LoadedModel, open_cache
from edgekv.cells.stored_cells import write_cells
from edgekv.errors import BudgetError, ConfigError, SessionFileError
from edgekv.generation.request import Logging
from edgekv.generation.turn_state import Dialogue
from edgekv.memory import process
from edgekv.memory.sizes import format_size
from edgekv.options import DEFAULT_POLICY, TURNED_POLICY
from edgekv.store.atomic_write import atomic_write
from edgekv.store.log import TokenLog
from edgekv.store.snapshot_file import Section, SnapshotFile, open_snapshot_file
from edgekv.store.snapshot_header import SnapshotHeader

from .session_codec import dialogue_of, header_values, system_of
from .session_history import SessionHistory


def save_session(
    path: Path,
    engine: LoadedModel,
    block_loop: BlockLoop,
    system: str | None,
    dialogue: Dialogue,
    further: Sequence[Section] = (),
    title: str = "",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a session whose cells a block loop has, without a copy of them in memory. It replaces a file as a whole.

    further: more sections, such as `tokens`
    title: what the session is about, for lists; "" = unknown
    about: more values of the header

    Raises SessionFileError if it cannot be written; the file that was there is then untouched.
    """
    values = header_values(system, dialogue) | {"title": title, "saved_with": _saved_with(engine, block_loop)}
    if sys.byteorder != "little":
        raise SessionFileError(
            f"{str(path)!r} cannot be written: session files are little-endian, and this machine is not"
        )
    try:
        with atomic_write(path) as file:
            write_cells(block_loop, file, values | dict(about or {}), *further)
    except OSError as error:
        n_bytes = block_loop.snapshot_bytes + sum(section.n_bytes for section in further)
        raise SessionFileError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; it takes {format_size(n_bytes)}; name a "
            "folder that can be written to and has room; what was there before is untouched"
        ) from error


def load_session(
    path: Path, engine: LoadedModel, block_loop: BlockLoop, archive: Archive | None = None
) -> tuple[str | None, Dialogue]:
    """Load the cells of a saved session into a block loop; returns its system message and dialogue.

    archive: goes on with the archived rows of the file

    Raises SessionFileError, BudgetError or CeilingError for a session that does not fit this engine. The cells are then
    as before. They are empty if a sound file failed later: it could not be read to its end, or its cells could not be
    evicted (NativeError). After any other exception they are of no use, unless `Cache.n_overwritten` is as before.
    """
    with open_snapshot_file(path) as file:
        system, dialogue, notes = system_of(file.header), dialogue_of(file.header), BlockLoopNotes.of(file)
        has_scores = _check(file, engine, dialogue, notes)
        block_loop.archive = None  # the sequence before has its own tokens in it
        try:
            _take(engine, block_loop, file, notes, has_scores)
            if archive is not None:
                take_rows(file, archive, block_loop.cache)
        except BudgetError:
            raise
        except ConfigError as error:
            raise SessionFileError(f"{str(path)!r} cannot be gone on with: {error}") from error
    return system, dialogue


def log_sections(log: TokenLog) -> list[Section]:
    """Return the sections of a log. They are read from the log while they are written."""
    return [Section(name, 4 * len(numbers), numbers.pieces()) for name, numbers in log.parts().items()]


def load_log(path: Path, engine: LoadedModel, logging: Logging) -> SessionHistory | None:
    """Copy the log of a session file into private files; None = the file has no log. Changes nothing else.

    Raises SessionFileError for a damaged file, and if there is no room for the log.
    """
    with open_snapshot_file(path) as file:
        if "tokens" not in file or "marks" not in file:
            return None
        history = SessionHistory(logging, engine.plan)
        try:
            fill_log(history.log, file, engine.model.n_vocab)
        except BaseException:
            history.close()
            raise
        return history


def fill_log(log: TokenLog, file: SnapshotFile, n_vocab: int) -> None:
    """Copy the log of a session file into an empty log. Raises SessionFileError for a damaged one."""
    for name, numbers in log.parts().items():
        for piece in file.numbers(name):
            numbers.extend(piece)
    if len(log) != read_header(file.read_into).n_past or not log.is_sound(n_vocab):
        raise file.damaged("its log is not that of its cells")


def _saved_with(engine: LoadedModel, block_loop: BlockLoop) -> dict[str, Any]:
    cache = block_loop.cache
    return {**model_values(engine), "n_past": cache.n_past, "n_cells": cache.n_cells}


def model_values(engine: LoadedModel) -> dict[str, Any]:
    """Return what a session is saved with."""
    options = engine.options
    return {
        "model": engine.plan.model.name,
        "model_digest": engine.model_digest,
        "policy": options.parsed_policy.spec,
        "focus_policy": options.parsed_focus.spec if options.focus else None,
        "kv_type": options.kv_type,
        "budget": engine.plan.budget_cells,
        "block": options.block,
    }


def check_model(header: SnapshotHeader, engine: LoadedModel, name: str) -> SnapshotHeader:
    """Return what a session was saved with. Raises SessionFileError for another model. name: of the file, in errors"""
    saved = header.required("saved_with")
    model, digest = (saved.value(it, _is_name) for it in ("model", "model_digest"))
    if digest != engine.model_digest:
        raise SessionFileError(
            f"{name} was saved with the model {model!r} ({digest[:8]!r}), but this runtime has "
            f"{engine.plan.model.name!r} ({engine.model_digest[:8]!r}); open one with the model that it was saved with"
        )
    return saved


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) < 1000


def _check(file: SnapshotFile, engine: LoadedModel, dialogue: Dialogue, notes: BlockLoopNotes) -> bool:
    """Raise SessionFileError for another model or policy; returns True if the scores of the cells still count."""
    header, options = check_model(file.header, engine, file.name), engine.options
    policy = header.value("policy", _is_name)
    own = options.parsed_policy.spec
    if policy != own and (policy, own) != (TURNED_POLICY, DEFAULT_POLICY):
        raise SessionFileError(
            f"{file.name} was saved with policy={policy!r}, but this runtime has "
            f"policy={own!r}; open one with policy={policy!r}"
        )
    tokens = [*dialogue.pending, *(dialogue.sampler.newest if dialogue.sampler else ())]
    newest = np.frombuffer(notes.history, np.int32)
    if max([*tokens, newest.max(initial=0)]) >= engine.model.n_vocab:
        raise file.damaged("it holds tokens that the model does not know")
    options.check_budget(engine.plan.budget_cells, sum(p1 - p0 for p0, p1 in notes.pinned))
    focus = header.value("focus_policy", lambda it: it is None or isinstance(it, str))
    return options.parsed_policy.carries or focus == (options.parsed_focus.spec if options.focus else None)


def _take(
    engine: LoadedModel, block_loop: BlockLoop, cells: SnapshotFile, notes: BlockLoopNotes, has_scores: bool
) -> None:
    """Load the cells of a file into a block loop, and evict the cells beyond its budget and block."""
    plan = engine.plan
    numbers = SnapshotMeta.read(cells, lambda n: _claim(engine, n))
    if not block_loop.cache.holds(numbers.cells):
        _take_by_way_of_more(engine, block_loop, cells, numbers, notes, has_scores)
        return
    convert_cells(cells, block_loop.cache, numbers, scores=has_scores, claim=lambda n: _claim(engine, n))
    block_loop.take(notes)
    cache = block_loop.cache
    if cache.n_cells > plan.budget_cells + plan.block or cache.n_free < engine.options.probe_cells:
        try:
            block_loop.shrink()
        except BaseException:  # scores are not finite if rows are no numbers
            block_loop.clear()
            raise


def _claim(engine: LoadedModel, n_bytes: int) -> None:
    """Raise CeilingError if there is no room for the numbers that the file holds about its cells."""
    process.return_freed_memory()  # numbers of the last load would count beside these
    engine.guard.check_room(n_bytes, "what the file says of its cells", "")


def _take_by_way_of_more(
    engine: LoadedModel,
    block_loop: BlockLoop,
    cells: SnapshotFile,
    numbers: SnapshotMeta,
    notes: BlockLoopNotes,
    has_scores: bool,
) -> None:
    """Load more cells than a block loop has: a temporary cache that is large enough takes them and evicts."""
    plan, held = engine.plan, numbers.cells
    options = replace(engine.options, ubatch=1, parallel=1)  # it decodes nothing
    further = plan.n_cells_max - plan.n_cells  # cells of a head beyond the mean, if heads share, also after evicting
    n_cells = max(2, int(held.max()) - further, *_means(block_loop.cache, held))
    engine.guard.check_room(
        n_cells * plan.cell_bytes
        + plan.parts.bookkeeping * n_cells // plan.n_cells
        + plan.parts.state
        + plan.parts.compute,
        f"the {n_cells} cells of the saved session while they are evicted to {plan.budget_cells}",
        f"or open the runtime with budget={n_cells}",
    )
    layout = structs.Layout(n_cells, n_cells + max(1, further), options.probe_cells)  # heads may differ
    with (
        closing(Context(engine.model, n_cells, options, layout)) as context,
        closing(open_cache(context, options)) as cache,
    ):
        convert_cells(cells, cache, numbers, scores=has_scores, claim=lambda n: _claim(engine, n))
        larger = BlockLoop(cache, options, plan.budget_cells, engine.model.n_ctx_train)
        larger.take(notes)
        larger.shrink()
        kept = [cache.head_cells(*at)[0] for at in cache.heads]
        if not block_loop.cache.holds(np.array(kept)):  # on a device, where all heads hold equally many
            larger.budget = min(kept)
            larger.shrink()
        convert_cells(CachedSource(cache), block_loop.cache)
        block_loop.take(larger.notes)
    process.return_freed_memory()


def _means(cache: Cache, held: npt.NDArray[np.int64]) -> list[int]:
    """Return the mean cells of a head in every layer, rounded up. Layers whose heads have one shape share a pool."""
    counts = [cache.layer_heads(layer)[0] for layer in range(cache.shape.n_layer)]
    ends = np.cumsum(counts)
    return [-(-int(held[end - n : end].sum()) // n) for n, end in zip(counts, ends, strict=True)]
