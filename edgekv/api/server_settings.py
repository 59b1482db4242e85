"""The settings of a server: one frozen, validated object."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError

RENDERED_COPIES = 4  # a request's tools as JSON, as values, and in the prompt as it is rendered and as it is read
VALUES_BYTES = 4 << 20  # bytes of as many values as a body may hold
CONNECTION_BYTES = 24 << 10  # bytes of an open connection whose reply is streamed, at most

HEAD_BYTES = 16 << 10  # bytes of a request's head

TEXT_COPIES = 3  # the pieces, the reply and the JSON of a document hold its text, of up to `max_body` bytes

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server. Raises ConfigError for values that cannot work.

    name: the model's, as clients see it; None = that of its file
    api_keys: a request must bear one of them; none = any request may ask
    hosts: names that a request may have in its header Host; () = any. So no web page can ask a server on this machine
        through a name that the page's owner points here
    origins: web pages that may ask, as in "https://chat.example"; none but the server's own otherwise
    queue: requests that may wait while others are answered; more are refused with 429
    sessions: conversations that are kept; one more ends another
    swap_dir: folder that conversations are swapped out to while others are answered; None = the one that TMPDIR names
    state_dir: folder that keeps conversations and shared beginnings, so that a server finds them when it starts again,
        whatever ended it; None = they end with the server
    state_bytes: the most that they take there; what was used longest ago goes first. None = a quarter of the disk
    conversations_dir: folder that keeps the conversations of the page; None = each browser keeps its own
    request_s: seconds for a request, with the time that it waits; they begin anew while its prompt is read
    max_body: bytes of a request's body
    bodies: bytes that all requests together may hold while they come in and wait; long texts lie on the disk and do
        not count
    connections: limit of open connections
    body_s: seconds for a body to come
    ping_s: seconds of silence after which a stream says that it is alive
    focus: read long prompts with the last user message in mind, unless a request says otherwise
    """

    name: str | None = None
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK
    origins: tuple[str, ...] = ()
    queue: int = 64
    sessions: int = 8
    swap_dir: Path | None = None
    state_dir: Path | None = None
    state_bytes: int | None = None
    conversations_dir: Path | None = None
    request_s: float = 600.0
    max_body: int = 1 << 20
    bodies: int = 4 << 20
    connections: int = 128
    body_s: float = 30.0
    ping_s: float = 5.0
    focus: bool = True

    @property
    def memory_bytes(self) -> int:
        """The memory of a server beside the model and its imports; plans count it.

        A body that is read takes its JSON, its texts at up to four bytes a character, and its values. Its tools take
        as much as texts of a prompt.
        """
        parsing = 5 * self.max_body + VALUES_BYTES
        rendering = RENDERED_COPIES * self.max_body
        return self.bodies + parsing + rendering + self.connections * CONNECTION_BYTES

    @classmethod
    def at(cls, host: str, *, api_keys: tuple[str, ...] = (), hosts: tuple[str, ...] = (), **further: Any) -> Settings:
        """Return settings for a server at an address. Raises ConfigError if other machines could ask without a key.

        hosts: names that it has beside that address
        """
        is_own = is_loopback(host)
        if not is_own and not api_keys:
            raise ConfigError(
                f"host={host!r} lets other machines ask; give an api_key that they must know, or listen at 127.0.0.1"
            )
        any_address = host in ("", "0.0.0.0", "::")
        names = hosts if any_address else (*LOOPBACK, host, *hosts)
        return cls(api_keys=api_keys, hosts=names, **further)

    def __post_init__(self) -> None:
        for name, low in (("queue", 0), ("sessions", 1), ("request_s", 1), ("max_body", 1024), ("body_s", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name}={getattr(self, name)} is not possible; give at least {low}")
        if self.bodies < TEXT_COPIES * self.max_body:
            raise ConfigError(
                f"bodies={self.bodies} has no room for a document of max_body={self.max_body}; give at least "
                f"{TEXT_COPIES * self.max_body}, or a smaller max_body"
            )
        if not all(self.api_keys):
            raise ConfigError("api_key='' protects nothing; give a key, or leave it out")

    def check_slots(self, n_slots: int) -> None:
        """Raise ConfigError if fewer conversations are kept than are answered at a time."""
        if self.sessions < n_slots:
            raise ConfigError(
                f"sessions={self.sessions} keeps fewer conversations than parallel={n_slots} answers at a time; give "
                f"at least {n_slots}, or a smaller parallel"
            )


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
