"""RPC servers of ggml: their devices, the lost ones, and a server on this machine.

ggml's own client ends the process if a server is absent or of another version. So this module asks servers
itself, with a limit of time, by the three messages about devices. A message is a command (1 byte), the size of its
content (8 bytes), and the content; an answer is its size and its content. Numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import signal
import socket
import struct
from collections.abc import Iterable

from edgekv.addresses import Server, private_address
from edgekv.binding.ggml_devices import functions
from edgekv.errors import ConfigError, DeviceError, NativeError

TIMEOUT_S = 5.0
VERSION = (7, 0)  # RPC_PROTO_MAJOR_VERSION, and the newest minor one that the client takes
MOST_DEVICES = 64  # the most devices of a server; a larger number is no valid answer

_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 11, 14, 15  # enum rpc_cmd
_CAPS_BYTES = 24


def remote_memory(server: Server, timeout_s: float) -> list[tuple[int, int]]:
    """Return the total and free bytes of each device of a server.

    Raises DeviceError if it does not answer within `timeout_s` seconds, or not as a server of this version.
    """
    address = private_address(server.host)
    try:
        with socket.create_connection((address, server.port), timeout_s) as connection:
            major, minor = _ask(connection, _HELLO, bytes(_CAPS_BYTES), 4 + _CAPS_BYTES)[:2]
            if major != VERSION[0] or minor > VERSION[1]:
                raise DeviceError(
                    f"{server} speaks version {major}.{minor} of RPC, and this build {VERSION[0]}.{VERSION[1]}; "
                    "build both of the same edgekv"
                )
            (n_devices,) = struct.unpack("<I", _ask(connection, _DEVICE_COUNT, b"", 4))
            if n_devices > MOST_DEVICES:
                raise ValueError(f"{n_devices} devices")
            return [_memory(connection, i) for i in range(n_devices)]
    except TimeoutError as error:
        raise DeviceError(
            f"{server} does not answer within {timeout_s:g} s: it serves one client at a time; end the other one, or "
            "check the address"
        ) from error
    except (OSError, ValueError) as error:
        raise DeviceError(
            f"{server} does not answer as an RPC server: {error}; start one there with `edgekv rpc-server`"
        ) from error


def lost_servers(servers: Iterable[Server]) -> dict[Server, str]:
    """Return the servers that do not answer, and why. A server that serves a client does not answer others."""
    lost = {}
    for server in servers:
        try:
            remote_memory(server, TIMEOUT_S)
        except (ConfigError, DeviceError) as error:
            lost[server] = str(error)
    return lost


def _memory(connection: socket.socket, device: int) -> tuple[int, int]:
    free, total = struct.unpack("<QQ", _ask(connection, _DEVICE_MEMORY, struct.pack("<I", device), 16))
    return total, free


def _ask(connection: socket.socket, command: int, data: bytes, n_bytes: int) -> bytes:
    """Return the answer to a command, of `n_bytes`."""
    connection.sendall(struct.pack("<BQ", command, len(data)) + data)
    (found,) = struct.unpack("<Q", _received(connection, 8))
    if found != n_bytes:
        raise ValueError(f"an answer of {found} bytes where {n_bytes} were due")
    return _received(connection, n_bytes)


def _received(connection: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        piece = connection.recv(n_bytes - len(data))
        if not piece:
            raise ConnectionError("it closed the connection")
        data += piece
    return data


def serve(host: str, port: int, threads: int) -> None:
    """Lend the processor of this machine to one client after another, until the process is ended by a signal.

    Raises ConfigError for a public address and DeviceError if nothing can listen there.
    """
    address = private_address(host)
    ggml = functions()
    try:
        start = ggml.ggml_backend_rpc_start_server
    except AttributeError:
        raise NativeError("this build has no RPC; build edgekv with CMAKE_ARGS=-DEDGEKV_RPC=ON") from None
    start.restype, start.argtypes = None, (c.c_char_p, c.c_char_p, c.c_size_t, c.c_size_t, c.c_void_p)
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
        except OSError as error:
            raise DeviceError(f"nothing can listen at {address}:{port}: {error}; choose another port") from error
    devices = (c.c_void_p * 1)(ggml.ggml_backend_dev_by_type(0))
    # ggml waits for clients in C, and no handler of Python's runs there
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    start(f"{address}:{port}".encode(), None, threads, 1, devices)
    raise DeviceError(f"the server at {address}:{port} has ended; what it printed says why")
