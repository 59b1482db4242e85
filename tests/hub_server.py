"""A small hub: repositories of GGUF files behind the part of Hugging Face's protocol that edgekv uses.

GET  /api/models/REPO/revision/main?blobs=true    commit, and files with their sizes and digests
HEAD, GET  /REPO/resolve/COMMIT/FILE              redirects to where the contents are
GET  /contents/SHA256                             the contents, whole or a range, on a host of another name
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO = "tiny/llama-GGUF"
COMMIT = "c0ffee" + "0" * 34
PIECE_BYTES = 1 << 16


@dataclass
class Hub:
    """A hub's contents and its faults.

    repos            by REPO and FILE, the contents
    ranges           requests for contents, in order: (start, stop) of the header Range, None if there was none
    sent_bytes       bytes of contents that were sent
    tokens_elsewhere the header Authorization of each request for contents
    token            the token that requests for files need, if it is not None
    refuses_with     HTTP status of every answer, and its header X-Error-Code
    stops_after      bytes after which each answer with contents ends, as a lost connection does
    stalls_at        (i, byte): request i for contents waits at a byte for `release`; `stalled` says that it does
    ignores_ranges   contents are always sent whole
    wrong            contents are sent with their last byte changed
    says             the answer in place of a listing
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    ranges: list[tuple[int, int | None] | None] = field(default_factory=list)
    sent_bytes: int = 0
    tokens_elsewhere: list[str | None] = field(default_factory=list)
    token: str | None = None
    refuses_with: tuple[int, str] | None = None
    stops_after: int | None = None
    stalls_at: tuple[int, int] | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    ignores_ranges: bool = False
    wrong: bool = False
    says: str | None = None
    endpoint: str = ""
    elsewhere: str = ""

    def contents(self, digest):
        """The contents with a digest."""
        found = (data for files in self.repos.values() for data in files.values() if sha256(data) == digest)
        return next(found, None)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@contextmanager
def serving():
    """A running hub."""
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint, hub.elsewhere = (f"http://{name}:{server.server_port}" for name in ("127.0.0.1", "localhost"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Ignore a client that has gone; a fault of the server itself shows in what the test gets."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        listing = re.fullmatch(r"/api/models/(.+)/revision/main", path)
        resolving = re.fullmatch(r"/(.+)/resolve/([0-9a-f]{40})/(.+)", path)
        contents = re.fullmatch(r"/contents/([0-9a-f]{64})", path)
        if self.hub.refuses_with is not None:
            self._refuse(*self.hub.refuses_with)
        elif listing:
            self._list(listing[1])
        elif resolving:
            self._resolve(*resolving.groups())
        elif contents:
            self._send(self.hub.contents(contents[1]))
        else:
            self._refuse(404, "")

    def _list(self, repo):
        if repo not in self.hub.repos:
            self._refuse(401, "RepoNotFound")  # the hub answers so if no user is logged in
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
                "lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 130} if len(data) > 100 else None,
            }
            for name, data in self.hub.repos[repo].items()
        ]
        listing = json.dumps({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
        body = (listing if self.hub.says is None else self.hub.says).encode()
        self._begin(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _resolve(self, repo, commit, name):
        data = self.hub.repos.get(repo, {}).get(name)
        if data is None or commit != COMMIT:
            self._refuse(404, "EntryNotFound")
        elif self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "GatedRepo")
        else:
            digest = sha256(data)
            headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
            self._begin(302, headers | {"Location": f"{self.hub.elsewhere}/contents/{digest}", "Content-Length": "0"})

    def _send(self, data):
        hub = self.hub
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, stop = (int(asked[1]), int(asked[2]) + 1 if asked[2] else None) if asked else (0, None)
        stall = hub.stalls_at[1] if hub.stalls_at is not None and hub.stalls_at[0] == len(hub.ranges) else -1
        hub.ranges.append((start, stop) if asked else None)
        hub.tokens_elsewhere.append(self.headers.get("Authorization"))
        if hub.ignores_ranges or not asked:
            start, stop = 0, None
        stop = min(stop or len(data), len(data))
        headers = {"Content-Length": str(stop - start), "Content-Type": "application/octet-stream"}
        if asked and not hub.ignores_ranges:
            self._begin(206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})
        else:
            self._begin(200, headers)
        if hub.wrong:
            data = data[:-1] + bytes([data[-1] ^ 1])
        end = stop if hub.stops_after is None else min(stop, start + hub.stops_after)
        try:
            while start < end:
                upto = min(end, start + PIECE_BYTES)
                if start <= stall < upto:
                    self.wfile.write(data[start:stall])
                    self.wfile.flush()
                    start, stall = stall, -1
                    hub.stalled.set()
                    hub.release.wait()
                hub.sent_bytes += upto - start  # first: who has it all may look at once
                self.wfile.write(data[start:upto])
                start = upto
        except (BrokenPipeError, ConnectionResetError):
            pass  # who asked has gone
        if end < stop:
            self.close_connection = True

    def _refuse(self, status, code):
        self._begin(status, {"X-Error-Code": code, "Content-Length": "0"})

    def _begin(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass
