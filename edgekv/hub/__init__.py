"""Models on a hub that speaks Hugging Face's protocol: look-up, plans by their headers, and downloads.

    with look_up("OWNER/MODEL:Q4_K_M", ceiling_bytes=2 << 30) as remote:
        plan = edgekv.plan(remote.header, memory="2GiB")
    path = download(remote.file)

It needs the extra edgekv[hub]. The client of the hub is imported at its first use.
"""

from __future__ import annotations

from .download import download
from .hub_file import HubFile
from .lookup import RemoteModel, look_up

__all__ = ["HubFile", "RemoteModel", "download", "look_up"]
