"""Markdown that grows, cut into blocks; reasoning, told from the answer; Ctrl-C; completion; history."""

from __future__ import annotations

import json
import os

import pytest

from edgekv.cli.chat.blocks import LONGEST, Block, Blocks
from edgekv.cli.chat.chat import Interrupts
from edgekv.cli.chat.completion import candidates, paths
from edgekv.cli.chat.input_history import KEPT_BYTES, MOST_BYTES, History
from edgekv.cli.chat.lines import is_open, unquoted
from edgekv.generation.reasoning import ReasoningSplitter, split_reasoning

TEXT = """# One
two
three

- four
  five
- six

  seven

1. eight
   ```python
   nine

   ten
   ```
| a | b |
|---|---|
| 1 | 2 |

---
> end"""

BLOCKS = [
    Block("# One"),
    Block("two\nthree", gap=True),
    Block("- four\n  five", gap=True),
    Block("- six\n\n  seven"),
    Block("1. eight", gap=True),
    Block("   nine", is_code=True, gap=True),
    Block("", is_code=True),
    Block("   ten", is_code=True),
    Block("| a | b |\n|---|---|\n| 1 | 2 |", gap=True),
    Block("---", gap=True),
    Block("> end", gap=True),
]


def cut(pieces):
    blocks = Blocks()
    return [block for piece in pieces for block in blocks.add(piece)] + list(blocks.end())


@pytest.mark.parametrize("size", [1, 2, 7, len(TEXT)])
def test_blocks_do_not_depend_on_the_pieces(size):
    assert cut(TEXT[i : i + size] for i in range(0, len(TEXT), size)) == BLOCKS


def test_what_is_printed_no_longer_changes():
    """A finished block is finished whatever comes; the open one is a beginning of what follows."""
    blocks, printed = Blocks(), []
    for letter in TEXT:
        printed += blocks.add(letter)
        assert printed == BLOCKS[: len(printed)]
        rest = blocks.unfinished
        if rest is not None and not rest.is_code and len(printed) < len(BLOCKS):
            coming = "\n\n".join(block.text for block in BLOCKS[len(printed) :])
            assert coming.replace("\n", "").startswith(rest.text.split("\n")[0].rstrip("\n").replace("`", ""))


def test_a_block_without_an_end_is_cut():
    blocks = cut(["word " * 5000])
    assert max(len(block.text) for block in blocks) <= LONGEST
    assert "".join(block.text for block in blocks) == "word " * 5000
    assert not any(block.gap for block in blocks)


def test_code_that_is_not_closed_is_printed_line_by_line():
    assert [block.text for block in cut(["```\na\n", "b\n", "c"])] == ["a", "b", "c"]
    assert [block.text for block in cut(["~~~~\n```\n~~~\n", "~~~~\nb"])] == ["```", "~~~", "b"]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("reply", "begun", "expected"),
    [
        ("<think>why</think>so", False, ("why", "so")),
        ("\n <think>\nwhy\n</think>\n\nso", False, ("why", "so")),
        ("why</think>so", True, ("why", "so")),
        ("so <think>it</think>", False, ("", "so <think>it</think>")),
        ("<thin", False, ("", "<thin")),
        ("<think>no end </thi", False, ("no end </thi", "")),
        ("a < b", False, ("", "a < b")),
    ],
)
def test_reasoning_is_told_from_the_answer(size, reply, begun, expected):
    assert split_reasoning(reply, begun=begun) == expected
    thoughts = ReasoningSplitter(begun=begun)
    parts = [part for i in range(0, len(reply), size) for part in thoughts.add(reply[i : i + size])]
    parts += thoughts.end()
    assert (
        tuple("".join(text for kind, text in parts if kind is wanted).strip() for wanted in (True, False)) == expected
    )


def test_twice_means_within_a_second():
    times = iter([10.0, 11.0, 11.9, 14.0])
    interrupts = Interrupts(lambda: next(times))
    assert [interrupts.is_second() for _ in range(4)] == [False, False, True, False]


def test_three_quotes_span_lines():
    assert is_open('"""a\nb')
    assert not is_open('"""a\nb"""')
    assert not is_open('say """a')
    assert unquoted('"""\na\n b\n"""') == "a\n b"
    assert unquoted("as it is ") == "as it is "


def test_what_tab_offers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    (tmp_path / "book.txt").touch()
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").touch()
    (tmp_path / ".hidden").touch()
    commands = {"/read": paths, "/retry": None, "/set": lambda _: ["temp ", "top-p "]}
    assert list(candidates("/re", commands)) == [("/read", 3), ("/retry", 3)]
    assert list(candidates("/read b", commands)) == [("book.txt", 1), ("books/", 1)]
    assert list(candidates("/read books/", commands)) == [("books/one.txt", 6)]
    assert list(candidates("/read ~/books/o", commands)) == [("~/books/one.txt", 9)]
    assert [text for text, _ in candidates("/read .", commands)] == [".hidden"]
    assert list(candidates("/set te", commands)) == [("temp ", 2)]
    for line in ("/retry x", "hello", "/read no/such/", "a\n/re"):
        assert list(candidates(line, commands)) == []


def test_history_goes_on_and_does_not_grow(tmp_path):
    path = tmp_path / "data" / "history"
    history = History(path)
    assert history.entries() == []
    history.add("one\ntwo")
    History(path).add("drei ü")
    assert History(path).entries() == ["one\ntwo", "drei ü"]
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b"no json\n\xff\n" + json.dumps("x" * 100).encode() + b"\n")
    assert history.entries() == ["one\ntwo", "drei ü", "x" * 100]
    history.add("y" * KEPT_BYTES)  # too long to be remembered
    assert history.entries()[-1] == "x" * 100
    for i in range(MOST_BYTES // 1000 + 2):
        history.add(f"{i:04}" + "z" * 1000)
    entries = History(path).entries()
    assert KEPT_BYTES // 1100 < len(entries) <= KEPT_BYTES // 1000
    assert path.stat().st_size <= KEPT_BYTES
    assert History(path).entries() == entries


def test_a_history_that_cannot_be_kept_is_none(tmp_path):
    (tmp_path / "file").touch()
    history = History(tmp_path / "file" / "history")
    history.add("one")
    assert history.entries() == []
