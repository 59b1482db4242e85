"""Functions shared with the native planner: the bytes that a process holds, and the order of preference."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable

from edgekv.errors import ConfigError

from . import library, structs
from .callback import Callback

OVER_CEILING = 8  # enum edgekv_status
IMPOSSIBLE, GIVE_UP = -1, -2  # further answers of an edgekv_setting_fits than 0 and 1


def counted_bytes() -> int:
    """Return the bytes of this process that a plan counts: resident ones; small files of code and edgekv's in full.

    Raises UnsupportedModelError if the system does not say.
    """
    n_bytes = c.c_uint64()
    library.call("edgekv_process_bytes", c.byref(n_bytes))
    return n_bytes.value


def taken_bytes(work: Callable[[], object]) -> int:
    """Return the bytes that a plan counts after some work and not before it. Raises what `work` raises."""

    def answer(_user_data: int | None) -> int:
        work()
        return 0

    n_bytes, callback = c.c_uint64(), Callback(structs.Work, answer, failed=1)
    with callback:
        library.call("edgekv_process_taken", callback.native, None, c.byref(n_bytes))
    return n_bytes.value


def choose_setting(
    choice: structs.Choice, fits: Callable[[structs.Setting], bool], *, largest: bool = False
) -> structs.Setting | None:
    """Return the best setting that fits, or None.

    largest: return the setting with the largest budget instead, with any type of cache and block
    fits: tells if a setting fits; raises ConfigError if the model cannot have it

    Raises the errors of `fits`, except for a type of cache that the model cannot have and the user did not name.
    """
    refused: ConfigError | None = None

    def answer(_user_data: int | None, setting: c._Pointer[structs.Setting]) -> int:
        nonlocal refused
        try:
            return int(fits(setting.contents))
        except ConfigError as error:
            refused = error
            return IMPOSSIBLE

    chosen, err = structs.Setting(), c.create_string_buffer(library.ERR_SIZE)
    choose = library.load().edgekv_plan_largest if largest else library.load().edgekv_plan_choose
    callback = Callback(structs.SettingFits, answer, failed=GIVE_UP)
    with callback:
        status = choose(c.byref(choice), callback.native, None, c.byref(chosen), err, library.ERR_SIZE)
    if status == OVER_CEILING:
        return None
    if status != 0:
        raise refused or library.error_of(status, err.value.decode(errors="replace"))
    return chosen
