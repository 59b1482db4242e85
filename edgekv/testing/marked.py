"""Marked tests, run in a fresh pytest each, and reported as if they had run here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .ceiling import MemoryCeiling
from .fresh_process import FreshProcessError, output, run_fresh
from .memory_meter import Measured

# The fresh run has the options of this one, except those that select tests, those of a whole run (reports,
# coverage, caches), and those that start further processes or a debugger.
_NEUTRAL: dict[str, Any] = {
    "cacheclear": False,
    "cov_source": [],
    "debug": None,
    "deselect": None,
    "dist": "no",
    "failedfirst": False,
    "keyword": "",
    "lf": False,
    "log_file": None,
    "looponfail": False,
    "markexpr": "",
    "maxfail": 0,
    "maxprocesses": None,
    "newfirst": False,
    "numprocesses": None,
    "pastebin": None,
    "pyargs": False,
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}


def run_marked(item: pytest.Item, nextitem: pytest.Item | None, ceiling: MemoryCeiling) -> None:
    """Run the whole protocol of a test, with its setup, call and teardown in the fresh process."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in [*_reports(item, ceiling), *_leave(item, nextitem)]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _reports(item: pytest.Item, ceiling: MemoryCeiling) -> list[pytest.TestReport]:
    started = time.perf_counter()
    options = _options(item)
    # an option comes too late for a plug-in that is installed, an argument does not
    blocked = [argument for name in options["plugins"] if name.startswith("no:") for argument in ("-p", name)]
    task = {
        "kind": "test",
        "nodeid": item.nodeid,
        "options": options,
        "arguments": [*blocked, f"{item.config.rootpath}/{item.nodeid}"],  # a Path would shorten http://x
    }
    try:
        ended = run_fresh(task, timeout=ceiling.timeout, show_output=item.config.getoption("capture") == "no")
    except FreshProcessError as error:
        return _failed(item, str(error), time.perf_counter() - started)
    measured: Measured | None = ended.result["measured"]
    if measured is None:
        reasons = ended.result["errors"] or ["it was not found there; are its parameters the same in every process?"]
        problem = "\n".join(["the test did not run in the fresh process", *reasons])
        return _failed(item, problem + output(ended.stdout, ended.stderr), time.perf_counter() - started)
    restore = item.config.hook.pytest_report_from_serializable
    reports: list[pytest.TestReport] = [restore(config=item.config, data=data) for data in ended.result["reports"]]
    _judge(reports, measured, ceiling)
    return reports


def _options(item: pytest.Item) -> dict[str, Any]:
    """Return the options of the fresh run."""
    config = item.config
    options = {name: value for name, value in vars(config.option).items() if _is_plain(value)}
    options.pop("file_or_dir", None)
    options |= {name: value for name, value in _NEUTRAL.items() if name in options}
    options["plugins"] = [*options.get("plugins", []), "no:terminal"]
    options["rootdir"] = str(config.rootpath)
    options["inifilename"] = None if config.inipath is None else str(config.inipath)
    # pytest empties a named folder first, so each run needs a folder of its own.
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        options["basetemp"] = str(factory.mktemp("memory_ceiling"))
    return options


def _is_plain(value: object) -> bool:
    """Return True if an option can be sent. Others are objects of plug-ins, which the fresh run makes anew."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, Path))


def _judge(reports: list[pytest.TestReport], measured: Measured, ceiling: MemoryCeiling) -> None:
    """Note the peak in the reports, and fail a test that passed over its ceiling."""
    deciding = next((report for report in reports if report.when == "call"), reports[-1])
    for report in reports:  # JUnit files take the properties of the last report
        report.user_properties.append(("peak_rss_bytes", measured.peak))
    if measured.peak <= ceiling.ceiling_bytes:
        return
    table = measured.table(ceiling.ceiling_bytes)
    if deciding.passed:
        # A peak over the ceiling is a failure as any other, so a test that is marked as failing fails as expected.
        deciding.outcome = "skipped" if hasattr(deciding, "wasxfail") else "failed"
        deciding.longrepr = table
    else:
        deciding.sections.append(("Memory ceiling", table))


def _failed(item: pytest.Item, problem: str, seconds: float) -> list[pytest.TestReport]:
    """Make reports of a test that has none."""

    def report(when: Any, problem: str | None = None, duration: float = 0.0) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="passed" if problem is None else "failed",
            longrepr=problem,
            when=when,
            duration=duration,
        )

    return [report("setup"), report("call", problem, seconds), report("teardown")]


def _leave(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[pytest.TestReport]:
    """Tear down the modules and classes of earlier tests that the next one is not in; yields a report if that fails.

    pytest does so after every test that it runs, and the next test would fail otherwise.
    """
    call = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(nextitem),
        when="teardown",
        reraise=(KeyboardInterrupt, pytest.exit.Exception),
    )
    if call.excinfo is not None:
        yield pytest.TestReport.from_item_and_call(item, call)
