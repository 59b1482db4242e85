"""edgekv: an on-device LLM runtime that stays inside a memory ceiling.

`Runtime` loads a model under a ceiling, `Session` is one conversation, and `plan` says what would fit. Importing the
package only defines names; each is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import errors
from .errors import *  # noqa: F403

__all__ = [
    *errors.__all__,
    "Infill",
    "LedgerEntry",
    "Options",
    "Piece",
    "Plan",
    "Progress",
    "Reply",
    "Runtime",
    "Sampling",
    "Session",
    "Shaded",
    "Snapshot",
    "Stats",
    "Survey",
    "Token",
    "TokenLogprob",
    "Turn",
    "plan",
    "policies",
    "survey",
]

if TYPE_CHECKING:
    __version__: str
    from . import policies
    from .conversations.coverage import Shaded
    from .conversations.snapshot import Snapshot
    from .generation.logprobs import Piece, Token, TokenLogprob
    from .generation.reply import Reply
    from .generation.request import Progress
    from .generation.sampler import Sampling
    from .generation.stats import Stats
    from .model_plans import plan, survey
    from .options import Options
    from .planning.alternatives import Survey
    from .planning.ledger import LedgerEntry
    from .planning.plan import Plan
    from .prompt.infill import Infill
    from .runtime import Runtime
    from .session import Session
    from .store.log import Turn
else:
    # Every pytest run imports this package, for the plug-in in it; those who do not use it must not wait for numpy.
    _MODULES = {
        "Infill": "prompt.infill",
        "LedgerEntry": "planning.ledger",
        "Options": "options",
        "Piece": "generation.logprobs",
        "Plan": "planning.plan",
        "Progress": "generation.request",
        "Reply": "generation.reply",
        "Runtime": "runtime",
        "Sampling": "generation.sampler",
        "Session": "session",
        "Shaded": "conversations.coverage",
        "Snapshot": "conversations.snapshot",
        "Stats": "generation.stats",
        "Survey": "planning.alternatives",
        "Token": "generation.logprobs",
        "TokenLogprob": "generation.logprobs",
        "Turn": "store.log",
        "plan": "model_plans",
        "survey": "model_plans",
    }

    def __getattr__(name):
        import importlib
        import sys

        if name == "__version__":
            from importlib.metadata import version

            return version("edgekv")
        if name == "policies":
            return importlib.import_module(".policies", __name__)
        if name not in _MODULES:
            other_names = importlib.import_module(".other_names", __name__)  # `from . import` would ask for it here
            raise other_names.attribute_error(sys.modules[__name__], "module 'edgekv'", name, other_names.MODULE)
        value = globals()[name] = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
