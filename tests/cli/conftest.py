"""Shared fixtures of the command line's tests; a module may have a model or a book of its own."""

from __future__ import annotations

import pytest
from command import words


@pytest.fixture(scope="session")
def model(tiny_model):
    """Path of a model that answers in seconds."""
    return tiny_model(n_layer=2, n_ctx_train=2048)


@pytest.fixture(scope="session")
def book(text_file):
    """Path of a text of more tokens than the cells that its readers have."""
    return text_file(words(200))
