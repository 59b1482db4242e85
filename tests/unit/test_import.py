"""Importing edgekv defines names and loads nothing: no bindings, no CLI, no native library."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from edgekv.binding import library
from edgekv.errors import NativeError

SCRIPT = """
import json, sys
import edgekv
from pathlib import Path
maps = Path("/proc/self/maps")
mapped = maps.read_text() if maps.exists() else ""
print(json.dumps({"modules": sorted(sys.modules), "mapped": mapped}))
"""


@pytest.fixture(scope="module")
def after_import():
    """Return what a fresh process holds after `import edgekv`."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def test_import_leaves_everything_out(after_import):
    ours = {module for module in after_import["modules"] if module.partition(".")[0] == "edgekv"}
    assert ours == {"edgekv", "edgekv.errors"}
    assert not {"numpy", "jinja2", "llama_cpp", "typer", "rich", "gguf"} & set(after_import["modules"])


def test_every_name_is_there():
    script = "import edgekv; print(*(name for name in edgekv.__all__ if not hasattr(edgekv, name)))"
    assert (
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300).stdout
        == "\n"
    )


def test_names_of_other_libraries_are_told_before_anything_is_opened():
    script = "import edgekv\ntry: edgekv.Llama\nexcept AttributeError as error: print(error)"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert "edgekv.Runtime(model)" in said.stdout


def test_other_names_are_not():
    import edgekv

    assert set(edgekv.__all__) <= set(dir(edgekv))
    with pytest.raises(AttributeError, match="module 'edgekv' has no attribute 'runtimes'"):
        edgekv.runtimes  # noqa: B018


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_import_maps_no_native_library(after_import):
    assert "libc" in after_import["mapped"]
    assert library.library_path().name not in after_import["mapped"]
    assert "ggml" not in after_import["mapped"]


def test_bindings_run_on_edgekvs_library():
    """One library for both: what `llama_cpp` loads is the file that edgekv built."""
    script = "from edgekv.binding import library; lib = library.bindings()._lib; print(lib._name)"
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert found.strip() == str(library.library_path())


def test_another_build_is_named_by_its_folder(tmp_path, monkeypatch):
    path = library.library_path()
    monkeypatch.setenv("EDGEKV_LIB_PATH", str(tmp_path))
    with pytest.raises(
        NativeError, match=re.escape(f"EDGEKV_LIB_PATH={tmp_path} holds no {path.name}; name the folder")
    ):
        library.library_path()
    (tmp_path / path.name).symlink_to(path)
    script = "from edgekv.binding import library; print(library.load()._name, library.bindings()._lib._name)"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert found.split() == [str(tmp_path / path.name)] * 2
