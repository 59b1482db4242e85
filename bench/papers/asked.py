"""Tables of tasks that ask, with the distance to an oracle and the attention that is left."""

from __future__ import annotations

from edgekv.evals.case import Measured
from edgekv.evals.table import Table
from edgekv.evals.tasks import asked
from edgekv.evals.tasks.asked import Key, Texts

from .oracle import OracleSetting

FORMATS = {"below oracle": ".0%", "above oracle": "+.2f", "attention left": ".1%"}
JSON_NAMES = {"below oracle": "below_oracle", "above oracle": "nll_above_oracle", "attention left": "mass"}


def table(measured: Measured, baseline: str | None = None) -> Table:
    """Return the table of `edgekv eval` with columns for what was measured beside it.

    below oracle: how much more the oracle scores on the same texts, at as many cells
    above oracle: how much less likely the right answers are than with the oracle's cells
    attention left: the share of the attention of questions and answers that has its cells, the mean over texts
    """
    measured = list(measured)
    plain, found = asked.table(measured, baseline), asked.texts_by_line(measured)
    oracles = {_under_oracle(key): texts for key, texts in found.items() if isinstance(key[1], OracleSetting)}
    figures = [_figures(key, texts, oracles) for key, texts in found.items()]
    shown = [header for header in FORMATS if any(header in own for own in figures)]
    rows = [
        (*row, *(format(own[header], FORMATS[header]) if header in own else "" for header in shown))
        for row, own in zip(plain.rows, figures, strict=True)
    ]
    data = [
        {**line, **{JSON_NAMES[header]: value for header, value in own.items()}}
        for line, own in zip(plain.data, figures, strict=True)
    ]
    return Table((*plain.headers, *shown), rows, data, plain.n_keys)


def _figures(key: Key, texts: Texts, oracles: dict[Key, Texts]) -> dict[str, float]:
    """Return the figures of a line by their headers, those that are known."""
    ideal = None if key[1].holds_text else oracles.get(_under_oracle(key))
    lead, lost = asked.paired_gap(ideal, texts, "score"), asked.paired_gap(texts, ideal, "nll")
    known = {
        "below oracle": None if lead is None else lead.mean,
        "above oracle": None if lost is None else lost.mean,
        "attention left": asked.mean_of(texts, "mass"),
    }
    return {header: value for header, value in known.items() if value is not None}


def _under_oracle(key: Key) -> Key:
    """Return the key of the same texts with an oracle's cells."""
    task, setting, length, params = key
    return task, OracleSetting.of(setting).canonical, length, params
