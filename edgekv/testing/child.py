"""The program of a fresh process: python child.py TASK RESULT, two pickle files; see `fresh_process.py`.

It is started by its path and imports nothing of edgekv before its work needs it: pytest must come first for a test,
and the process should hold little beside its work.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any


def main() -> int:
    """Do the task and write its result; returns the exit status."""
    task_path, result_path = sys.argv[1:]
    with open(task_path, "rb") as file:
        task: dict[str, Any] = pickle.load(file)
    sys.path[:] = task["sys_path"]
    status, result = _WORK[task["kind"]](task)
    with open(result_path, "wb") as file:
        pickle.dump(result, file)
    return status


def _call(task: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Call a function; the result holds its value, or the exception it raised and the traceback as text."""
    from edgekv.testing.memory_meter import MemoryMeter

    meter = MemoryMeter()
    value = error = trace = None
    try:
        function, args, kwargs = pickle.loads(task["call"])
        value = function(*args, **kwargs)
    # BaseException: sys.exit() and pytest.fail() raise none of Exception.
    except BaseException as raised:
        import traceback

        error, trace = raised, traceback.format_exc()
    measured = meter.read()
    return 0, {"measured": measured, "value": _pickled(value), "error": _pickled(error), "trace": trace}


def _pickled(value: object) -> bytes | None:
    """Return the value as a pickle that can be read back, or None."""
    try:
        data = pickle.dumps(value)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _script(task: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Run a script as `python` would."""
    import os
    import runpy

    from edgekv.testing.memory_meter import MemoryMeter

    script = task["script"]
    sys.argv[:] = [script, *task["arguments"]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    meter = MemoryMeter()
    status: object = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        status = exit_.code
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    measured = meter.read()
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
    return status if isinstance(status, int) else int(status is not None), {"measured": measured}


def _test(task: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """Run one test with pytest; the result holds its reports."""
    import pytest

    config = pytest.Config.fromdictargs(task["options"], task["arguments"])
    from edgekv.testing.report_recorder import ReportRecorder

    recorder = ReportRecorder(config, task["nodeid"])
    config.pluginmanager.register(recorder, ReportRecorder.NAME)
    config.hook.pytest_cmdline_main(config=config)
    return 0, recorder.result()


_WORK: dict[str, Callable[[Mapping[str, Any]], tuple[int, Mapping[str, Any]]]] = {
    "call": _call,
    "script": _script,
    "test": _test,
}

if __name__ == "__main__":
    sys.exit(main())
