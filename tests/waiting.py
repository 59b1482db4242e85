"""Waiting for what another thread or process does."""

from __future__ import annotations

import time

LIMIT_S = 100


def until(true, what="it", limit_s=LIMIT_S):
    """Wait until a function returns something true, and fail if it never does. what: for the message"""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"{what} never comes"
        time.sleep(0.01)
