"""`edgekv bench --claims`: the claims of README, measured on this machine, one after the other."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from edgekv.evals.claims import CLAIMS, Measured, holds, measured_claims
from edgekv.memory.sizes import format_size

from .render import measuring_bar

MARKS = {True: "yes", False: "NO", None: "?"}


def show_claims(machine: dict[str, Any], threads: int | None, *, as_json: bool) -> int:
    """Measure each claim, and print it with its figure; returns the exit status: 1 = one does not hold.

    Ctrl-C prints what was measured so far.
    """
    found: list[Measured] = []
    interrupted = False
    try:
        with measuring_bar([1] * len(CLAIMS)) as bar:
            for measured in measured_claims(threads):
                found.append(measured)
                bar(1, measured.claim)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print(json.dumps({"machine": machine, "claims": [asdict(it) for it in found], "holds": holds(found)}))
    else:
        for it in found:
            print(f"{MARKS[it.holds]:4}{it.claim}\n    {it.figure}")
        memory = format_size(machine["memory_bytes"])
        print(f"\nof the default model on {machine['system']}, {machine['processors']} processors, {memory}")
    if interrupted:
        raise KeyboardInterrupt
    return 0 if holds(found) else 1
