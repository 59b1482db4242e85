"""Check a release before it is uploaded: its version, its entry in CHANGELOG.md, its tag and its packages agree.

    python scripts/release.py --check [--tag TAG] [--dist FOLDER]

Without a tag, check what holds between releases as well: pyproject.toml and native/CMakeLists.txt name one version,
and CHANGELOG.md begins with `## Unreleased` or with that version. With `--tag v1.2.3` it has to begin with
`## 1.2.3 (DATE)` and say what has changed. With `--dist`, the folder has to hold the source package and one wheel for
each platform, all of this version and nothing else. Exits with 1 and one line if anything disagrees.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"  # what a tag may name
# platform tags of the wheels that .github/workflows/wheels.yml builds
PLATFORMS = (
    "manylinux_*_x86_64",
    "manylinux_*_aarch64",
    "musllinux_*_x86_64",
    "musllinux_*_aarch64",
    "macosx_*_arm64",
    "macosx_*_x86_64",
    "win_amd64",
    "win_arm64",
)


class ReleaseError(Exception):
    """Base of what is wrong with a release; the message says what to change."""


class VersionError(ReleaseError):
    """Two files name two versions, or one names none."""


class ChangelogError(ReleaseError):
    """CHANGELOG.md does not tell what this version changes."""


class TagError(ReleaseError):
    """The tag is not that of the version."""


class PackagesError(ReleaseError):
    """A package is missing, or one is of another version or platform."""


def version_of(root: Path) -> str:
    """Return the version of a checkout.

    Raises VersionError unless pyproject.toml and native/CMakeLists.txt name the same one.
    """
    found = {}
    for name, pattern in (
        ("pyproject.toml", rf'^\[project\]\n(?:[^\[\n].*\n)*?version = "({VERSION})"$'),
        ("native/CMakeLists.txt", rf"^project\(edgekv VERSION ({VERSION}) "),
    ):
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        if match is None:
            raise VersionError(f"{name} names no version such as 1.2.3; give the project one")
        found[name] = match[1]
    package, library = found.values()
    # CMake knows numbers alone, so the library of a candidate has the version of the release
    if re.sub(r"(a|b|rc)\d+$", "", package) != library:
        told = " and ".join(f"{name} names {version}" for name, version in found.items())
        raise VersionError(f"{told}; give both the same version")
    return package


def check_changelog(root: Path, version: str, *, released: bool) -> None:
    """Raise ChangelogError unless CHANGELOG.md begins with this version and its changes.

    Before a release it may begin with `## Unreleased`.
    """
    _, *entries = re.split(r"^## ", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    heading, _, changes = entries[0].partition("\n") if entries else ("", "", "")
    if heading == "Unreleased" and not released:
        return
    if re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)", heading) is None:
        raise ChangelogError(
            f"CHANGELOG.md begins with the entry {heading!r}, but the version is {version}; "
            f"name the entry '## {version} (YYYY-MM-DD)', or change the version"
        )
    if re.search(r"^- ", changes, re.MULTILINE) is None:
        raise ChangelogError(
            f"CHANGELOG.md has no change below {heading!r}; say what has changed, a line each with '- '"
        )


def check_tag(tag: str, version: str) -> None:
    """Raise TagError unless the tag is that of the version."""
    if tag != f"v{version}":
        raise TagError(
            f"the tag is {tag}, but the version is {version}; tag this commit v{version}, or change the version"
        )


def check_packages(folder: Path, version: str) -> None:
    """Raise PackagesError unless a folder holds the packages of a version: for every platform one, and nothing else."""
    wanted = [f"edgekv-{version}.tar.gz", *(f"edgekv-{version}-py3-none-{platform}.whl" for platform in PLATFORMS)]
    rest = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for pattern in wanted:
        # a repaired wheel has several tags of one platform, one behind another
        names = [name for name in sorted(rest) if Path(name).match(pattern.replace(".whl", "*.whl"))]
        if len(names) != 1:
            found = "two: " + ", ".join(names) if names else "none"
            raise PackagesError(
                f"{folder} should hold one {pattern}, and holds {found}; build it, or remove the old one"
            )
        rest -= set(names)
    if rest:
        raise PackagesError(f"{folder} holds {', '.join(sorted(rest))}, no package of {version}; remove it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", required=True, help="check, and change nothing")
    parser.add_argument("--tag", help="the tag of the release")
    parser.add_argument("--dist", type=Path, metavar="FOLDER", help="the folder with all packages of the release")
    arguments = parser.parse_args()
    try:
        version = version_of(ROOT)
        check_changelog(ROOT, version, released=arguments.tag is not None)
        if arguments.tag is not None:
            check_tag(arguments.tag, version)
        if arguments.dist is not None:
            check_packages(arguments.dist, version)
    except ReleaseError as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    print(f"edgekv {version}: all agrees")
    return 0


if __name__ == "__main__":
    sys.exit(main())
