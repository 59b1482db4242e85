"""A table of who holds the model's memory now, and what a lower ceiling would take of it."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QLabel,
    QSizePolicy,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

import edgekv

MIB = 1 << 20
# by its name here, the parts of the plan that an owner has; all other parts are the program's
OWNERS = {
    "Weights": {"weights", "repacking", "slots"},
    "Cells": {"kv"},
    "Chats at rest": {"swap"},
    "Work of a block": {"compute", "outputs", "workspace", "bookkeeping", "graphs", "state"},
}
PROGRAM = "The program"
LEAST_WIDTH = 18  # letters: an owner, and two figures
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class Ledger(QWidget):
    """Shows what `Runtime.ledger` says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = QTreeWidget(rootIsDecorated=False, selectionMode=QAbstractItemView.SelectionMode.NoSelection)
        self.table.setHeaderLabels(["Memory of", "MiB", "planned"])
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.table.header().setStretchLastSection(False)
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.table.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.table.setMinimumWidth(self.fontMetrics().horizontalAdvance("m" * LEAST_WIDTH))
        self.order = QLabel(wordWrap=True, alignment=Qt.AlignmentFlag.AlignTop)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.table)
        layout.addWidget(self.order)

    def show_entries(self, entries: Iterable[edgekv.LedgerEntry]) -> None:
        """Show the entries of all parts, by owners that a user knows."""
        entries = tuple(entries)
        rows = {owner: [it for it in entries if owner_of(it) == owner] for owner in (*OWNERS, PROGRAM)}
        items = [_item(owner, parts) for owner, parts in rows.items() if any(it.planned_bytes for it in parts)]
        self.table.clear()
        self.table.addTopLevelItems(items)
        self.table.setFixedHeight(self.table.header().height() + sum(map(self._height, items)) + 4)
        taken = sorted((it for it in entries if it.rank and it.planned_bytes), key=lambda it: it.rank)
        self.order.setText(f"A lower ceiling takes {', then '.join(owner_of(it).lower() for it in taken)}.")

    def _height(self, item: QTreeWidgetItem) -> int:
        return self.table.visualItemRect(item).height()


def owner_of(entry: edgekv.LedgerEntry) -> str:
    """Return who owns a part of the plan, as users know it."""
    return next((owner for owner, parts in OWNERS.items() if entry.owner in parts), PROGRAM)


def _item(owner: str, parts: list[edgekv.LedgerEntry]) -> QTreeWidgetItem:
    held, planned = sum(it.held_bytes for it in parts), sum(it.planned_bytes for it in parts)
    item = QTreeWidgetItem([owner, f"{held / MIB:,.0f}", f"{planned / MIB:,.0f}"])
    for column in (1, 2):
        item.setTextAlignment(column, RIGHT)
    return item
