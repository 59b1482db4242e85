"""What pictures call settings: no two that differ in how a text was read are drawn as one."""

from __future__ import annotations

from edgekv.evals.setting import GENERAL, Setting
from edgekv.evals.table import labels


def test_what_most_have_is_not_said():
    usual = [Setting(budget=budget, focus=focus) for budget in (128, 256) for focus in ("off", GENERAL)]
    assert set(labels(usual).values()) == {"keydiff", "focus: general"}


def test_another_block_or_cache_is_another_line():
    usual = [Setting(), Setting(budget=256)]
    others = {
        Setting(block=64): "keydiff, block 64",
        Setting(kv_type="q8_0"): "keydiff, q8_0",
        Setting(policy="tova", block=32, kv_type="q4_0"): "tova, block 32, q4_0",
    }
    found = labels([*usual, *others])
    assert {setting: found[setting] for setting in others} == others
    assert [found[setting] for setting in usual] == ["keydiff", "keydiff"]
