"""Plug-in of the pytest that runs a marked test in a fresh process: it keeps the reports of that test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from .memory_meter import Measured, MemoryMeter
from .pytest_plugin import RECORDER


class ReportRecorder:
    """Selects one test, and records its reports and its memory."""

    NAME = RECORDER

    def __init__(self, config: pytest.Config, nodeid: str) -> None:
        self._config = config
        self._nodeid = nodeid
        self._meter: MemoryMeter | None = None
        self._measured: Measured | None = None
        self._reports: list[Mapping[str, Any]] = []
        self._errors: list[str] = []

    def result(self) -> Mapping[str, Any]:
        """Return the reports, the measured memory (None if no test ran), and errors of collection."""
        return {"measured": self._measured, "reports": self._reports, "errors": self._errors}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid == self._nodeid][:1]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._errors.append(report.longreprtext)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Any:
        self._meter = MemoryMeter()
        result = yield
        self._measured = self._meter.read()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
