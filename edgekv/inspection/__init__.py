"""Shows which heads kept which tokens of a text, and what became of their keys. See docs/inspect.md.

with edgekv.Runtime(budget=256) as rt:
    found = observe(rt, "Where does Dorothy live?", files=["oz.txt"])
found.kept.counts     # how many heads kept each token
"""

from __future__ import annotations

from .kept_tokens import Kept
from .keys import KeyStudy, log_det_gram, principal
from .observe import Observation, observe
from .page import render_page

__all__ = [
    "Kept",
    "KeyStudy",
    "Observation",
    "log_det_gram",
    "observe",
    "principal",
    "render_page",
]
