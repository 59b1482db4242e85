"""Hints of messages and pages to install something: edgekv is on no index, so they give a path, or other packages."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv.errors import ConfigError
from edgekv.extras import check_installed, install_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# an extra of edgekv by the package's name alone: neither by a path, nor with a file's address after it
BY_NAME = re.compile(rf"(?<![\w/.])edgekv\\?\[(?:{'|'.join(EXTRAS)})\b[\w,]*\\?\](?! @)")
INSTALLED = re.compile(r"\b(?:pipx? install|uv add|uvx|uv tool install|--with)\s(?:-\S+ )*[\"'`]?edgekv(?![\w/*-])")


def hints(text):
    """Return what tells a reader to install edgekv by its name."""
    return [found[0] for pattern in (BY_NAME, INSTALLED) for found in pattern.finditer(text)]


def test_nothing_says_to_install_edgekv_by_its_name():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = {"*.md", "*.py", "*.toml", "*.sh", "*.yml", "Containerfile"}
    named = {
        name: found
        for name in filter(None, tracked.split("\0"))
        if any(Path(name).match(pattern) for pattern in texts) and Path(name).name != Path(__file__).name
        if (found := hints((ROOT / name).read_text(encoding="utf-8", errors="replace")))
    }
    development = named.pop("pyproject.toml")  # the group of its own developers, which uv resolves to the checkout
    assert [part.partition("[")[0] for part in development] == ["edgekv"]
    assert not named


@pytest.mark.parametrize(
    "text",
    ["pip install 'edgekv[hub]'", "it needs `edgekv[eval]`", "pip install -U edgekv", "uv add edgekv", "uvx edgekv"],
)
def test_a_hint_is_seen(text):
    assert hints(text)


@pytest.mark.parametrize(
    "text",
    [
        'pip install "path/to/edgekv[chat]"',
        "pip install ./edgekv-*.whl",
        "edgekv[hub] @ file:///x.whl",
        'a.edgekv["x"]',
    ],
)
def test_a_path_is_no_hint(text):
    assert not hints(text)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_has_the_packages_of_an_extra(extra):
    begin, *packages = install_command(extra).split(' "')
    assert begin == "pip install"
    assert [re.match(r"[\w-]+", package)[0] for package in packages] == [
        re.match(r"[\w-]+", package)[0] for package in EXTRAS[extra]
    ]
    assert "extra" not in "".join(packages)
    assert [";" in package for package in packages] == [";" in package for package in EXTRAS[extra]]


def test_a_program_without_metadata_names_the_extra(monkeypatch):
    def absent(_name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    with pytest.raises(ConfigError, match=r"needs no_such_package, which is not installed; .* its extra 'hub'"):
        check_installed("no_such_package", "hub")
