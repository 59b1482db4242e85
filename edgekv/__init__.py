"""edgekv: an on-device LLM runtime that stays inside a memory ceiling."""

from __future__ import annotations

__all__: list[str] = []
