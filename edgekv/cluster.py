"""Workers of Dask: processes of this machine, or those of a scheduler somewhere. It needs the extra "dask"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import ConfigError
from .extras import needed


@contextmanager
def local_workers(n: int) -> Iterator[Any]:
    """Yield a `distributed.Client` of n processes of this machine, which end with the block.

    Raises ConfigError without the extra.
    """
    distributed = needed("distributed", "dask")
    with (
        distributed.LocalCluster(n, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield a `distributed.Client` of the scheduler at this address, such as "tcp://host:8786".

    Raises ConfigError without the extra, and if no scheduler answers.
    """
    distributed = needed("distributed", "dask")
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at cluster={address} ({error}); start one, or give the address it prints"
        ) from error
    with client:
        yield client
