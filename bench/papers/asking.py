"""Looks at the cells that questions find: an oracle's choice, and the share of attention that has its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import edgekv
from edgekv.evals.case import Case
from edgekv.evals.document import Question
from edgekv.evals.question_protocol import Look
from edgekv.evals.results import key_of
from edgekv.evals.setting import AS_GIVEN, OpenRuntime, Setting

from . import oracle
from .attention_mass import Masses, attention_masses, surviving_mass
from .texts import of_text

ATTENTION_MASS = "attention-mass"
KEPT_MASSES = 16  # texts whose masses are at hand for the next policy; about 4 bytes a token and head each


def make_look(case: Case, runtimes: OpenRuntime, text: Path, questions: Sequence[Question]) -> Look | None:
    """Return what looks at the cells of a case, for `question_protocol.ask_all`; None = nothing has to."""
    runtime, setting = runtimes.get(case.setting, case.length), case.setting
    if ATTENTION_MASS not in case.metrics:
        return looking(runtime, setting) if isinstance(setting, oracle.OracleSetting) else None
    length = case.length if case.data is None else AS_GIVEN
    key = key_of(replace(case, setting=setting.full_cache, length=length).config())
    masses = of_text(runtimes, key, lambda: attention_masses(runtime, setting, text, questions), keep=KEPT_MASSES)
    return looking(runtime, setting, dict(zip(questions, masses, strict=True)))


def looking(runtime: edgekv.Runtime, setting: Setting, masses: Mapping[Question, Masses] | None = None) -> Look:
    """Return a `Look`: if the setting is an oracle's, it chooses cells; then the attention that is left is measured.

    Its figure is "mass": the share of the attention of question and answer that still has its cells. masses: that
    attention by question; None = measure nothing
    """

    def look(question: Question) -> dict[str, float]:
        if isinstance(setting, oracle.OracleSetting):
            oracle.choose(runtime, question, setting.budget)
        return {} if masses is None else {"mass": surviving_mass(masses[question], runtime.block_loop.cache)}

    return look
