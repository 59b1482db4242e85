"""The user's side of a terminal."""

from __future__ import annotations

import os
import select
import time

from children import LIMIT_S


class Terminal:
    """Types lines, and reads what is printed until an expected text comes; `fd` is the master's side."""

    def __init__(self, fd):
        self.fd = fd
        self.text = ""

    def type(self, line):
        os.write(self.fd, line.encode() + b"\n")

    def wait_for(self, expected):
        deadline = time.monotonic() + LIMIT_S
        while expected not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{expected!r} was not printed; instead: {self.text[-500:]!r}"
            self.text += os.read(self.fd, 4096).decode(errors="replace")
        self.text = self.text.partition(expected)[2]
