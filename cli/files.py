"""Text files as people name them on a command line: several words, folders, patterns, quoted paths; `-` is a pipe."""

from __future__ import annotations

import glob
import os
import re
import select
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import click

import edgekv
from edgekv.counting import counted
from edgekv.documents.encodings import TextDecoder
from edgekv.documents.formats import format_of, is_convertible, is_document
from edgekv.documents.report import BlankTextError
from edgekv.documents.text_file import decoded, encoding_of, read_text
from edgekv.prompt.named_files import File, NamedFile, short_names
from edgekv.prompt.spool import rereadable, spooled

from .render import say
from .sectioned_help import SectionedCommand

STDIN = "standard input"
PATIENCE_S = 1.0  # seconds before the command says that it waits
MOST_FILES = 10_000  # files of one command, whose paths take memory
LOOKED_AT = 8192  # bytes at the beginning of a file, which say whether it is a text
SHOWN = 5  # names of files that are left out
FLAGS = ("-f", "--file")


class FilesCommand(SectionedCommand):
    """A command whose option -f takes all words that are files, up to the first that is none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. A shell may have expanded a pattern after -f; all those words belong to it."""
        return super().parse_args(ctx, list(with_flags(args)))


def with_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield words with -f before each file that follows a file of -f. Raises InputError for a file without a name."""
    names_file = follows = False
    for i, word in enumerate(words):
        if word == "--":
            yield from words[i:]
            return
        if (names_file and not word) or word == "--file=":  # it would mean the folder that one is in
            raise edgekv.InputError("-f is given an empty name; name a file, or leave -f out")
        if names_file:
            names_file, follows = False, True
        elif word in FLAGS:
            names_file, follows = True, False
        elif follows and word and not word.startswith("-") and Path(word).expanduser().exists():
            yield FLAGS[0]
        else:
            follows = False
        yield word


@contextmanager
def text_files(named: Sequence[Path] | None) -> Iterator[list[File]]:
    """Yield the texts of the files to read: `found_files`. Several have names; of one alone the text is all there is.

    If none is named, that is standard input, if it is a pipe or a file. If files are named and none of them is `-`,
    standard input is not read. The command says so when it reads it. Errors as of `checked_texts`; nobody asked for an
    empty pipe, so that is no file.
    """
    with ExitStack() as stack:
        if not named:
            named = [Path("-")] if _is_offered() else []
        files = checked_texts(found_files(named), stack)
        yield [file.path for file in files] if len(files) == 1 else [*files]


def checked_texts(paths: Sequence[Path], stack: ExitStack) -> list[NamedFile]:
    """Return texts of files under the files' names, which last as long as a stack. Each is read once, to check it.

    An empty file among several is left out, and the command says so. Raises InputError for a file that is no text, and
    if all files are empty.
    """
    read, blank, problem = list[tuple[Path, Path]](), list[str](), None
    for path in paths:
        try:
            read.append((path, stack.enter_context(_standard_input() if _is_stdin(path) else _as_text(path))))
        except BlankTextError as error:
            blank.append(str(path))
            problem = problem or error
    if problem is not None and not read:
        raise problem
    if blank:
        say(f"left out, because nothing is in them: {_shown(blank)}")
    names = iter(short_names([path for path, _ in read if not _is_stdin(path)]))
    return [NamedFile(text, STDIN if _is_stdin(path) else next(names)) for path, text in read]


def _is_stdin(path: Path) -> bool:
    return str(path) == "-"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + f" and {len(names) - SHOWN:,} more" * (len(names) > SHOWN)


@contextmanager
def _as_text(path: Path) -> Iterator[Path]:
    """Yield a text that was read once: the path, or a copy, if it is of a pipe, a document, or a text with bad bytes.

    The command says so if it converts a document, and if bytes are no text.
    """
    is_converted = format_of(path) is not None
    with ExitStack() as stack:
        text = stack.enter_context(rereadable(path))
        if is_converted:
            say(f"{path} is converted: {counted(text.stat().st_size, 'byte')} of text")
        elif text == path:
            notes: list[str] = []
            for _ in read_text(path, notes.append):
                pass
            if notes:  # a worker process, which reads the copy, has nothing to tell
                say(f"edgekv: {notes[0]}", style="")
                text = stack.enter_context(spooled(read_text(path, notes.append)))
        yield text


@contextmanager
def _standard_input() -> Iterator[Path]:
    """A copy of standard input on disk, since a prompt is read twice: counted, then fed."""
    with spooled(decoded(sys.stdin.buffer, STDIN)) as copy:
        say(f"read {counted(copy.stat().st_size, 'byte')} from {STDIN}")
        yield copy


def _is_offered() -> bool:
    """Return True if something comes through standard input. Waits for an open pipe."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # replaced by something that is no file
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
        return False
    with suppress(OSError):  # `select` takes sockets alone on Windows
        if not select.select([sys.stdin], [], [], PATIENCE_S)[0]:
            say(f"waiting for {STDIN}; name files with -f, or add </dev/null, if there is none")
    return bool(cast(BufferedReader, sys.stdin.buffer).peek(1))


