"""Names of saved sessions, which lie in a folder of the user's."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import platformdirs

from edgekv.errors import SessionFileError

from .atomic_write import remove_leftovers
from .kept_folder import check_unused, is_kept, remove_unfinished
from .ownership import Ownership
from .shared_files import held
from .snapshot_file import open_snapshot_file

SUFFIX = ".session"
MAX_NAME_BYTES = 100
_BESIDE_LETTERS = frozenset("_.-")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # names of devices on Windows


def sessions_folder() -> Path:
    """Return the folder of saved sessions. It need not exist yet."""
    return Path(platformdirs.user_data_dir("edgekv", appauthor=False)) / "sessions"


def default_name(text: str, otherwise: str) -> str:
    """Return a name that a session can have, made of a text; of another one if the text has no letters and digits."""
    name = "-".join("".join(it if _is_part(it) else " " for it in _composed(text)).split())
    name = "".join(itertools.dropwhile(lambda it: not it.isalnum(), name)) or otherwise
    if _DEVICES.fullmatch(name):
        name = f"{otherwise}-{name}"
    return _cut(name, MAX_NAME_BYTES).rstrip("-.")


def path_of(name: str) -> Path:
    """Return the path of a saved session. Raises SessionFileError for a name that no file can have.

    Names that differ in the form of their letters alone, composed or decomposed, are one.
    """
    name = _composed(name)
    if not _is_name(name) or _DEVICES.fullmatch(name):
        raise SessionFileError(
            f"{name!r} cannot name a session; use letters, digits, '-', '_' and '.', and begin with a letter or a digit"
        )
    n_bytes = len(name.encode())
    if n_bytes > MAX_NAME_BYTES:
        raise SessionFileError(
            f"{name!r} cannot name a session: it has {n_bytes} bytes, and {MAX_NAME_BYTES} are possible; shorten it"
        )
    return sessions_folder() / f"{name}{SUFFIX}"


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _is_name(name: str) -> bool:
    return name[:1].isalnum() and all(map(_is_part, name))


def _is_part(character: str) -> bool:
    """Return True for a letter, a digit, a mark of a letter, as words of Hindi and Thai have, or `_`, `.` and `-`."""
    is_mark = unicodedata.category(character).startswith("M")
    return character.isalnum() or is_mark or character in _BESIDE_LETTERS


def _cut(name: str, n_bytes: int) -> str:
    """Return the beginning of a name that has at most so many bytes in UTF-8."""
    return name.encode()[:n_bytes].decode(errors="ignore")


def writable_path_of(name: str) -> Path:
    """Return the path of a session to save, and make its folder. Raises SessionFileError if that fails."""
    path = path_of(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SessionFileError(
            f"the folder {str(path.parent)!r} cannot be made: {error.strerror}; "
            "make it, or name another in XDG_DATA_HOME"
        ) from error
    return path


def existing_path_of(name: str) -> Path:
    """Return the path of a saved session. Raises SessionFileError if there is none, and names the saved ones."""
    path = path_of(name)
    if not (path.is_file() or is_kept(path)):
        there = ", ".join(saved_names()) or "none"
        raise SessionFileError(f"there is no saved session {name!r}; saved: {there}")
    return path


def saved_names() -> list[str]:
    """Return the names of all saved sessions; removes what killed processes left incomplete."""
    folder = sessions_folder()
    remove_leftovers(folder)
    remove_unfinished(folder)
    names = [path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}") if path.is_file() or is_kept(path)]
    return sorted(filter(_is_name, map(_composed, names)))


def rename(name: str, new: str) -> None:
    """Give a saved session another name.

    Raises SessionFileError if there is no such session, if another one has the new name, and if the folder is not
    writable.
    """
    path, target = existing_path_of(name), path_of(new)
    try:
        with held(path.parent.with_name("sessions.lock")):
            if is_kept(path):
                check_unused(path)
            if target.exists():
                raise SessionFileError(
                    f"{new!r} is saved already; give another name, or remove it with: edgekv sessions rm {new}"
                )
            path.rename(target)
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be renamed: {error.strerror}; check the permissions of its folder"
        ) from error


def free_name(name: str) -> str:
    """Return a name that no session has: this one, or this one with a number."""
    for i in itertools.count(1):
        ending = "" if i == 1 else f"-{i}"
        short = _cut(name, MAX_NAME_BYTES - len(ending))
        if not path_of(short + ending).exists():
            return short + ending
    raise AssertionError


def holds_only_text(path: Path) -> bool:
    """Return True if a session holds texts, and no question about them. Raises SessionFileError."""
    if is_kept(path):
        return False  # `read` saves whole files, but for what it has read in part
    with open_snapshot_file(path, checked=False) as file:
        return file.header.values.get("turns") == "open"


def save_as(save: Callable[[Path], None], name: str, owned: Ownership) -> str:
    """Save a session under a name, or under a free one if another process has changed it. Returns the name.

    save: writes a session to a file
    owned: the files that the caller wrote or loaded
    """
    path = writable_path_of(name)
    try:
        with held(path.parent.with_name("sessions.lock")):
            if owned.is_foreign(path):
                name = free_name(name)
                path = path_of(name)
            save(path)
            owned.note(path)
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be saved: {error.strerror or error}; check the permissions of its folder"
        ) from error
    return name
