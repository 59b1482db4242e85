"""A program of its own: goes on with saved sessions, and says what they then say and hold.

python go_on.py CASES.json    [[model, options, file, question], ...] -> one JSON object a line
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import edgekv
from edgekv.binding.model import Model
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.generation.sampler import GREEDY

N_TOKENS = 100  # more than all cells are filled anew


def held(runtime):
    """A digest of every cell, of what it carries, and of windows and states."""
    data = runtime.block_loop.cache.snapshot().data.copy()
    meta = SnapshotMeta.read(CachedSource(runtime.block_loop.cache))
    if "wo_norm" in meta.carried:  # norms of cells fed since are computed when they are read
        meta.carried["wo_norm"][meta.carried["position"] >= meta.header.normed] = 0
    data[: meta.header.rows_begin] = meta.to_bytes()
    return hashlib.sha256(data).hexdigest()


def go_on(runtime, session, question):
    """The next tokens as text, and all that is held afterwards."""
    said = list(session.chat(question, max_tokens=N_TOKENS, allow_loops=True, sampling=GREEDY))
    return {"said": said, "n": session.stats.generated_tokens, "n_past": session.n_past, "held": held(runtime)}


def main(cases):
    Model.is_end = lambda model, token: False  # random weights may end a reply at any token
    for model, options, path, question in cases:
        with edgekv.Runtime(model, **options) as runtime, runtime.load_session(path) as session:
            print(json.dumps(go_on(runtime, session, question)), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
