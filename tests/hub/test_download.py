"""Downloads of a file from a hub: whole, interrupted, wrong, and where there is no room."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
from hub_server import REPO
from lent_device import reserved_port

from edgekv.errors import ConfigError, DownloadError, InvalidModelError, ModelNotFoundError
from edgekv.hub.download import download, partial_path
from edgekv.models import find_model
from edgekv.models.caches import hugging_face

pytest.importorskip("huggingface_hub")

from edgekv.hub.client import Hub

NAME = "tiny-llama-Q8_0.gguf"


@pytest.fixture
def remote(hub):
    """The file that is downloaded."""
    (found,) = (file for file in Hub().files(REPO) if file.path == NAME)
    return found


@pytest.fixture
def contents(hub):
    return hub.repos[REPO][NAME]


def test_the_files_that_a_hub_states(hub, contents):
    files = {file.path: file for file in Hub().files(REPO)}
    assert set(files) == {NAME, "tiny-llama-F16.gguf"}  # the README has no digest
    assert (files[NAME].n_bytes, files[NAME].sha256) == (len(contents), hashlib.sha256(contents).hexdigest())


def test_a_download_is_where_huggingface_hub_looks_for_it(remote, contents):
    path = download(remote)
    assert path.read_bytes() == contents
    assert path == hugging_face.repo_folder(REPO) / "snapshots" / remote.commit / NAME
    assert path.resolve() == hugging_face.repo_folder(REPO).resolve() / "blobs" / remote.sha256
    from huggingface_hub import hf_hub_download, scan_cache_dir

    cache = hugging_face.cache_folder()
    assert hf_hub_download(REPO, NAME, cache_dir=cache, local_files_only=True) == str(path)
    scanned = scan_cache_dir(cache)
    assert not scanned.warnings
    assert scanned.size_on_disk == len(contents)


def test_what_is_there_is_not_downloaded_again(remote, hub):
    path = download(remote)
    sent = hub.sent_bytes
    assert download(remote) == path
    assert hub.sent_bytes == sent


@pytest.mark.parametrize("is_named", [True, False])
def test_what_was_damaged_since_is_found_and_replaced(remote, contents, is_named):
    path = download(remote)
    path.write_bytes(contents[:-1] + b"x")  # through the link
    if not is_named:
        path.unlink()
    with pytest.raises(InvalidModelError, match="SHA-256"):
        download(remote)
    assert download(remote).read_bytes() == contents


def test_progress_is_told_in_bytes_of_the_whole(remote, contents):
    told = []
    download(remote, lambda *what: told.append(what))
    assert told[-1] == ("checking", len(contents), len(contents))
    assert ("downloading", len(contents), len(contents)) in told


def test_a_lost_connection_is_taken_up_where_it_broke(remote, hub, contents):
    hub.stops_after = len(contents) // 3
    assert download(remote).read_bytes() == contents
    assert [start for start, _ in hub.ranges] == [0, hub.stops_after, 2 * hub.stops_after, 3 * hub.stops_after][
        : len(hub.ranges)
    ]
    assert hub.sent_bytes == len(contents)


def test_what_was_downloaded_stays_when_nothing_more_comes(remote, hub, contents):
    hub.stops_after = 1000
    with pytest.raises(DownloadError, match="connection"):
        download(remote, lambda what, done, total: setattr(hub, "stops_after", 0))
    assert partial_path(remote).read_bytes() == contents[:1000]
    with pytest.raises(ModelNotFoundError, match="edgekv pull"):
        find_model(f"hf:{REPO}")
    hub.stops_after, hub.sent_bytes = None, 0
    assert download(remote).read_bytes() == contents
    assert hub.ranges[-1] == (1000, len(contents))
    assert hub.sent_bytes == len(contents) - 1000
    assert not partial_path(remote).exists()


def test_wrong_contents_are_deleted(remote, hub, contents):
    hub.wrong = True
    with pytest.raises(InvalidModelError, match=rf"SHA-256 [0-9a-f]{{64}}, but the hub states {remote.sha256}"):
        download(remote)
    assert not partial_path(remote).exists()
    assert not (hugging_face.repo_folder(REPO) / "blobs" / remote.sha256).exists()
    hub.wrong = False
    assert download(remote).read_bytes() == contents


def test_the_part_that_was_there_is_checked_too(remote, contents):
    partial_path(remote).parent.mkdir(parents=True)
    partial_path(remote).write_bytes(b"x" * 1000)
    with pytest.raises(InvalidModelError, match="SHA-256"):
        download(remote)
    assert download(remote).read_bytes() == contents


def test_a_part_that_lacks_only_its_check_is_not_brought_again(remote, hub, contents):
    partial_path(remote).parent.mkdir(parents=True)
    partial_path(remote).write_bytes(contents)
    assert download(remote).read_bytes() == contents
    assert hub.sent_bytes == 0


def test_a_part_that_is_longer_than_the_file_is_dropped(remote, contents):
    partial_path(remote).parent.mkdir(parents=True)
    partial_path(remote).write_bytes(contents + b"x")
    assert download(remote).read_bytes() == contents


def test_a_server_without_ranges_is_refused_where_they_are_needed(remote, hub, contents):
    hub.ignores_ranges = True
    partial_path(remote).parent.mkdir(parents=True)
    partial_path(remote).write_bytes(contents[:1000])
    with pytest.raises(DownloadError, match="bytes from 1000 on with 'the whole file'"):
        download(remote)
    assert partial_path(remote).read_bytes() == contents[:1000]
    partial_path(remote).unlink()
    assert download(remote).read_bytes() == contents


def test_too_little_room_is_told_before(remote, hub, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, remote.n_bytes - 1))
    with pytest.raises(DownloadError, match=r"needs .* MiB, but the disk of .* has .* MiB free; .*HF_HUB_CACHE"):
        download(remote)
    assert hub.sent_bytes == 0


FULL_DISK = """
import resource, sys
from edgekv.errors import DownloadError
from edgekv.hub.client import Hub
from edgekv.hub.download import download
file = next(file for file in Hub().files(sys.argv[1]) if file.path == sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    download(file)
except DownloadError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
def test_a_disk_that_gets_full_keeps_what_is_there(remote, hub, contents):
    command = [sys.executable, "-c", FULL_DISK, REPO, NAME]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "cannot be stored in" in result.stdout, result.stderr
    assert "what was downloaded stays" in result.stdout
    kept = partial_path(remote).read_bytes()
    assert 0 < len(kept) <= 100_000
    assert kept == contents[: len(kept)]
    assert download(remote).read_bytes() == contents
    assert hub.ranges[-1] == (len(kept), len(contents))


def test_one_download_at_a_time(remote):
    from filelock import FileLock

    folder = hugging_face.repo_folder(REPO)
    lock = folder.parent / ".locks" / folder.name / f"{remote.sha256}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(DownloadError, match="another process is downloading"):
        download(remote)


# ---- hubs that refuse ----


def test_an_unknown_repository(hub):
    with pytest.raises(ModelNotFoundError, match=rf"{hub.endpoint} has no model 'tiny/other'.*check the name"):
        Hub().files("tiny/other")


@pytest.mark.parametrize("repo", ["a/b/c", "a b", "", "-", "a..b/c"])
def test_what_is_no_name_of_a_repository(hub, repo):
    with pytest.raises(ModelNotFoundError, match="is not the name of a repository; write OWNER/MODEL"):
        Hub().files(repo)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((401, "RepoNotFound"), ModelNotFoundError, "has no model"),
        ((404, "RepoNotFound"), ModelNotFoundError, "has no model"),
        ((404, ""), ModelNotFoundError, "has no model"),
        (
            (401, "GatedRepo"),
            DownloadError,
            "ask for access at http.*/tiny/llama-GGUF, then log in with: hf auth login",
        ),
        ((403, "GatedRepo"), DownloadError, "ask for access"),
        ((403, ""), DownloadError, "ask for access"),
        ((429, ""), DownloadError, "HTTP status 429 .*try again later"),
        ((500, ""), DownloadError, "HTTP status 500 .*try again later"),
        ((503, ""), DownloadError, "HTTP status 503 .*try again later"),
    ],
)
def test_refusals_are_told_with_a_remedy(hub, remote, answer, error, message):
    hub.refuses_with = answer
    with pytest.raises(error, match=message):
        Hub().files(REPO)
    with pytest.raises(error, match=message):
        download(remote)


def test_a_gated_model_needs_a_token(hub, remote, contents, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(DownloadError, match="ask for access"):
        download(remote)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert download(remote).read_bytes() == contents
    assert hub.tokens_elsewhere == [None]  # the token is for the hub alone


def test_no_connection(hub, remote, monkeypatch):
    with reserved_port() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        for attempt in (lambda: Hub().files(REPO), lambda: download(remote)):
            with pytest.raises(DownloadError, match=r"is not reached.*check the connection, and HF_ENDPOINT"):
                attempt()


@pytest.mark.parametrize("endpoint", ["nowhere", "http://[", "ftp://127.0.0.1"])
def test_an_endpoint_that_is_no_address(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(DownloadError, match=r"is not reached.*HF_ENDPOINT"):
        Hub().files(REPO)


def test_a_server_that_is_no_hub(hub):
    hub.repos[REPO] = {}
    hub.says = "<html>"
    with pytest.raises(DownloadError, match="does not speak a hub's protocol; check HF_ENDPOINT"):
        Hub().files(REPO)


@pytest.mark.parametrize("name", ["../../model.gguf", "/model.gguf", "a/../../model.gguf"])
def test_a_file_that_would_lie_elsewhere(hub, contents, name):
    hub.repos[REPO][name] = contents
    with pytest.raises(DownloadError, match=rf"lists the file '{name}' in '{REPO}', so it does not speak"):
        Hub().files(REPO)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"huggingface_hub, which is not installed; pip install \"huggingface_hub"):
        Hub()
