"""Figures of one reply: tokens, cells, time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from edgekv.cells.work import Work
from edgekv.other_names import STATS, OtherNames

if TYPE_CHECKING:
    from edgekv.prompt.tools import ToolCall


def kept_tokens(n_cells: int, n_seen: int) -> int:
    """Return how many of n_seen tokens a head remembers in n_cells. A model without cells keeps all in its states."""
    return min(n_cells, n_seen) if n_cells else n_seen


@dataclass(slots=True)
class Stats(OtherNames):
    """Figures of one reply. Times are in seconds.

    finish_reason: "end" (the model ended it), "stop" (a stop text came), "loop" (it looped), "length" (max_tokens),
        "context" (trained context full), "read" (of `Session.read` and `rewind`), "cancelled", "ceiling" (exceeded,
        which is an error), "closed" (the caller stopped iterating), "failed" (nothing was read, or the grammar became
        too complex), or "" before the first reply
    stop_text: the stop text that ended the reply; "" = none did
    reused_tokens: tokens of a history that the session had seen, and did not read again (`Session.continue_from`)
    read_tokens: prompt tokens read; fewer than prompt_tokens if reading was cancelled
    evictions, evicted_cells: compactions, and the cells that they evicted, summed over layers and heads
    repositions: compactions that turned the kept keys to other RoPE positions
    tokens_seen, cells_used: tokens of the whole session and cells used per head, after the reply
    even_cells: all heads keep equally many cells; False = the policy divides them
    probes, probe_s: number of times that the question was fed as a probe, and their time
    recalls, recalled_cells, scanned_tokens, recall_s: number of times that evicted tokens were recalled from the
        archive, the cells of a head that they filled on average, the archived tokens that were scanned for them, and
        the time
    archived_tokens: tokens of the session whose rows lie in the archive
    archived_bytes, archive_s: bytes that this reply wrote there, and the time
    archive_failure: why the archive takes no more rows, or gives none back, and what is forgotten; "" = it does
    keeping_failure: why a kept session keeps no more tokens, and how many it has; "" = it keeps all
    recallable_tokens: those without a cell, on average over heads
    drafted_tokens, accepted_tokens: tokens decoded as drafts, and the accepted ones among them
    prefill_s: time to read the prompt
    ttft_s: time from the start of reading to the first token, which may be the end of the reply
    decode_s: time to generate all tokens
    tool_calls: calls of tools that the reply ends with
    relaxed_tools: names of tools whose arguments may not fit their schemas, each with the words that were not held
    score_s, compact_s: time to score and to move cells; these and probe_s are part of the times above
    switch_s: time to swap in: before reading, and after other sessions had the cells in between
    crossed_bytes: bytes that scoring and moving copied between the host and devices; 0 if no cells lie on a device
    staged_layers: layers whose rows had to cross for that, summed over compactions; 0 if devices did all of it
    """

    _meant: ClassVar[Mapping[str, str]] = STATS

    finish_reason: str = ""
    stop_text: str = ""
    reused_tokens: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    generated_tokens: int = 0
    evictions: int = 0
    repositions: int = 0
    evicted_cells: int = 0
    probes: int = 0
    recalls: int = 0
    recalled_cells: int = 0
    scanned_tokens: int = 0
    archived_tokens: int = 0
    archived_bytes: int = 0
    archive_failure: str = ""
    keeping_failure: str = ""
    recallable_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    tokens_seen: int = 0
    cells_used: int = 0
    budget_cells: int = 0
    even_cells: bool = True
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    probe_s: float = 0.0
    recall_s: float = 0.0
    archive_s: float = 0.0
    score_s: float = 0.0
    compact_s: float = 0.0
    switch_s: float = 0.0
    crossed_bytes: int = 0
    staged_layers: int = 0
    peak_rss_bytes: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    relaxed_tools: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def kept_tokens(self) -> int:
        """Tokens of the session that a head has cells of, on average over heads."""
        return kept_tokens(self.cells_used, self.tokens_seen)

    @property
    def forgotten_tokens(self) -> int:
        """Tokens of the session that have neither a cell nor archived rows, on average over heads."""
        return max(0, self.tokens_seen - self.kept_tokens - self.recallable_tokens)

    @property
    def prefill_tok_per_s(self) -> float:
        """Prompt tokens read a second."""
        return self.read_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tok_per_s(self) -> float:
        """Tokens generated a second, without the first: that one comes from reading the prompt."""
        return (self.generated_tokens - 1) / self.decode_s if self.generated_tokens > 1 else 0.0

    def finish(self, work: Work, before: Work, *, tokens_seen: int, cells_used: int, peak_bytes: int) -> None:
        """Take the counters of a block loop since `before`, and figures of its end."""
        self.finish_reason = self.finish_reason or "failed"
        for counter in fields(work):
            setattr(self, counter.name, getattr(work, counter.name) - getattr(before, counter.name))
        self.tokens_seen = tokens_seen
        self.cells_used = cells_used
        self.peak_rss_bytes = peak_bytes
