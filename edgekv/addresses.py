"""Addresses of RPC servers: HOST:PORT, on loopback or in a private network."""

from __future__ import annotations

import ipaddress
import socket
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .arguments import listed
from .errors import ConfigError, DeviceError

PORT = 50052


class Server(NamedTuple):
    """The address that a server listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_servers(rpc: str | Sequence[str]) -> list[Server]:
    """Return the servers of HOST:PORT texts, a list or separated by commas. Raises ConfigError for a wrong text."""
    texts = rpc.split(",") if isinstance(rpc, str) else listed("rpc", rpc, "texts HOST:PORT")
    servers = [_parse(text) for text in texts]
    for server in servers:
        if servers.count(server) > 1:
            raise ConfigError(f"rpc={server} is named twice; name each server once")
    return servers


def _parse(text: str) -> Server:
    if not isinstance(text, str):
        raise ConfigError(f"rpc={text!r} is no HOST:PORT; give a text such as 127.0.0.1:{PORT}")
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16) or ":" in host:
        raise ConfigError(
            f"rpc={text!r} is no HOST:PORT with a port from 1 to 65535; give one such as 127.0.0.1:{PORT}"
        )
    return Server(host, int(port))


def private_address(host: str) -> str:
    """Return the IPv4 address of a host. Raises ConfigError for a public one: RPC is neither encrypted nor guarded."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DeviceError(f"{host} is not known as a host: {error}; give the address of one that is") from error
    address = str(found[0][4][0])
    parsed = ipaddress.ip_address(address)
    if not (parsed.is_loopback or parsed.is_private) or parsed.is_unspecified:
        raise ConfigError(
            f"{host} is the public address {address}, and RPC is neither encrypted nor guarded by a key; use "
            "loopback or a private network, or a tunnel that ends on one"
        )
    return address


def warn_of_networks(servers: Iterable[Server]) -> None:
    """Warn of servers on other machines. Raises the errors of `private_address`."""
    for server in servers:
        if not ipaddress.ip_address(private_address(server.host)).is_loopback:
            warnings.warn(
                f"what goes to {server} is not encrypted: weights, and what is read and said; use a tunnel where "
                "others are on the network",
                stacklevel=2,
            )
