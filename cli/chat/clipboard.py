"""`/copy` and `/thoughts`: the last answer, to the clipboard; the reasoning before it, to the screen."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

import edgekv
from edgekv.cli.render import printable, say
from edgekv.counting import counted
from edgekv.generation.reasoning import split_reasoning

from .chat import Chat, last_turn

# programs that take a text for the clipboard, each with the variable that says whether its kind of desktop is there
TOOLS = (
    ("", ["pbcopy"]),
    ("WAYLAND_DISPLAY", ["wl-copy"]),
    ("DISPLAY", ["xclip", "-selection", "clipboard"]),
    ("DISPLAY", ["xsel", "--clipboard", "--input"]),
    ("", ["clip.exe"]),
)
LONGEST = 74_994  # bytes that a terminal takes (OSC 52): 100,000 in base64, with the escape sequence


def copy(chat: Chat, _argument: str) -> None:
    """Put the last answer on the clipboard."""
    _, answer = _last(chat)
    how = _to_clipboard(answer)
    say(f"the answer is on the clipboard, {counted(len(answer), 'character')}{how}")


def thoughts(chat: Chat, _argument: str) -> None:
    """Show the reasoning before the last answer."""
    reasoning, _ = _last(chat)
    if not reasoning:
        raise edgekv.InputError("the last answer came without reasoning")
    say(printable(reasoning))


def _last(chat: Chat) -> tuple[str, str]:
    """The reasoning and the answer of the last reply."""
    turn = last_turn(chat.session, "assistant")
    if turn is None:
        raise edgekv.InputError("nothing was answered yet; write a message")
    return split_reasoning("".join(chat.session.text(turn)), begun=chat.thinks)


def _to_clipboard(text: str) -> str:
    """Put a text on the clipboard of this machine or, over ssh, of the terminal's machine."""
    encoded = text.encode()
    if "SSH_CONNECTION" not in os.environ:
        for variable, command in TOOLS:
            if (not variable or variable in os.environ) and shutil.which(command[0]):
                _hand_to(command, encoded)
                return ""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise edgekv.InputError("there is no clipboard here; /save NAME.md writes what was said to a file")
    if len(encoded) > LONGEST:
        raise edgekv.InputError(
            f"the answer has {len(encoded):,} bytes, and terminals take {LONGEST:,} for the clipboard; "
            "/save NAME.md writes what was said to a file"
        )
    sys.stdout.write(f"\033]52;c;{base64.b64encode(encoded).decode()}\a")
    sys.stdout.flush()
    return ", if this terminal allows it"


def _hand_to(command: list[str], text: bytes) -> None:
    try:
        subprocess.run(
            command, input=text, check=True, timeout=10, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise edgekv.InputError(
            f"{command[0]} did not take the text: {error}; /save NAME.md writes what was said to a file"
        ) from error
