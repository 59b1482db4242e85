"""A chat template comes with the model's file, and is a program: it may fail in any way, and only with our error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgekv import UnsupportedModelError
from edgekv.prompt.template import chat_format

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def model(template):
    """As much of a model as templates are shown."""
    return SimpleNamespace(
        header=SimpleNamespace(chat_template=template), path=Path("model.gguf"), control_text=lambda name: f"<{name}>"
    )


def test_a_template_is_cut_up():
    form = chat_format(model("{{ bos_token }}{{ '-' * 3 }}{% if 3 % 2 %}" + TURNS + "{% endif %}"), with_system=False)
    assert (form.before_first, form.after_user, form.holds_bos) == ("<bos>---<user>", "<assistant>", True)


@pytest.mark.parametrize(
    "template",
    [
        *("", "{{", "{{ 1 / 0 }}", "{{ none.x.y }}", "{{ raise_exception('no') }}", "{% include 'x' %}"),
        *("{{ [1] | sum(start='x') }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ range(10 ** 9) }}"),
        *("{{ 2 ** 99999999 }}", "{{ 'x' * 2000000000 }}", "{{ 2000000000 * [1] }}", "{{ '%2000000000d' % 1 }}"),
        *("{{ 'x'.center(2000000000) }}", "{{ 'x'.ljust(width=2000000000) }}"),
    ],
)
def test_any_failure_is_ours(template):
    with pytest.raises(UnsupportedModelError, match=r"the chat template of model\.gguf cannot be used"):
        chat_format(model(template + TURNS if template else ""), with_system=False)
