"""Tiny models of every family, made once a run."""

from __future__ import annotations

import pytest

pytest.importorskip("gguf")
from edgekv.testing.models.families import make_family


@pytest.fixture(scope="session")
def family_model(tmp_path_factory):
    """A function from the name of a family to the path of such a model."""
    folder = tmp_path_factory.mktemp("families")
    made = {}

    def make(name, **arguments):
        key = (name, *sorted(arguments.items()))
        if key not in made:
            made[key] = make_family(folder / f"{len(made)}.gguf", name, **arguments)
        return made[key]

    return make
