"""edgekv: an on-device LLM runtime that stays inside a memory ceiling.

`Runtime` loads a model under a ceiling, `Session` is one conversation, `plan` says what would fit. Importing the
package defines names and loads nothing native.
"""

from __future__ import annotations

from . import errors, policies
from .errors import *  # noqa: F403
from .options import Options
from .planner import Plan, plan
from .runtime import Runtime
from .sampler import Sampling
from .session import Progress, Session
from .stats import Stats

__all__ = [
    *errors.__all__,
    "Options",
    "Plan",
    "Progress",
    "Runtime",
    "Sampling",
    "Session",
    "Stats",
    "plan",
    "policies",
]
