"""Check that includes run downwards through the rooms of native/src, in the order of the table in native/README.md.

    python scripts/check_native_rooms.py [CHECKOUT]

What llama.cpp's patches include must exist, and lie in a room whose line of the table says that patches call
it. Prints what is wrong, and exits with 1 if anything is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOM = re.compile(r"^\| `src/(\w+)/` \|(.*)$", re.MULTILINE)
INCLUDE = re.compile(r'^(\+?)#\s*include "(\w+)/(\S+)"', re.MULTILINE)


def included(source: Path) -> list[tuple[str, str]]:
    """Return room and name of every header of native/src that a source includes, or a patch adds."""
    is_patch = source.suffix == ".patch"
    found = INCLUDE.findall(source.read_text())
    return [(room, name) for added, room, name in found if (added == "+") == is_patch]


def faults(native: Path) -> Iterator[str]:
    """Yield what is wrong with the rooms of a native folder."""
    lines = ROOM.findall((native / "README.md").read_text())
    height = {room: -i for i, (room, _) in enumerate(lines)}  # the table begins at the top
    hooked = {room for room, line in lines if "patches call" in line}
    folders = {folder.name for folder in (native / "src").iterdir()}
    for room in sorted(folders ^ set(height)):
        yield f"src/{room}: " + (
            "the table of README.md does not list it" if room in folders else "there is no such room"
        )
    for source in sorted((native / "src").glob("*/*")):
        room = source.parent.name
        for other, name in included(source):
            if other in height and height[other] > height.get(room, 0):
                yield f"{source.relative_to(native)} includes {other}/{name}, which lies above it"
    for patch in sorted((native / "patches").glob("*.patch")):
        for room, name in included(patch):
            if room not in hooked or not (native / "src" / room / name).is_file():
                yield f"patches/{patch.name} includes {room}/{name}, which is nothing that patches may call"


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    found = list(faults((Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here) / "native"))
    print("\n".join(found) or "Includes of native/src run downwards.")
    sys.exit(1 if found else 0)
