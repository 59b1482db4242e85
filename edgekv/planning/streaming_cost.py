"""The cost of streamed weights: bytes that a batch reads, and the speed of the file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekv.memory.sizes import format_size

from .plan import Plan

PIECE_BYTES = 256 << 10
SAMPLE_BYTES, SAMPLE_S = 64 << 20, 0.25  # read at most so much, and stop after so long


@dataclass(frozen=True, slots=True)
class StreamingCost:
    """Weights that are read from the model's file for every batch, and the speed that this allows.

    n_layers, n_streamed: layers of the model, and those whose weights are read
    batch_bytes: bytes that are read for a batch of a prompt's tokens
    token_bytes: bytes that are read for a token of a reply; fewer if a token chooses a few experts
    tokens_per_batch: tokens of a prompt that one reading serves
    file_bytes_per_s: how fast the file gave a sample, from the disk or from the system's memory
    """

    n_layers: int
    n_streamed: int
    batch_bytes: int
    token_bytes: int
    tokens_per_batch: int
    file_bytes_per_s: float

    @property
    def most_decode_tok_per_s(self) -> float:
        """Generated tokens a second that the file allows, one after the other."""
        return self.file_bytes_per_s / self.token_bytes

    @property
    def most_prefill_tok_per_s(self) -> float:
        """Tokens of a prompt a second that the file allows."""
        return self.tokens_per_batch * self.file_bytes_per_s / self.batch_bytes

    def __str__(self) -> str:
        return (
            f"weights of {self.n_streamed} of {self.n_layers} layers are read from the file: "
            f"{format_size(self.batch_bytes)} for {self.tokens_per_batch} tokens of a prompt, "
            f"{format_size(self.token_bytes)} for a token of a reply; the file gives "
            f"{format_size(round(self.file_bytes_per_s))} a second, so at most {self.most_prefill_tok_per_s:,.0f} and "
            f"{self.most_decode_tok_per_s:,.1f} tokens a second"
        )


def streaming_cost(plan: Plan, ubatch: int) -> StreamingCost | None:
    """Return the cost of a plan's streamed weights; None if all weights stay in memory. ubatch: tokens fed at once

    Reads a sample of the file, which takes up to a quarter of a second.
    """
    if not plan.n_streamed:
        return None
    n_tokens = min(plan.block, ubatch)
    return StreamingCost(
        plan.n_layers, plan.n_streamed, plan.streamed_bytes, plan.token_bytes, n_tokens, file_speed(plan.model)
    )


def file_speed(path: Path, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the bytes a second that a file gives now, by a sample of its end."""
    piece, n_read = bytearray(PIECE_BYTES), 0
    with path.open("rb", buffering=0) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - SAMPLE_BYTES))
        begin, elapsed = clock(), 0.0
        while n_read < SAMPLE_BYTES and elapsed < SAMPLE_S and (n := file.readinto(piece)):
            n_read += n
            elapsed = clock() - begin
    return n_read / max(elapsed, 1e-9)
