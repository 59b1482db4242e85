"""Replies that are drawn: blocks printed once, what is open redrawn in its place, reasoning folded."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edgekv.cli.chat.live_reply import LiveReply

pyte = pytest.importorskip("pyte")

PARAGRAPHS = [f"Paragraph {i} has **some** words and ends here." for i in range(60)]
REPLY = "\n\n".join([*PARAGRAPHS[:30], "```python\nx = 1\n" + "# long " * 30 + "\n```", *PARAGRAPHS[30:]])


def drawn(reply, *, width=40, height=12, thinks=False, step=4):
    """A reply as a terminal shows it, redrawn after every piece of `step` characters, and what was sent to it."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="truecolor", width=width, height=height)
    with LiveReply(console, lambda n, seconds, columns: f"{n} pieces"[:columns], thinks=thinks) as shown:
        for i in range(0, len(reply), step):
            shown.add(reply[i : i + step])
            shown.refresh()
    screen = pyte.HistoryScreen(width, height, history=10_000)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(file.getvalue())
    scrolled = ["".join(row[i].data for i in range(width)) for row in screen.history.top]
    return "\n".join(line.rstrip() for line in (*scrolled, *screen.display)).strip(), file.getvalue()


@pytest.mark.parametrize("width", [40, 100])
def test_every_block_is_there_once_whatever_was_redrawn(width):
    text, sent = drawn(REPLY, width=width, step=13)
    words = " ".join(text.split())
    assert words.count("Paragraph") == 60
    assert all(f"Paragraph {i} has some words and ends here." in words for i in range(60))
    assert "pieces" not in text
    assert "x = 1" in text
    assert "\n\nParagraph 7 " in text
    assert "\x1b[2J" not in sent  # the screen is never cleared


def test_what_is_sent_grows_with_the_reply_and_no_faster():
    lengths = [len(drawn("\n\n".join(PARAGRAPHS[:n]), step=13)[1]) for n in (15, 30, 60)]
    assert lengths[2] - lengths[1] < 2.2 * (lengths[1] - lengths[0])


def test_wide_characters_and_control_characters():
    text, sent = drawn("中文 " * 30 + "\x1b[31mred\x07")
    assert text.replace("\n", "").replace(" ", "").count("中") == 30
    assert "\x1b[31m" not in sent
    assert "�[31mred�" in text.replace("\n", "")


@pytest.mark.parametrize("thinks", [False, True])
def test_reasoning_is_folded(thinks):
    text, sent = drawn("<think>" * (not thinks) + "because " * 100 + "</think>So it is.", thinks=thinks)
    assert [" ".join(part.split()) for part in text.split("\n\n")] == [
        "thought in 800 characters; /thoughts shows them",
        "So it is.",
    ]
    assert "because" not in text
    assert "because" in sent


def test_nothing_is_nothing():
    assert drawn("")[1] == ""
