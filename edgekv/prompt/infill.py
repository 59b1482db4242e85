"""Prompts whose reply fills a gap between two texts (fill in the middle), with the model's control tokens for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgekv.binding.model import Model
from edgekv.errors import InputError

from .text import Prompt

USES = ("fim_pre", "fim_suf", "fim_mid")  # tokens before the text above a gap, the text below it, and its filling
OF_FILES = "fim_sep"  # the token before each other file


@dataclass(frozen=True, slots=True)
class Infill:
    """A gap between two texts, which a reply fills. Models of code are trained for it; others have no tokens for it.

    before, after: the texts on both sides, or the Paths of files
    files: name and text of other files that belong to it, such as other files of the repository
    """

    before: str | Path
    after: str | Path
    files: tuple[tuple[str, str | Path], ...] = ()


def infill_prompt(model: Model, content: Sequence[str | os.PathLike[str]]) -> Prompt:
    """Make the prompt for a gap. Raises InputError for a model without tokens for it.

    content: the texts before and after the gap, then name and text of each other file, for a model that has a token
    for files; another one reads them as one text before the gap
    """
    before_gap, after_gap, filling = (model.control_text(use) for use in USES)
    if not (before_gap and after_gap and filling):
        raise InputError(
            "the model's vocabulary has no tokens to fill a gap with (fill in the middle); choose a model of code, "
            "such as Qwen2.5-Coder"
        )
    separator = model.control_text(OF_FILES)
    before, after, *others = content
    prompt = Prompt(model, begin=True)
    for name, text in zip(others[::2], others[1::2], strict=True):
        prompt.template(separator).content(f"{name}\n", text, "\n", role="text")
    prompt.template(before_gap).content(before, role="text")
    return prompt.template(after_gap).content(after, role="text").template(filling)
