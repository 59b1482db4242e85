"""The memory under its ceiling, and a slider that shows what another ceiling would give before it is in force."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QGroupBox, QLabel, QProgressBar, QPushButton, QSlider, QVBoxLayout

import edgekv

MIB = 1 << 20
LEAST = 64 * MIB
STEPS = 8  # steps of the slider between a ceiling and twice as much
DOUBLINGS = 9  # up to 32 GiB
PREVIEW_LINES = 7  # lines of the longest refusal
PAUSE_MS = 200  # without a move of the slider, before a plan is made


class Ceiling(QGroupBox):
    """Asks for plans by `moved`, and is told them by `show_plan`; `chosen` is a ceiling to put in force."""

    moved = Signal(object)  # bytes, which are more than Qt's int holds
    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__("Memory")
        self.plan: edgekv.Plan | None = None  # the plan in force
        self._fits = False
        self._idle = False
        self.gauge = QProgressBar()
        self.slider = QSlider(Qt.Orientation.Horizontal, maximum=DOUBLINGS * STEPS)
        self.preview = QLabel(wordWrap=True, alignment=Qt.AlignmentFlag.AlignTop)
        self.preview.setMinimumHeight(PREVIEW_LINES * self.fontMetrics().lineSpacing())
        self.apply = QPushButton("Apply", enabled=False)
        layout = QVBoxLayout(self)
        for widget in (self.gauge, self.slider, self.preview, self.apply):
            layout.addWidget(widget)
        self._pause = QTimer(self, singleShot=True, interval=PAUSE_MS)
        self._pause.timeout.connect(lambda: self.moved.emit(self.wanted_bytes))
        self.slider.valueChanged.connect(self._move)
        self.apply.clicked.connect(lambda: self.chosen.emit(self.wanted_bytes))

    @property
    def wanted_bytes(self) -> int:
        """Return the bytes that the slider shows, in whole MiB."""
        return round(LEAST * 2 ** (self.slider.value() / STEPS) / MIB) * MIB

    def show_loaded(self, plan: edgekv.Plan) -> None:
        """A plan is in force."""
        self.plan = plan
        self.slider.blockSignals(True)
        self.slider.setValue(round(STEPS * math.log2(plan.ceiling_bytes / LEAST)))
        self.slider.blockSignals(False)
        self.gauge.setRange(0, plan.ceiling_bytes // MIB)
        self.show_peak(plan.peak_bytes, "planned")
        self._preview(f"In force: {in_words(plan)}", fits=False)

    def show_peak(self, peak_bytes: int, what: str = "at most") -> None:
        """The most that the model's process has held, or is planned to hold."""
        self.gauge.setValue(peak_bytes // MIB)
        self.gauge.setFormat(f"{size(peak_bytes)} of {size(self.plan.ceiling_bytes)} {what}")

    def show_plan(self, ceiling_bytes: int, found: edgekv.Plan | str) -> None:
        """Show the plan of a ceiling, or why it is not possible. Plans that the slider has left are ignored."""
        if ceiling_bytes == self.wanted_bytes:
            self._preview(found if isinstance(found, str) else in_words(found), fits=not isinstance(found, str))

    def set_idle(self, idle: bool) -> None:
        """Allow or forbid that another ceiling is put in force."""
        self._idle = idle
        self.apply.setEnabled(self._fits and idle)

    def _move(self) -> None:
        self._preview(f"{size(self.wanted_bytes)}: planning ...", fits=False)
        self._pause.start()

    def _preview(self, text: str, *, fits: bool) -> None:
        self.preview.setText(text)
        self._fits = fits
        self.set_idle(self._idle)


def in_words(plan: edgekv.Plan) -> str:
    """Describe what a plan gives the conversation."""
    return (
        f"{size(plan.ceiling_bytes)} give {plan.budget_cells:,} cells ({plan.kv_type}); {size(plan.peak_bytes)} planned"
    )


def size(n_bytes: int) -> str:
    """Bytes, for people."""
    return f"{n_bytes / MIB:,.0f} MiB"
