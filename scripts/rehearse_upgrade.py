"""Rehearse an upgrade of llama.cpp: which hunks of native/patches still find their lines in another release, and where.

    python scripts/rehearse_upgrade.py RELEASE [--renewed FOLDER]

RELEASE is a version of llama-cpp-python, whose source package pip downloads into a temporary folder; or the path of
one. The build applies patches at their exact lines. Here a hunk may have moved: it fits if its lines are found as far
from where it says as those of the hunk before it, or once. FOLDER gets the patches with the places of that release,
without the hunks that fail, which are printed. Exits with 1 if any fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

NATIVE = Path(__file__).resolve().parents[1] / "native"
PLACE = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@.*")


@dataclass
class Hunk:
    """Some lines of a patch: what it expects, what it leaves, and the line where it expects them, from 1 on."""

    patch: str
    path: str
    line: int
    lines: list[str]

    def side(self, without: str) -> list[str]:
        """Return its lines before (without "+") or after (without "-")."""
        return [line[1:] for line in self.lines if line[:1] != without]


def fetcher() -> ModuleType:
    """Return native/fetch_llama.py as a module."""
    spec = importlib.util.spec_from_file_location("fetch_llama", NATIVE / "fetch_llama.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hunks_of(patch: Path) -> list[Hunk]:
    """Return the hunks of a patch in their order."""
    hunks: list[Hunk] = []
    path = ""
    for line in patch.read_text().splitlines():
        place = PLACE.fullmatch(line)
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
        elif place:
            hunks.append(Hunk(patch.name, path, int(place[1]), []))
        elif hunks and hunks[-1].path == path and line[:1] in ("+", "-", " ", "") and not line.startswith("--- a/"):
            hunks[-1].lines.append(line or " ")
    return hunks


def place_of(hunk: Hunk, source: list[str], begin: int, moved: int) -> int | None:
    """Return where a hunk's lines are in a file, counted from 0.

    That is where it says, or as far from there as the hunk before it, or else the only place from `begin` on.
    """
    wanted = hunk.side("+")
    places = [i for i in range(begin, len(source) - len(wanted) + 1) if source[i : i + len(wanted)] == wanted]
    told = [i for i in (hunk.line - 1, hunk.line - 1 + moved) if i in places]
    return told[0] if told else places[0] if len(places) == 1 else None


def apply(hunks: list[Hunk], root: Path, renewed: dict[str, list[str]]) -> list[tuple[Hunk, int | None]]:
    """Apply the hunks of one patch to the files below a folder; return each with the line where it was found."""
    found: list[tuple[Hunk, int | None]] = []
    written = renewed.setdefault(hunks[0].patch, [])
    for path in dict.fromkeys(hunk.path for hunk in hunks):
        file = root / path
        source = file.read_text().split("\n") if file.is_file() else []
        old, shift, end, moved, headed = list(source), 0, 0, 0, False  # lines added so far; where the hunk before ended
        for hunk in (hunk for hunk in hunks if hunk.path == path):
            at = place_of(hunk, old, end, moved)
            found.append((hunk, None if at is None else at + 1))
            if at is None:
                continue
            before, after = hunk.side("+"), hunk.side("-")
            written += [] if headed else [f"--- a/{path}", f"+++ b/{path}"]
            written += [f"@@ -{at + 1},{len(before)} +{at + shift + 1},{len(after)} @@", *hunk.lines]
            source[at + shift : at + shift + len(before)] = after
            shift, end, moved = shift + len(after) - len(before), at + len(before), at + 1 - hunk.line
            headed = True
        if headed:
            file.write_text("\n".join(source))
    return found


def rehearse(archive: Path, folder: Path) -> tuple[list[tuple[Hunk, int | None]], dict[str, list[str]]]:
    """Unpack a release into a folder and apply all patches; return every hunk with its place, and renewed patches."""
    fetch = fetcher()
    fetch.unpack(archive, folder)
    renewed: dict[str, list[str]] = {}
    found = []
    for patch in sorted((NATIVE / "patches").glob("*.patch")):
        found += apply(hunks_of(patch), folder / fetch.SOURCE, renewed)
    return found, renewed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", help="a version, or the path of a source package")
    parser.add_argument(
        "--renewed", type=Path, metavar="FOLDER", help="where to write the patches with their new places"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgekv-upgrade-") as folder:
        archive = Path(arguments.release)
        if not archive.is_file():
            fetch = fetcher()
            vars(fetch)["PACKAGE"] = f"{fetch.PACKAGE.partition('==')[0]}=={arguments.release}"
            archive = fetch.download(Path(folder))
        found, renewed = rehearse(archive, Path(folder, "source"))
    failed = [hunk for hunk, at in found if at is None]
    moved = sum(at not in (None, hunk.line) for hunk, at in found)
    for hunk in failed:
        print(f"{hunk.patch}, {hunk.path}, line {hunk.line}, is not found:\n" + "\n".join(hunk.lines) + "\n")
    print(f"{len(found)} hunks: {len(found) - moved - len(failed)} in place, {moved} moved, {len(failed)} fail")
    if arguments.renewed:
        arguments.renewed.mkdir(parents=True, exist_ok=True)
        for name, lines in renewed.items():
            (arguments.renewed / name).write_text("\n".join(lines) + "\n" if lines else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
