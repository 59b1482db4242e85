"""Client of a hub, over huggingface_hub, with edgekv's errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from edgekv.errors import DownloadError, ModelError, ModelNotFoundError
from edgekv.extras import needed
from edgekv.models.caches import hugging_face

from .hub_file import HubFile

EXTRA = "hub"
REVISION = "main"
_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ConnectionLostError(DownloadError):
    """The connection ended before the answer did."""


class Hub:
    """A hub: that of HF_ENDPOINT, or else Hugging Face's. huggingface_hub finds the access tokens.

    Raises ConfigError if huggingface_hub is not installed.
    """

    def __init__(self) -> None:
        self._api = needed("huggingface_hub", EXTRA)
        self._utils = needed("huggingface_hub.utils", EXTRA)
        self._errors = needed("huggingface_hub.errors", EXTRA)
        self._http = needed("httpx2", EXTRA)  # the HTTP client of huggingface_hub, which does not wrap its errors
        constants = needed("huggingface_hub.constants", EXTRA)
        self._timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        self.endpoint: str = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")

    def files(self, repo: str) -> list[HubFile]:
        """Return the files of a repository's newest commit that have a digest, with the repository's own spelling.

        Raises ModelNotFoundError if there is no such repository, and DownloadError if the hub does not answer.
        """
        with self._telling(repo):
            try:
                info = self._api.HfApi(endpoint=self.endpoint).model_info(
                    repo, revision=REVISION, files_metadata=True, timeout=self._timeout
                )
            except self._errors.HfHubHTTPError:
                raise
            except self._errors.HFValidationError as error:
                raise ModelNotFoundError(
                    f"{repo!r} is not the name of a repository; write OWNER/MODEL or OWNER/MODEL:QUANT"
                ) from error
            except (ValueError, KeyError, TypeError) as error:  # the answer is no JSON, or other JSON
                raise self._foreign(f"lists {repo!r} in another way") from error
        if not _REPO.fullmatch(str(info.id)) or not _COMMIT.fullmatch(str(info.sha)):  # these become names of folders
            raise self._foreign(f"gives {repo!r} the name {info.id!r} and the commit {info.sha!r}")
        for path in (PurePath(sibling.rfilename) for sibling in info.siblings or ()):
            if path.anchor or ".." in path.parts:  # it becomes a path below the folder of the repository
                raise self._foreign(f"lists the file {str(path)!r} in {repo!r}")
        return [
            HubFile(info.id, info.sha, sibling.rfilename, sibling.size, sibling.lfs.sha256)
            for sibling in info.siblings or ()
            if sibling.lfs is not None and sibling.size and _SHA256.fullmatch(sibling.lfs.sha256)
        ]

    def pieces(self, file: HubFile, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of a file, by range requests.

        A lost connection is opened again as long as each connection brings bytes. Raises DownloadError if no bytes or
        wrong bytes come.
        """
        while start < stop:
            begun = start
            try:
                with self._answer(file, start, stop) as pieces:
                    while start < stop and (piece := next(pieces, b"")[: stop - start]):
                        start += len(piece)
                        yield piece
            except ConnectionLostError:
                if start == begun:
                    raise
            else:
                if start == begun:
                    raise DownloadError(f"{self.endpoint} gives no byte {start} of {file.name!r}; try again later")

    @contextmanager
    def _answer(self, file: HubFile, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Yield the answer to one request for the bytes [start, stop), in pieces; it may be shorter or longer."""
        url = self._api.hf_hub_url(file.repo, file.path, revision=file.commit, endpoint=self.endpoint)
        headers = self._utils.build_hf_headers(library_name="edgekv")
        headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with (
            self._telling(file.repo),
            self._api.get_session().stream("GET", url, headers=headers, timeout=self._timeout) as response,
        ):
            self._api.hf_raise_for_status(response)
            found = response.headers.get("Content-Range", "the whole file")
            if start and not found.startswith(f"bytes {start}-"):
                raise self._foreign(f"answers a request for the bytes from {start} on with {found!r}")
            yield response.iter_bytes()

    def link(self, file: HubFile) -> None:
        """Add the name of a file to the cache, which has its contents already.

        huggingface_hub does this: it knows systems without links, and finds nothing to download.
        """
        with self._telling(file.repo):
            self._api.hf_hub_download(
                file.repo,
                file.path,
                revision=file.commit,
                cache_dir=hugging_face.cache_folder(),
                endpoint=self.endpoint,
                library_name="edgekv",
            )
        main = hugging_face.repo_folder(file.repo) / "refs" / REVISION
        main.parent.mkdir(exist_ok=True)
        main.write_text(file.commit)

    @contextmanager
    def _telling(self, repo: str) -> Iterator[None]:
        """Raise errors of huggingface_hub and of its connection as edgekv's."""
        errors = self._errors
        try:
            yield
        except errors.GatedRepoError as error:
            raise self._no_access(repo) from error
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
            if isinstance(error, errors.LocalEntryNotFoundError):
                raise self._unreachable(error.__cause__ or error) from error
            raise ModelNotFoundError(
                f"{self.endpoint} has no model {repo!r}, or does not show it to you; check the name, or log in with: "
                "hf auth login"
            ) from error
        except errors.HfHubHTTPError as error:
            raise self._refused(repo, error.response.status_code) from error
        except (self._http.HTTPError, self._http.InvalidURL, errors.OfflineModeIsEnabled) as error:
            raise self._unreachable(error) from error

    def _refused(self, repo: str, status: int) -> ModelError:
        if status in (401, 403):
            return self._no_access(repo)
        if status == 404:
            return ModelNotFoundError(f"{self.endpoint} has no model {repo!r}; check the name, and HF_ENDPOINT")
        return DownloadError(f"{self.endpoint} answers with HTTP status {status} for {repo!r}; try again later")

    def _no_access(self, repo: str) -> DownloadError:
        return DownloadError(
            f"{self.endpoint} does not give you {repo!r}: ask for access at {self.endpoint}/{repo}, then log in with: "
            "hf auth login (or set HF_TOKEN)"
        )

    def _unreachable(self, error: BaseException) -> DownloadError:
        if isinstance(error, self._errors.OfflineModeIsEnabled):
            return DownloadError("HF_HUB_OFFLINE is set, so no hub is asked; unset it, or name a model that is here")
        return ConnectionLostError(
            f"{self.endpoint} is not reached, or the connection was lost ({str(error) or type(error).__name__}); check "
            "the connection, and HF_ENDPOINT and proxies where they are set, then try again"
        )

    def _foreign(self, what: str) -> DownloadError:
        return DownloadError(f"{self.endpoint} {what}, so it does not speak a hub's protocol; check HF_ENDPOINT")
