"""Fetching llama.cpp's source: what is checked, unpacked and patched. Nothing is downloaded here."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import tarfile
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"

MEMBERS = {
    "vendor/llama.cpp/CMakeLists.txt": "project(llama)\n",
    "vendor/llama.cpp/LICENSE": "MIT\n",
    "vendor/llama.cpp/src/llama.cpp": "int one = 1;\nint two = 2;\nint three = 3;\n",
    "vendor/llama.cpp/ggml/src/ggml.c": "int ggml;\n",
    "vendor/llama.cpp/tools/server.cpp": "int server;\n",
    "vendor/llama.cpp/CMakePresets.json": "{}\n",
    "llama_cpp/llama.py": "raise SystemExit\n",
}
WANTED = {"CMakeLists.txt", "LICENSE", "src/llama.cpp", "ggml/src/ggml.c"}

PATCH = """\
--- a/src/llama.cpp
+++ b/src/llama.cpp
@@ -1,3 +1,3 @@
 int one = 1;
-int two = {old};
+int two = 22;
 int three = 3;
"""


@pytest.fixture
def fetch(monkeypatch):
    """The script as a module, its pip replaced by an error."""
    spec = importlib.util.spec_from_file_location("fetch_llama", NATIVE / "fetch_llama.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def no_network(folder):
        raise AssertionError("the test downloads")

    monkeypatch.setattr(module, "download", no_network)
    return module


@pytest.fixture
def archive(tmp_path):
    """A source package of a few lines."""
    path = tmp_path / "llama_cpp_python-0.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in MEMBERS.items():
            member = tarfile.TarInfo(f"llama_cpp_python-0.0/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("llama_cpp_python-0.0/vendor/llama.cpp/src/link.cpp")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


@pytest.fixture
def quiet_patching():
    """patch_ng, with logging as it was once the test is over: the script silences it."""
    import logging

    pytest.importorskip("patch_ng")
    before = logging.root.manager.disable
    yield
    logging.disable(before)


def write_patch(path, old=2):
    path.write_text(PATCH.format(old=old))
    return path


def test_check_names_the_found_and_the_pinned_sum(fetch, archive):
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    fetch.check(archive, found)
    with pytest.raises(fetch.FetchError) as error:
        fetch.check(archive)
    assert found in str(error.value)
    assert fetch.SHA256 in str(error.value)
    assert archive.name in str(error.value)


def test_unpack_takes_the_parts_wanted(fetch, archive, tmp_path):
    """No tools, no Python package, no links."""
    made = tmp_path / "made"
    fetch.unpack(archive, made)
    files = {str(path.relative_to(made / fetch.SOURCE)) for path in made.rglob("*") if not path.is_dir()}
    assert files == WANTED
    assert (made / fetch.SOURCE / "src" / "llama.cpp").read_text() == MEMBERS["vendor/llama.cpp/src/llama.cpp"]


def test_patch_is_applied(fetch, archive, tmp_path, quiet_patching):
    fetch.unpack(archive, tmp_path)
    fetch.apply(write_patch(tmp_path / "0001-two.patch"), tmp_path)
    assert (
        tmp_path / fetch.SOURCE / "src" / "llama.cpp"
    ).read_text() == "int one = 1;\nint two = 22;\nint three = 3;\n"


@pytest.mark.parametrize("content", [PATCH.format(old=3), "no patch at all\n", ""], ids=["foreign", "text", "empty"])
def test_patch_that_does_not_apply_is_named(fetch, archive, tmp_path, quiet_patching, content):
    fetch.unpack(archive, tmp_path)
    (tmp_path / "0007-wrong.patch").write_text(content)
    with pytest.raises(
        fetch.FetchError, match=r"0007-wrong\.patch does not apply to llama-cpp-python==.*renew the patch"
    ):
        fetch.apply(tmp_path / "0007-wrong.patch", tmp_path)


def test_fingerprint_changes_with_the_patches(fetch, tmp_path):
    one, two = write_patch(tmp_path / "1.patch"), write_patch(tmp_path / "2.patch", old=4)
    prints = [fetch.fingerprint(patches) for patches in ([], [one], [two], [one, two], [two, one])]
    assert len(set(prints)) == len(prints)
    assert fetch.fingerprint([one]) == prints[1]
    one.write_text(one.read_text() + "\n")
    assert fetch.fingerprint([one]) != prints[1]


# ---- the whole way, with the small archive in place of pip's ----


@pytest.fixture
def with_archive(fetch, archive, monkeypatch):
    """The script, given the small archive and its sum; `downloads` counts the fetches."""
    downloads = []

    def take(folder):
        downloads.append(folder)
        return archive

    monkeypatch.setattr(fetch, "download", take)
    monkeypatch.setattr(fetch.check, "__defaults__", (hashlib.sha256(archive.read_bytes()).hexdigest(),))
    return fetch, downloads


def test_prepare_is_free_the_second_time(with_archive, tmp_path):
    fetch, downloads = with_archive
    dest = tmp_path / "deep" / "source"
    fetch.prepare(dest, [])
    fetch.prepare(dest, [])
    assert len(downloads) == 1
    assert (dest / fetch.SOURCE / "LICENSE").read_text() == "MIT\n"
    assert [path.name for path in dest.parent.iterdir()] == ["source"]


def test_prepare_starts_again_when_a_patch_changes(with_archive, tmp_path, quiet_patching):
    fetch, downloads = with_archive
    dest = tmp_path / "source"
    fetch.prepare(dest, [])
    fetch.prepare(dest, [write_patch(tmp_path / "0001-two.patch")])
    assert len(downloads) == 2
    assert "int two = 22;" in (dest / fetch.SOURCE / "src" / "llama.cpp").read_text()


def test_prepare_leaves_the_folder_alone_when_it_fails(with_archive, tmp_path, monkeypatch):
    fetch, _ = with_archive
    dest = tmp_path / "source"
    fetch.prepare(dest, [])
    monkeypatch.setattr(fetch.check, "__defaults__", (fetch.SHA256,))
    with pytest.raises(fetch.FetchError):
        fetch.prepare(dest, [write_patch(tmp_path / "0001-two.patch")])
    assert (dest / fetch.SOURCE / "LICENSE").read_text() == "MIT\n"
    assert (dest / fetch.STAMP).read_text() == fetch.fingerprint([])
