"""The models of LM Studio: OWNER/MODEL/FILE.gguf in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgekv.models.names import is_model_file, split_of, tags_of

from .found import FoundModel

_FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")  # the second one in older versions


def models() -> Iterator[FoundModel]:
    """Return the GGUF files of all folders OWNER/MODEL."""
    for folder in (Path(name).expanduser() for name in _FOLDERS):
        for repo in sorted(path for path in folder.glob("*/*") if os.path.isdir(path)):
            files = {path.name: path for path in sorted(repo.glob("*.gguf"))}
            names = [name for name in files if is_model_file(name) and split_of(name)[0] == 1]
            for name, tag in tags_of(names).items():
                yield FoundModel("lmstudio", repo.relative_to(folder).as_posix(), tag, name, files[name])
