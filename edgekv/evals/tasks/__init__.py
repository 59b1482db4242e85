"""The tasks of `edgekv eval`."""

from __future__ import annotations

from collections.abc import Mapping

from edgekv.evals import ruler
from edgekv.evals.case import ANSWER_NLL, Task

from . import asked, asking, long_chat, perplexity

NEEDLE = Task(
    "needle",
    asking.needle,
    asked.table,
    {"depth": (None,), "needles": (1,)},
    asks=True,
    metrics=(ANSWER_NLL,),
)
RULER = Task("ruler", asking.ruler, asked.table, {"kind": ruler.TASKS}, asks=True, metrics=(ANSWER_NLL,))
QA = Task("qa", asking.qa, asked.table, asks=True, metrics=(ANSWER_NLL,), takes_data=True)
CHAT = Task("chat", long_chat.measure, asked.table, long_chat.PARAMS)
PERPLEXITY = Task("perplexity", perplexity.measure, perplexity.table)

TASKS: Mapping[str, Task] = {task.name: task for task in (NEEDLE, RULER, QA, CHAT, PERPLEXITY)}
