"""A chat template from a file, in the place of the one that a model carries."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from edgekv.errors import ConfigError

from .header import TEMPLATE_KEY, Header

MAX_BYTES = 1 << 20  # longer ones of a model's file are left out, too


def with_template(header: Header, path: str | os.PathLike[str] | None) -> Header:
    """Return a header with the chat template of a file in Jinja; None = as it is. Raises ConfigError."""
    if path is None:
        return header
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except OSError as error:
        raise ConfigError(f"chat_template={str(path)!r} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template={str(path)!r} is not UTF-8 text; give a template in Jinja") from error
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"chat_template={str(path)!r} has more than {MAX_BYTES:,} bytes; give a template in Jinja")
    return replace(header, metadata={**header.metadata, TEMPLATE_KEY: text})
