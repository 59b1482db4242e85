"""Models on a hub that speaks Hugging Face's protocol: what there is, what it would take, and how it comes here.

    with look_up("OWNER/MODEL:Q4_K_M", ceiling_bytes=2 << 30) as remote:
        plan = edgekv.plan(remote.header, memory="2GiB")
    path = download(remote.file)

It needs the extra edgekv[hub]. What asks the hub is imported when it is asked.
"""

from __future__ import annotations

from .download import download
from .hub_file import HubFile
from .lookup import RemoteModel, look_up

__all__ = ["HubFile", "RemoteModel", "download", "look_up"]
