"""Programs that stop before their last result, so that who ends them is never too late, however busy the machine is."""

from __future__ import annotations

PROGRAM = """
import time
from edgekv.store.jsonl import JsonlFile

append = JsonlFile.append

def append_and_hold(self, value):
    append(self, value)
    while self.path.read_bytes().count(b"\\n") >= {n_lines}:
        time.sleep(0.01)

JsonlFile.append = append_and_hold
{program}
"""


def holding(program, n_lines):
    """The program, which stands still when a file of lines has so many."""
    return PROGRAM.format(program=program, n_lines=n_lines)