def found_files(named: Iterable[Path]) -> list[Path]:
    """Return the named files. A folder stands for the texts in it, a pattern for the files that match.

    Files of a folder come in order of their paths. Hidden files, files that its .gitignore names and files that are no
    texts are left out. "-" and names without a file stay as they are. Raises InputError for a folder or a pattern
    without texts, and for too many files.
    """
    found: list[Path] = []
    for path in named:
        found += _meant(path)
        if len(found) > MOST_FILES:
            raise edgekv.InputError(f"{str(path)!r} makes it more than {MOST_FILES:,} files; name fewer")
    return found


def readable(files: list[Path]) -> list[Path]:
    """Return files that a chat may attach. Raises InputError for a path that is no file."""
    for path in files:
        if not path.is_file():
            raise edgekv.InputError(f"{str(path)!r} is not a file; name a text file")
    return files


def paths_in(line: str) -> list[Path]:
    """Return the paths that a line names, with or without quotes: all of it if that is a file, or its words."""
    whole = Path(line).expanduser()
    if not line or whole.exists():
        return [whole] if line else []
    try:
        words = shlex.split(line, posix=os.name != "nt")
    except ValueError:  # a quote that is not closed
        words = [line]
    return [Path(word.strip("\"'")).expanduser() for word in words]


def _meant(path: Path) -> list[Path]:
    if path.is_dir():
        return _texts_of(path)
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = sorted(Path(it) for it in glob.iglob(str(path.expanduser()), recursive=True) if os.path.isfile(it))
    if not found:
        raise edgekv.InputError(f"{str(path)!r} matches no file; check it, and the folder that you are in")
    return found


def _texts_of(folder: Path) -> list[Path]:
    files = list(_walked(folder))
    texts = [path for path in files if is_convertible(path) or _is_text(path)]
    if not texts:
        raise edgekv.InputError(f"{str(folder)!r} holds no text; name another folder, or its files")
    if len(texts) < len(files):
        others = [str(path.relative_to(folder)) for path in files if path not in {*texts}]
        say(f"{folder}: {counted(len(texts), 'text')}; no texts, and left out: {_shown(others)}")
    return texts


def _walked(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are neither hidden nor ignored, in order of their paths."""
    from pathspec import GitIgnoreSpec  # few commands name a folder

    specs: dict[Path, GitIgnoreSpec] = {}

    def patterns(line: str) -> Sequence[Any]:
        """Return the pattern of a line; none if it is no valid one, which git ignores, too."""
        try:
            return GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error):
            return ()

    def is_ignored(path: Path, *, is_folder: bool) -> bool:
        """Return True if a .gitignore above names the path; the nearest one that speaks of it decides."""
        for above in path.parents:
            if above in specs:
                verdict = specs[above].check_file(path.relative_to(above).as_posix() + "/" * is_folder).include
                if verdict is not None:
                    return verdict
            if above == folder:
                break
        return False

    n_found = 0
    for at, folders, names in os.walk(folder):
        here = Path(at)
        if (ignoring := here / ".gitignore").is_file():
            lines = ignoring.read_text(encoding="utf-8", errors="replace").splitlines()
            specs[here] = GitIgnoreSpec(pattern for line in lines for pattern in patterns(line))
        folders[:] = sorted(it for it in folders if it[:1] != "." and not is_ignored(here / it, is_folder=True))
        for name in sorted(names):
            path = here / name
            if name[:1] != "." and path.is_file() and not is_ignored(path, is_folder=False):
                n_found += 1
                if n_found > MOST_FILES:
                    raise edgekv.InputError(f"{str(folder)!r} holds more than {MOST_FILES:,} files; name fewer")
                yield path


def _is_text(path: Path) -> bool:
    """Return True if a file begins with text in its encoding: no NUL, and more than blanks."""
    try:
        with path.open("rb") as file:
            beginning = file.read(LOOKED_AT)
    except OSError:
        return False
    if is_document(beginning):
        return False
    try:
        decoder = TextDecoder(encoding_of(beginning, str(path)))
        text = decoder.decode(beginning)  # a character may be cut at the end
    except (UnicodeDecodeError, edgekv.InputError):
        return False
    return bool(text.strip()) and "\0" not in text and not decoder.has_other_encoding
