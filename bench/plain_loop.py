"""llama.cpp as it is, to compare with: the same library and the same model, and no eviction."""

from __future__ import annotations

from edgekv import _native
from edgekv.model import Context, Model
from edgekv.options import Options
from edgekv.sampler import Sampler, Sampling


class PlainLoop:
    """Reading and generation as a llama.cpp program does them, on llama.cpp's own cache."""

    def __init__(self, model: Model, n_cells: int, options: Options) -> None:
        self.llama = _native.bindings()
        self.context = Context(model, n_cells, options, None)
        self.block = options.block
        self.batch = self.llama.llama_batch_init(self.block, 0, 1)
        self.sampler = Sampler(Sampling())
        self.n_past = 0
        self.token = 0

    def close(self) -> None:
        self.sampler.close()
        self.llama.llama_batch_free(self.batch)
        self.context.close()

    def feed(self, tokens: list[int], position: int, *, want_logits: bool) -> None:
        """llama_decode of one batch."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 0
        batch.logits[len(tokens) - 1] = want_logits
        status = self.llama.llama_decode(self.context.handle, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def forget_from(self, position: int) -> None:
        """Remove the cells from a position on."""
        self.llama.llama_memory_seq_rm(self.llama.llama_get_memory(self.context.handle), 0, position, -1)

    def read(self, text: str) -> None:
        """Read a text into the empty context, and sample the first token after it."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context.handle), False)
        tokens = self.context.model.tokenize(text, begin=True)
        for p0 in range(0, len(tokens), self.block):
            part = tokens[p0 : p0 + self.block]
            self.feed(part, p0, want_logits=p0 + len(part) == len(tokens))
        self.n_past = len(tokens)
        self.token = self.sampler.sample(self.context)

    def step(self) -> None:
        """Feed the token that was sampled, and sample the next one."""
        self.feed([self.token], self.n_past, want_logits=True)
        self.n_past += 1
        self.token = self.sampler.sample(self.context)
