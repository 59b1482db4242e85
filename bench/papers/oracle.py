"""An oracle: cells chosen by the attention that the question and its right answer will pay to them.

It is told what a policy has to guess. Each head keeps the cells with the most attention of these tokens, the mean over
its query heads and over them, so no other choice of as many cells a head keeps more of that attention.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import edgekv
from edgekv.errors import InputError
from edgekv.evals.answer_likelihood import answer_tokens
from edgekv.evals.document import Question
from edgekv.evals.setting import Setting
from edgekv.prompt.turns import Turns

PROBE_TOKENS = 256  # tokens of a question with its answer, at most: the last ones
POLICY = f"snapkv(window={PROBE_TOKENS}, kernel=1)"  # the mean of their attention as it is


@dataclass(frozen=True, kw_only=True)
class OracleSetting(Setting):
    """A setting whose text is read with nothing evicted; then `choose` leaves `budget` cells of each head."""

    policy: str = "oracle"

    @classmethod
    def of(cls, setting: Setting) -> OracleSetting:
        """Return the setting of an oracle with as many cells, which reads the same."""
        return cls(**asdict(setting) | {"policy": cls.policy})

    @property
    def holds_text(self) -> bool:
        """True: nothing is evicted while a text is read."""
        return True

    def values(self, n_tokens: int) -> dict[str, Any]:
        """Return the options of a runtime for a text of n_tokens, by name; a probe holds question and answer."""
        probe = {"focus": True, "focus_policy": POLICY, "probe_tokens": PROBE_TOKENS}
        return super().values(n_tokens) | probe

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for keys and JSON: those that a full cache has, and the budget."""
        return super().as_dict() | {"budget": self.budget}


def probe_tokens(runtime: edgekv.Runtime, question: Question) -> list[int]:
    """Return the question as the end of the text's turn, and the right answer after it; at most PROBE_TOKENS."""
    turns = Turns(runtime.model, None)
    turns.state = "open"
    asked = [*turns.turn([question.text]).tokens(), *answer_tokens(runtime.model, question)]
    return asked[-PROBE_TOKENS:]


def choose(runtime: edgekv.Runtime, question: Question, budget: int) -> None:
    """Leave the best `budget` cells of each head of a text that was just read with nothing evicted.

    runtime: of an `OracleSetting`. Raises InputError for a text beyond the trained context, if
    attention means nothing.
    """
    tokens, cache = probe_tokens(runtime, question), runtime.block_loop.cache
    check_length(runtime, cache.n_past + len(tokens))
    cache.probe(tokens)
    cache.compact(runtime.options.parsed_focus, budget, probed=True)


def check_length(runtime: edgekv.Runtime, n_tokens: int) -> None:
    """Raise InputError for more tokens than a model with attention was trained to look at together."""
    n_most = runtime.model.n_ctx_train
    if runtime.block_loop.cache.shape.n_layer and n_tokens > n_most:
        raise InputError(
            f"{n_tokens} tokens are to be looked at together, but the model was trained on {n_most}; take shorter texts"
        )
