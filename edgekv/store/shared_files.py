"""Files that others may rename, replace and remove while they are open. Windows has to be asked for that."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import _winapi
    import msvcrt

    _SHARED = 0x7  # FILE_SHARE_READ, FILE_SHARE_WRITE and FILE_SHARE_DELETE
    _CREATE_NEW = 1

    def opener(name: str, flags: int) -> int:
        """Open a file, for `open`, that exists or that only its owner can read."""
        access = _winapi.GENERIC_READ
        if flags & (os.O_WRONLY | os.O_RDWR):
            access |= _winapi.GENERIC_WRITE
        how = _CREATE_NEW if flags & os.O_EXCL else _winapi.OPEN_EXISTING
        return msvcrt.open_osfhandle(_winapi.CreateFile(os.fspath(name), access, _SHARED, 0, how, 0, 0), flags)

else:

    def opener(name: str, flags: int) -> int:
        """Open a file, for `open`, that exists or that only its owner can read."""
        return os.open(name, flags, 0o600)
