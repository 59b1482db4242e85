"""A hub with tiny models, and a cache of its own for each test."""

from __future__ import annotations

import pytest
from hub_server import REPO, serving

HUB_VARIABLES = (
    "HF_TOKEN",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "XDG_CACHE_HOME",
    "OLLAMA_MODELS",
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without any cache."""
    for variable in HUB_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "300")  # programs wait as long for a hub that stalls
    return folder


@pytest.fixture
def hub(monkeypatch, tiny_model):
    """A running hub with two quantisations of a tiny model."""
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        running.repos[REPO] = {
            "README.md": b"A tiny model.",
            "tiny-llama-Q8_0.gguf": tiny_model(quantization="Q8_0").read_bytes(),
            "tiny-llama-F16.gguf": tiny_model(quantization="F16").read_bytes(),
        }
        yield running
