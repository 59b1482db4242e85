"""llama.cpp as it is, to compare with: the same library and the same model, its own cache, and no eviction."""

from __future__ import annotations

from collections.abc import Iterable

from edgekv.binding import library
from edgekv.binding.model import Context, Model
from edgekv.engine.controller import blocks
from edgekv.engine.sampler import GREEDY, Sampler
from edgekv.errors import NativeError
from edgekv.memory.limits import parse_ceiling
from edgekv.memory.sizes import format_size
from edgekv.options import Options


class StockLoop:
    """Reading and generation as a llama.cpp program does them. Close it before its model.

    n_cells: tokens that it can hold; of the options, ubatch, kv_type and threads count
    """

    def __init__(self, model: Model, n_cells: int, options: Options) -> None:
        self.context = Context(model, n_cells, options, None)
        self._llama = library.bindings()
        self._block = options.n_ubatch
        self._batch = self._llama.llama_batch_init(options.n_ubatch, 0, 1)
        self._sampler = Sampler(GREEDY)
        self._n_past = 0

    def close(self) -> None:
        """Free the context."""
        self._sampler.close()
        self._llama.llama_batch_free(self._batch)
        self.context.close()

    def feed(self, tokens: list[int], position: int, *, want_logits: bool) -> None:
        """llama_decode of one batch. Raises NativeError where it fails."""
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

    def forget_from(self, position: int) -> None:
        """Remove the cells from a position on."""
        self._llama.llama_memory_seq_rm(self._llama.llama_get_memory(self.context.handle), 0, position, -1)

    def read(self, tokens: Iterable[int]) -> None:
        """Read tokens into the empty context, block by block, and compute logits for the last one."""
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self.context.handle), False)
        self._n_past = 0
        coming = blocks(tokens, self._block)
        block = next(coming, None)
        while block is not None:
            following = next(coming, None)
            self.feed(block, self._n_past, want_logits=following is None)
            self._n_past += len(block)
            block = following

    def sample(self) -> int:
        """The most likely token after the last one that was fed."""
        return self._sampler.sample(self.context)

    def step(self, token: int) -> None:
        """Feed one token, and compute its logits."""
        self.feed([token], self._n_past, want_logits=True)
        self._n_past += 1


def obstacle(model: Model, n_tokens: int, options: Options) -> str | None:
    """Why llama.cpp's own cache cannot take n_tokens on this machine; None = it can.

    The model may be opened with `no_alloc`: nothing of its size is allocated.
    """
    if n_tokens > model.n_ctx_train:
        return f"{n_tokens:,} tokens are more than the {model.n_ctx_train:,} that the model was trained on"
    context = Context(model, n_tokens, options, None)
    memory = context.memory()
    context.close()
    needed = memory.weight_bytes + memory.repack_bytes + memory.kv_bytes + memory.compute_bytes + memory.output_bytes
    available = parse_ceiling("100%")
    if needed > available:
        return f"{n_tokens:,} tokens take {format_size(needed)}, but this machine has {format_size(available)}"
    return None
