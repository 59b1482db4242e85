"""A chat template comes with the model's file, and is a program: it may fail in any way, and only with our error."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from diagonals import HERE_BY_DAY
from vocabularies import write_vocabulary

import edgekv
from edgekv import ConfigError, UnsupportedModelError
from edgekv.models.chat_template import MAX_BYTES, with_template
from edgekv.models.header import read_header
from edgekv.prompt.template import chat_format, rendered

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def model(template):
    """As much of a model as templates are shown."""
    return SimpleNamespace(
        header=SimpleNamespace(chat_template=template, tools_template=template),
        path=Path("model.gguf"),
        control_text=lambda name: f"<{name}>",
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
        *("{{ 'x'.center(2000000000) }}", "{{ 'x'.ljust(width=2000000000) }}", "{{ 'x' | center(2000000000) }}"),
        *("{{ 'x\ny' | indent(width=2000000000) }}", "{{ [1] | batch(2000000000, 1) | list }}"),
        *("{{ '%2000000000d' | format(1) }}", "{{ '%*d' | format(2000000000, 1) }}"),
        *("{{ '{:2000000000}'.format(1) }}", "{{ '{:{}}'.format(1, '2000000000') }}"),
    ],
)
def test_any_failure_is_ours(template):
    with pytest.raises(UnsupportedModelError, match=r"the chat template of model\.gguf cannot be used"):
        chat_format(model(template + TURNS if template else ""), with_system=False)


HUGE = "{% set s = 'x' * 1000000 %}"


@pytest.mark.parametrize(
    "template",
    [
        *("{{ s | replace('x', s) }}", "{{ s.replace('x', s) }}", "{{ ([s] * 1000000) | join }}"),
        *("{{ ''.join([s] * 1000000) }}", "{{ ([s] * 1000000) | map('string') | join }}"),
        *("{{ s.join(s) }}", "{{ s | join(s) }}", "{{ [s] * 1000000 }}", "{{ ([s] * 1000000) | string }}"),
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        pytest.param(
            "{% set ns = namespace(s=['x']) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
            "{{ ns.s }}",
            marks=pytest.mark.nightly,
        ),
        "{% for i in range(90000) %}{% for j in range(90000) %}xxxxxxxx{% endfor %}{% endfor %}",
        pytest.param(
            "{% set t %}{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}{% endset %}",
            marks=pytest.mark.nightly,
        ),
        "{% macro m() %}{% for i in range(90000) %}{{ s }}{% endfor %}{% endmacro %}{{ m() }}",
        *("{{ ('\t' * 1000000).expandtabs(1000000) }}", "{{ ('\n' * 1000000) | indent(1000000) }}", "{{ lipsum(9) }}"),
        *("{{ ('\n' * 1000000) | indent(s) }}", "{{ ('{0}' * 1000).format(s) }}", "{{ s.translate({120: s}) }}"),
        "{% set ns = namespace(s=[]) %}{% for i in range(90000) %}{% set ns.s = [ns.s, s[1:]] %}{% endfor %}",
    ],
)
def test_texts_of_gigabytes_are_refused(template):
    """Refused before they are made, by whatever steps."""
    with pytest.raises(UnsupportedModelError, match=r"too large|beyond|undefined"):
        chat_format(model(HUGE + template + TURNS), with_system=False)


def test_long_conversations_are_rendered():
    """By templates that show as they go, and by those that gather all in a variable."""
    roles = ["user", "assistant"] * 500
    gathered = "{% for m in messages %}{% set ns.s = ns.s + m.content %}{% endfor %}{{ ns.s }}"
    for template in (TURNS, "{% set ns = namespace(s='') %}" + gathered):
        assert len(rendered(model(template), roles).before) == 1000


def test_templates_may_pad_and_format():
    padded = "{{ 'x' | center(3) }}{{ 'a\nb' | indent }}{{ '%02d' | format(1234567) }}{{ '{:>3}'.format('y') }}"
    assert chat_format(model(padded + TURNS), with_system=False).before_first == " x a\n    b1234567  y<user>"


def test_templates_may_ask_for_the_date_and_mark_replies():
    """gpt-oss, Granite 3.3 and Mistral Small 3.2 do the one, LFM 2.5 the other."""
    dated = chat_format(model("{{ strftime_now('%A, %-d %B %Y: %H h %% ') }}" + TURNS), with_system=False)
    assert re.fullmatch(r"\w+, \d+ \w+ \d{4}: \d\d h % <user>", dated.before_first)
    marked = TURNS.replace("<{{ m.role", "{% generation %}<{{ m.role").replace(
        "{% endfor", "{% endgeneration %}{% endfor"
    )
    assert chat_format(model(marked), with_system=False) == chat_format(model(TURNS), with_system=False)


@pytest.mark.parametrize("form", ["%2000000000d", "%_999999999Y", "%", "%%%", "x" * 101])
def test_dates_of_gigabytes_are_refused(form):
    with pytest.raises(UnsupportedModelError, match=r"strftime_now of .* is not possible"):
        chat_format(model(f"{{{{ strftime_now('{form}') }}}}" + TURNS), with_system=False)


OWN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}[assistant]"
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
SETTINGS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_a_template_of_a_file_takes_the_place_of_the_models(tiny_model, tmp_path, monkeypatch, isolated):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    Path(tmp_path, "own.jinja").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with edgekv.Runtime(path, chat_template="own.jinja", isolated=isolated, **SETTINGS) as runtime:
        monkeypatch.chdir("/")
        assert runtime.header.chat_template == OWN
        text = runtime.prompt_text(HELLO)
        assert text.startswith("[system] Be brief.")
        assert text.endswith("[assistant]")
        n_tokens = runtime.count_tokens(HELLO)
        with runtime.session(system="Be brief.", history=True) as session:
            list(session.chat("Hello", max_tokens=2))
            assert abs(session.stats.prompt_tokens - n_tokens) <= 1  # a first token may come before the text
            assert "[user] Hello" in "".join(session.text())
    with edgekv.Runtime(path, **SETTINGS) as runtime:
        assert "[user]" not in runtime.prompt_text(HELLO)


def test_files_that_hold_no_template_are_refused(tiny_model, tmp_path):
    path, file = tiny_model(n_layer=2), tmp_path / "own.jinja"
    header = read_header(path)
    refused = {
        "cannot be read: No such file": None,
        "is not UTF-8 text": b"\xff\xfe",
        "has more than 1,048,576 bytes": b" " * (MAX_BYTES + 1),
    }
    for message, content in refused.items():
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"chat_template='.*own\.jinja' {message}"):
            with_template(header, file)
    unusable = {"{% for x %}": "expected token", "{{ 1 / 0 }}": "division", "none": "it leaves a message of 'user' out"}
    for template, why in unusable.items():
        file.write_text(template)
        with pytest.raises(
            ConfigError, match=rf"own\.jinja' cannot be used: .*{why}.*; correct the template, or leave it"
        ):
            edgekv.Runtime(path, chat_template=file, **SETTINGS)


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_reasoning_is_asked_for_or_left_out_where_a_template_can(tiny_model, tmp_path, isolated):
    path, file = tiny_model(n_layer=2, n_ctx_train=2048), tmp_path / "own.jinja"
    macro = "{% macro end() %}{% if enable_thinking == false %}<none>{% endif %}{% endmacro %}"
    file.write_text(macro + TURNS + "{{ end() }}{% if thinking %}<think>{% endif %}")
    ends = {}
    for thinking in (None, True, False):
        settings = SETTINGS | {"isolated": isolated, "thinking": thinking}
        with edgekv.Runtime(path, chat_template=file, **settings) as runtime:
            ends[thinking] = runtime.prompt_text(HELLO).rpartition("<assistant>")[2]
            with runtime.session(history=True) as session:
                list(session.chat("Hello", max_tokens=1))
                assert "<assistant>" + ends[thinking] in "".join(session.text())
    assert ends == {None: "", True: "<think>", False: "<none>"}


def test_templates_that_know_nothing_of_reasoning_stay(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    texts = set()
    for thinking in (None, True, False):
        with edgekv.Runtime(path, thinking=thinking, **SETTINGS) as runtime:
            texts.add(runtime.prompt_text(HELLO))
    assert len(texts) == 1
    header = read_header(path)
    assert with_template(header, None) is header


LAST = (  # Mistral's have the system message in the last turn of the user
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if m.role == 'user' and loop.last and system %}[{{ system }}|{{ m.content }}]"
    "{% elif m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content }}.{% endif %}{% endfor %}"
)
EACH = (
    "{% set told = messages[0].content + '|' if messages[0].role == 'system' else '' %}{% for m in messages %}"
    "{% if m.role == 'user' %}[{{ told + m.content }}]{% elif m.role == 'assistant' %}{{ m.content }}.{% endif %}"
    "{% endfor %}"
)
BARE = (  # Gemma's have no system messages, and turns alternate
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}[{{ m.role }}|{{ m.content }}]{% endfor %}[model|"
)
SILENT = "{% for m in messages if m.role != 'system' %}[{{ m.role }}|{{ m.content }}]{% endfor %}[model|"
TALK = [("system", "S"), ("user", "one"), ("assistant", "two"), ("user", "three")]


def filled(template, talk):
    form = rendered(model(template), tuple(role for role, _ in talk))
    return "".join(text + talk[i][1] for text, i in zip(form.before, form.order, strict=True)) + form.after


@pytest.mark.parametrize(
    ("template", "whole"),
    [
        (LAST, "[one]two.[S|three]"),
        (EACH, "[S|one]two.[S|three]"),
        (TURNS, "<system>S<user>one<assistant>two<user>three<assistant>"),
    ],
)
def test_a_template_may_move_the_system_message(template, whole):
    assert filled(template, TALK) == whole


ONE = (  # TURNS, which refuses a further system message
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)


@pytest.mark.parametrize(
    ("template", "whole"),
    [
        (TURNS, "<system>S<system>T<system>U<user>one<assistant>two<user>three<assistant>"),
        (ONE, "<system>S\n\nT\n\nU<user>one<assistant>two<user>three<assistant>"),
        (LAST, "[one]two.[S\n\nT\n\nU|three]"),
        (EACH, "[S\n\nT\n\nU|one]two.[S\n\nT\n\nU|three]"),
        (BARE, "[user|S\n\nT\n\nU\n\none][assistant|two][user|three][model|"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*takes no system message")
def test_a_template_may_take_one_system_message_alone(template, whole):
    assert filled(template, [TALK[0], ("system", "T"), ("system", "U"), *TALK[1:]]) == whole


@pytest.mark.parametrize(
    ("talk", "whole"),
    [
        (TALK, "[user|S\n\none][assistant|two][user|three][model|"),
        (TALK[:1], "[user|S][model|"),
        ([TALK[0], *TALK[2:]], "[user|S][assistant|two][user|three][model|"),
        (TALK[1:], "[user|one][assistant|two][user|three][model|"),
    ],
)
@pytest.mark.parametrize("template", [BARE, SILENT])
def test_a_template_without_system_messages_has_the_user_tell_it(template, talk, whole, recwarn):
    assert filled(template, talk) == whole
    assert [str(it.message) for it in recwarn] == (talk[0][0] == "system") * [
        "the chat template of model.gguf takes no system message, so it is read at the beginning of the user's first "
        "turn"
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[-1].content }}", "it leaves a message of 'user' out"),
        (
            "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
            "it leaves a message of 'assistant' out",
        ),
        (
            "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
            "it moves a message of 'assistant', or tells it twice",
        ),
        (
            "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
            "it moves a message of 'user', or tells it twice",
        ),
    ],
)
def test_what_is_left_out_or_moved_is_named(template, message):
    with pytest.raises(edgekv.InputError, match=f"does not take messages of system, user, .*: {message}"):
        rendered(model(template), [role for role, _ in TALK])


@pytest.mark.parametrize("rest", ["true", "messages | length > 2"])
def test_a_system_message_after_the_users_is_refused_in_chats(rest):
    system = "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    others = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    after = f"{{% if {rest} %}}{others}{system}{{% else %}}{system}{others}{{% endif %}}"
    with pytest.raises(
        UnsupportedModelError, match="with a system message: it has the system message after the user's"
    ):
        chat_format(model(after), with_system=True)


@pytest.mark.parametrize(
    ("template", "told"),
    [(LAST, ["S"] * 4), (EACH, ["S"] * 4), (BARE, ["S"]), (TURNS, ["S"])],
)
@pytest.mark.filterwarnings("ignore:the chat template of")
def test_no_mark_reaches_the_model(tiny_model, tmp_path, template, told):
    file = tmp_path / "own.jinja"
    file.write_text(template)
    with (
        edgekv.Runtime(tiny_model(n_layer=2, n_ctx_train=2048), chat_template=file, **SETTINGS) as runtime,
        runtime.session(system="S", history=True) as session,
    ):
        for i in range(4):
            list(session.chat(f"message {i}", max_tokens=1))
        text = "".join(session.text())
        assert "EDGEKV" not in text
        assert text.count("S") == len(told)
        assert [turn.role for turn in session.turns()] == ["system", *4 * ["user", "assistant"]]


@pytest.mark.parametrize("part", ["m.content[:20]", "m.content | upper", "m.content | title"])
def test_a_part_of_a_mark_does_not_reach_the_model(part):
    """As of a template that puts a title before the messages."""
    titled = f"{{% for m in messages %}}{{{{ {part} }}}}{{% endfor %}}" + TURNS
    with pytest.raises(edgekv.InputError, match="user: it tells a part of a message, or changes one"):
        rendered(model(titled), ("user",))


def test_a_tool_cannot_write_a_mark():
    tools = [{"function": {"description": "EDGEKV-MARK-0-"}}]
    form = rendered(model("{{ tools[0].function.description }}" + TURNS), ("system", "user"), tools)
    assert (form.before, form.order) == (("EDGEKV-MARK-0-<system>", "<user>"), (0, 1))


TOOL = {"type": "function", "function": {"name": "now", "description": "Tell the time."}}


@pytest.mark.filterwarnings("ignore:the chat template of")
def test_tools_are_told_by_the_user_if_a_template_has_no_system_messages(tiny_model, tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text(BARE)
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    settings = SETTINGS | {"budget": 512, "chat_template": file, "grammars": True}
    with edgekv.Runtime(path, **settings) as runtime, runtime.session(history=True) as session:
        list(session.continue_from([{"role": "user", "content": "Hi"}], tools=[TOOL], max_tokens=1))
        text = "".join(session.text())
    assert text.startswith("[user|You can call functions.")
    assert '"name": "now"' in text
    assert "\n\nHi][model|" in text


def test_a_template_for_tools_is_used_with_tools_alone(tmp_path):
    named = "{{ tools or [] | tojson }}" + TURNS
    path = write_vocabulary(tmp_path / "model.gguf", templates={"": TURNS, "tool_use": named})
    header = read_header(path)
    assert (header.chat_template, header.tools_template) == (TURNS, named)
    file = tmp_path / "own.jinja"
    file.write_text(OWN)
    assert with_template(header, file).tools_template == OWN
    thinking = with_template(header, None, thinking=True)
    assert thinking.chat_template.endswith("%}" + TURNS)
    assert thinking.tools_template.endswith("%}" + named)
    told = {"model": SimpleNamespace(header=header, path=path, control_text=lambda name: "")}
    assert rendered(**told, roles=("user",)).before == ("<user>",)
    assert "now" in rendered(**told, roles=("user",), tools=[TOOL]).before[0]
    assert rendered(**told, roles=("user", "tool")).before[0] == "[]<user>"
