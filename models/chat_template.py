"""The chat template that messages are read in: the model's, or that of a file, with or without reasoning."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from edgekv.errors import ConfigError

from .header import TEMPLATE_KEY, TOOLS_TEMPLATE_KEY, Header

MAX_BYTES = 1 << 20  # longer ones of a model's file are left out, too
# the two names that templates have for it
REASONING = "{{% set enable_thinking = {0} %}}{{% set thinking = {0} %}}"


def with_template(header: Header, path: str | os.PathLike[str] | None, thinking: bool | None = None) -> Header:
    """Return a header with the chat template that messages are read in.

    path: a file in Jinja, for messages with and without tools; None = the model's own
    thinking: begin replies with reasoning or without, if the template can; None = as the template does by itself

    Raises ConfigError for a file that cannot be read.
    """
    own = {key: header.metadata.get(key) for key in (TEMPLATE_KEY, TOOLS_TEMPLATE_KEY)}
    templates = own if path is None else {TEMPLATE_KEY: _read(path), TOOLS_TEMPLATE_KEY: None}
    if thinking is not None:
        prefix = REASONING.format(str(thinking).lower())
        templates = {key: prefix + it if isinstance(it, str) else it for key, it in templates.items()}
    if templates == own:
        return header
    others = {key: value for key, value in header.metadata.items() if key not in own}
    return replace(header, metadata=others | {key: it for key, it in templates.items() if it is not None})


def _read(path: str | os.PathLike[str]) -> str:
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except OSError as error:
        raise ConfigError(f"chat_template={str(path)!r} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template={str(path)!r} is not UTF-8 text; give a template in Jinja") from error
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"chat_template={str(path)!r} has more than {MAX_BYTES:,} bytes; give a template in Jinja")
    return text
