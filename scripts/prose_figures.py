"""Print lines, median and longest sentence of each page in docs/, in words; the pages with the longest sentences first.

    python scripts/prose_figures.py [--sentences N]

A page below docs/design or docs/results is of that kind. A page whose first paragraph begins with `*Reference.*` is a
reference. All others are for users, and `!` marks those above 150 lines.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
MAX_LINES = 150
SHORTEST = 4  # words of a sentence; fewer are a label or a figure
REFERENCE = "*Reference.*"

FENCED = re.compile(r"^```[\s\S]*?^```$", re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SPAN = re.compile(r"`[^`]*`")
NAMES = re.compile(r"Code(?: \([^()]*\))?(?:(?:, | and | or |, and |, or )Code(?: \([^()]*\))?)+")
END = re.compile(r"(?<=[.!?])[*)\"']* +")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation. kind: user, reference, design or results; sentences: without code."""

    name: str
    kind: str
    n_lines: int
    sentences: tuple[str, ...]

    @property
    def lengths(self) -> list[int]:
        """Words of each sentence."""
        return [len(sentence.split()) for sentence in self.sentences] or [0]


def read_page(path: Path) -> Page:
    """Return the page in a Markdown file."""
    text = path.read_text(encoding="utf-8")
    folder = path.relative_to(DOCS).parts[0]
    reference = "reference" if text.partition("\n\n")[2].startswith(REFERENCE) else "user"
    kind = folder if folder in ("design", "results") else reference
    return Page(str(path.relative_to(DOCS)), kind, len(text.splitlines()), tuple(sentences(text)))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text: of paragraphs, items and cells of tables.

    Code is left out, and a list of names in code is one word.
    """
    for block in _blocks(without_code(text)):
        plain = NAMES.sub("Codes", SPAN.sub("Code", LINK.sub(r"\1", block)))
        parts = (part.strip(" *_>") for part in END.split(plain))
        yield from (part for part in parts if len(part.split()) >= SHORTEST)


def without_code(text: str) -> str:
    """Return a Markdown text without its blocks of code."""
    return INDENTED.sub("\n", FENCED.sub("", text))


def _blocks(text: str) -> Iterator[str]:
    """Yield paragraphs, items and cells, each in one line."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        alone = line.startswith(("|", "#")) or not line.strip()
        if block and (alone or ITEM.match(line)):
            yield " ".join(block)
            block = []
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", SPAN.sub(lambda span: span[0].replace("|", "\\|"), line))
            yield from (cell.strip() for cell in cells if cell.strip(" |:-"))
        elif not alone:
            block.append(ITEM.sub("", line).strip())


def pages() -> list[Page]:
    """Return all pages, those with the longest sentences first."""
    return sorted(map(read_page, DOCS.rglob("*.md")), key=lambda page: -max(page.lengths))


def main() -> None:
    """Print a line for each page, and the sums of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=0, metavar="N", help="print the N longest sentences of a page")
    n_sentences = parser.parse_args().sentences
    found = pages()
    print(f"{'page':34}{'kind':>10}{'lines':>7}  {'median':>6}{'longest':>9}")
    for page in found:
        mark = "!" if page.kind == "user" and page.n_lines > MAX_LINES else " "
        median = statistics.median(page.lengths)
        print(f"{page.name:34}{page.kind:>10}{page.n_lines:>7}{mark} {median:>6.0f}{max(page.lengths):>9}")
        for sentence in sorted(page.sentences, key=lambda text: -len(text.split()))[:n_sentences]:
            print(f"    {len(sentence.split()):>3}  {sentence}")
    for kind in ("user", "reference", "design", "results"):
        n_lines = sum(page.n_lines for page in found if page.kind == kind)
        print(f"{kind}: {n_lines} lines in {sum(page.kind == kind for page in found)} pages")


if __name__ == "__main__":
    main()
