"""Many cases of `speed`, measured in turn: medians, ranges, and ratios to llama.cpp's figures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, EdgeKVError

from . import prose, speed
from .setting import FULL
from .speed import PEERS, SpeedCase

T = TypeVar("T")

FIGURES = ("ttft_s", "prefill_tok_per_s", "decode_tok_per_s", "score_s", "compact_s", "peak_bytes")
COMPARED = ("ttft_s", "prefill_tok_per_s", "decode_tok_per_s", "peak_bytes")


def grouped(
    *, policies: Sequence[str], budgets: Sequence[int], blocks: Sequence[int], lengths: Sequence[int], **shared: Any
) -> list[list[SpeedCase]]:
    """Return every combination, in groups of one length and block: llama.cpp (stock, alike), then edgekv.

    shared: the other fields of `SpeedCase`. Raises ConfigError for numbers below 1.
    """
    given = {"budget": budgets, "block": blocks, "length": lengths, "generate": [shared["n_generate"]]}
    for name, value in ((name, value) for name, values in given.items() for value in values):
        if value < 1:
            raise ConfigError(f"{name}={value} is not possible; give at least 1")
    settings = [(policy, budget) for policy in policies for budget in ([None] if policy in (*PEERS, FULL) else budgets)]
    return [
        [
            SpeedCase(policy=policy, budget=budget, block=block, n_tokens=n_tokens, **shared)
            for policy, budget in dict.fromkeys([*((peer, None) for peer in PEERS), *settings])
        ]
        for n_tokens in dict.fromkeys(lengths)
        for block in dict.fromkeys(blocks)
    ]


def prompts(model: Model, book: str | None, lengths: Sequence[int]) -> dict[int, str]:
    """Return prompts by their length in tokens: the beginning of a book's text, or generated prose.

    Tokenised again, such a text may have a token more or fewer. Raises InputError if the text is too short.
    """
    if book is None:
        return {n: prose.passage(model, None, n, random.Random(0)) for n in lengths}
    return {n: prose.text_of(model, prose.first_tokens(model, book, n)) for n in lengths}


def in_turn(groups: Sequence[Sequence[SpeedCase]], repeats: int) -> Iterator[tuple[int, SpeedCase]]:
    """(repeat, case): a group stays together; groups, and cases in a group, take turns at being the first."""
    for repeat in range(repeats):
        for group in _rotated(groups, repeat):
            for case in _rotated(group, repeat):
                yield repeat, case


def _rotated(items: Sequence[T], n: int) -> list[T]:
    n %= len(items)
    return [*items[n:], *items[:n]]


@dataclass(frozen=True)
class Sample:
    """The result of `speed.measure` for a case in one repeat."""

    case: SpeedCase
    repeat: int
    figures: Mapping[str, Any]


class SpeedRun:
    """Measures all cases of groups `repeats` times, each in a fresh process, and keeps the samples so far."""

    def __init__(self, groups: Sequence[Sequence[SpeedCase]], repeats: int) -> None:
        if repeats < 1:
            raise ConfigError(f"repeats={repeats} is not possible; give at least 1")
        self.groups = groups
        self.repeats = repeats
        self.samples: list[Sample] = []
        self.left_out: dict[SpeedCase, str] = {}

    def check(self) -> None:
        """Leave out cases that this machine cannot run. Raises ConfigError for values that cannot work."""
        obstacles: dict[SpeedCase, str | None] = {}
        for case in (case for group in self.groups for case in group):
            # the length makes no difference under a budget
            same = case if case.budget is None else replace(case, n_tokens=1)
            if same not in obstacles:
                obstacles[same] = same.obstacle()
            reason = obstacles[same]
            if reason is not None:
                self.left_out[case] = reason

    @property
    def todo(self) -> list[tuple[int, SpeedCase]]:
        """Return (repeat, case) in the order of measuring, without cases that are left out."""
        return [(repeat, case) for repeat, case in in_turn(self.groups, self.repeats) if case not in self.left_out]

    def steps(self, texts: Mapping[int, str]) -> Iterator[SpeedCase]:
        """Measure one case after the other, and give each once it is done. A case that fails is left out from then on.

        texts: prompts by their length in tokens
        """
        for repeat, case in self.todo:
            if case not in self.left_out:
                try:
                    self.samples.append(Sample(case, repeat, speed.measure(case, texts[case.n_tokens])))
                except EdgeKVError as error:
                    self.left_out[case] = str(error)
            yield case

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: summaries of all cases, cases that were left out and why, and all samples."""
        return {
            "repeats": self.repeats,
            "cases": [found for group in self.groups for case in group if (found := self._summary(case))],
            "left_out": [
                asdict(case) | {"name": case.name, "reason": reason} for case, reason in self.left_out.items()
            ],
            "samples": [{**asdict(sample.case), "repeat": sample.repeat, **sample.figures} for sample in self.samples],
        }

    def _summary(self, case: SpeedCase) -> dict[str, Any] | None:
        """Figures of a case over its repeats, and their ratios to each llama.cpp's in the same repeat."""
        ours = self._by_repeat(case)
        if not ours:
            return None
        return {
            **asdict(case),
            "name": case.name,
            "n_repeats": len(ours),
            "prompt_tokens": next(iter(ours.values()))["prompt_tokens"],
            **{name: median_and_range([figures[name] for figures in ours.values()]) for name in FIGURES},
            **{f"of_{peer}": self._ratios(case, peer) for peer in PEERS},
        }

    def _ratios(self, case: SpeedCase, peer: str) -> dict[str, dict[str, float]] | None:
        """Return the case's figures over llama.cpp's; None if the two were never measured in one repeat."""
        ours, theirs = self._by_repeat(case), self._by_repeat(case.beside(peer))
        shared = [repeat for repeat in ours if repeat in theirs]
        if case.policy in PEERS or not shared:
            return None
        return {name: median_and_range([ours[i][name] / theirs[i][name] for i in shared]) for name in COMPARED}

    def _by_repeat(self, case: SpeedCase) -> dict[int, Mapping[str, Any]]:
        return {sample.repeat: sample.figures for sample in self.samples if sample.case == case}


def median_and_range(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
