"""Pictures: the same bytes for the same numbers and others for others, whatever matplotlib is set to."""

from __future__ import annotations

import matplotlib
import pytest

from edgekv.evals import pictures

PNG = b"\x89PNG\r\n\x1a\n"


def history(path, x):
    pictures.history_lines(
        path, {"keydiff": {0: (10, 9, 11), 50_000: (10 + x, 9, 12)}}, title="speed", label="tokens/s"
    )


def times(path, x):
    values = {"keydiff": {"block 64": (1 + x, 1, 2), "block 128": (0.9, 0.8, 1)}}
    pictures.bars(path, values, title="ttft", label="s", of="policy")


def gaps(path, x):
    values = {"keydiff": {"256 cells": x, "512 cells": -0.1}, "snapkv": {"512 cells": 0.4}}
    pictures.bars(path, values, title="perplexity", label="gap", of="policy")


PICTURES = [history, times, gaps]


@pytest.mark.parametrize("draw", PICTURES)
def test_the_same_numbers_give_the_same_bytes(tmp_path, draw):
    draw(tmp_path / "one.png", 0.3)
    with matplotlib.rc_context({"font.size": 20, "figure.dpi": 50, "axes.grid": False}):
        draw(tmp_path / "two.png", 0.3)
        assert matplotlib.rcParams["font.size"] == 20
    draw(tmp_path / "other.png", 0.7)
    one, two, other = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two", "other"))
    assert one.startswith(PNG)
    assert one == two
    assert one != other
    assert b"matplotlib" not in one.lower()  # nor any date
