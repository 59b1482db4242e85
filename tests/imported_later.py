"""Packages that take seconds to import. Every worker of xdist collects all files of tests; one runs those of a file."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest


def imported_later(name):
    """Return what stands for a module and imports it at its first use. Skip the file where its package is missing."""
    package = name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return ImportedLater(name)


class ImportedLater:
    """A module, imported when something of it is asked for."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # collecting a file, pytest looks for some in whatever it holds
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
