"""llama.cpp without edgekv's cache, to compare with: the same library and model, its own cache, no eviction."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv.binding import library
from edgekv.binding.model import Context, Model
from edgekv.cells.token_blocks import blocks
from edgekv.errors import NativeError
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.memory.sizes import format_size, parse_ceiling
from edgekv.options import Options


class DefaultOptions(Options):
    """The way in which llama.cpp itself loads weights: repacked if possible, and always mapped."""

    @property
    def maps_weights(self) -> bool:
        """True: llama.cpp always maps them."""
        return True


class DefaultContext(Context):
    """A context with llama.cpp's own defaults. Only the threads of the options count."""

    def llama_params(self, model: Model, n_cells: int, options: Options) -> Any:
        params = library.bindings().llama_context_default_params()
        params.n_ctx = n_cells
        params.n_threads = params.n_threads_batch = options.n_threads
        if options.threads is None:  # the library itself says 4 on any machine; this is llama-cpp-python's rule
            n_processors = os.cpu_count() or 1
            params.n_threads, params.n_threads_batch = max(1, n_processors // 2), n_processors
        return params


@dataclass(frozen=True)
class Peer:
    """One way to set llama.cpp up, whose cache is always its own."""

    options: Options
    context: type[Context]
    n_batch: int

    @classmethod
    def at_defaults(cls, threads: int | None) -> Peer:
        """Return settings with the number of threads alone, if it is given."""
        options = DefaultOptions(repack=True, block=2048, ubatch=512, threads=threads)
        return cls(options, DefaultContext, options.block)

    @classmethod
    def alike(cls, options: Options) -> Peer:
        """Return settings with the batches, cache type, threads and order of weights of edgekv's options."""
        return cls(options, Context, options.n_ubatch)

    def loop(self, model: Model, n_cells: int) -> StockLoop:
        """A loop over n_cells. model: opened with `options`"""
        return StockLoop(self.context(model, n_cells, self.options, None), self.n_batch)

    def obstacle(self, path: Path, n_tokens: int) -> str | None:
        """Return why its cache cannot take n_tokens of a model on this machine; None = it can. Loads no weights."""
        with Model(path, self.options, no_alloc=True) as model:
            if n_tokens > model.n_ctx_train:
                return f"{n_tokens:,} tokens are more than the {model.n_ctx_train:,} that the model was trained on"
            context = self.context(model, n_tokens, self.options, None)
            memory = context.memory()
            context.close()
        host = ("weight_bytes", "repack_bytes", "kv_bytes", "state_bytes", "compute_bytes", "output_bytes")
        needed: int = sum(getattr(memory, name) for name in host)
        if self.options.maps_weights:
            needed += memory.repack_bytes  # the file's own order stays resident beside the repacked one
        available = parse_ceiling("100%")
        if needed > available:
            return f"{n_tokens:,} tokens take {format_size(needed)}, but this machine has {format_size(available)}"
        return None


class StockLoop:
    """Reading and generation as a llama.cpp program does them. Closes its context; close it before its model.

    n_batch: tokens given to llama.cpp at once
    """

    def __init__(self, context: Context, n_batch: int) -> None:
        self.context = context
        self._llama = library.bindings()
        self._n_batch = n_batch
        self._batch = self._llama.llama_batch_init(n_batch, 0, 1)
        self._sampler = Sampler(GREEDY)
        self._n_past = 0

    def close(self) -> None:
        """Free the context."""
        self._sampler.close()
        self._llama.llama_batch_free(self._batch)
        self.context.close()

    def feed(self, tokens: list[int], position: int, *, want_logits: bool) -> None:
        """llama_decode of one batch. Raises NativeError if it fails."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 0
        batch.logits[len(tokens) - 1] = want_logits
        status = self._llama.llama_decode(self.context.handle, batch)
        if status != 0:
            raise NativeError(f"llama_decode returned {status} for {len(tokens)} tokens at position {position}")

    def read(self, tokens: Iterable[int]) -> None:
        """Read tokens into the empty context, batch by batch, and compute logits for the last one."""
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self.context.handle), False)
        self._n_past = 0
        coming = blocks(tokens, self._n_batch)
        block = next(coming, None)
        while block is not None:
            following = next(coming, None)
            self.feed(block, self._n_past, want_logits=following is None)
            self._n_past += len(block)
            block = following

    def sample(self) -> int:
        """Return the most likely next token."""
        return self._sampler.sample(self.context)

    def step(self, token: int) -> None:
        """Feed one token, and compute its logits."""
        self.feed([token], self._n_past, want_logits=True)
        self._n_past += 1
