"""Programs that stop before their last result, so that who ends them is never too late, however busy the machine is."""

from __future__ import annotations

RELEASED = "released"

PROGRAM = """
import os, time
from edgekv.store.jsonl import JsonlFile

append = JsonlFile.append

def append_and_hold(self, value):
    append(self, value)
    while self.path.read_bytes().count(b"\\n") >= {n_lines} and not os.path.exists("{RELEASED}"):
        time.sleep(0.01)

JsonlFile.append = append_and_hold
{program}
"""


def holding(program, n_lines):
    """The program, which stands still when a file of lines has so many, until its folder has a file RELEASED."""
    return PROGRAM.format(program=program, n_lines=n_lines, RELEASED=RELEASED)
