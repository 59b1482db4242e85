"""The model that `--real` names. Tests of this folder skip without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = str(Path(__file__).parents[2] / "scripts")


@pytest.fixture(scope="session")
def real_model(request):
    """Path of the model."""
    name = request.config.getoption("--real")
    if name is None:
        pytest.skip("no model is named; name one with --real")
    path = Path(name)
    if not path.is_file():
        sys.path.append(SCRIPTS)
        from real_models import MODELS

        path = next((model.path for model in MODELS if model.name == name), path)
    if not path.is_file():
        pytest.fail(f"{name} is not here; bring it with scripts/real_models.py, or name a file")
    return path
