"""The model's own chat template, cut into the texts before, between and after the contents of turns.

A session holds no transcript, because a transcript grows without end. It feeds each turn as it comes. So it needs the
text that the template puts around a turn, not a whole rendered conversation. It renders a short conversation whose
contents are marks, and cuts the result at the marks.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.parser
from jinja2.ext import Extension

from edgekv.binding.model import Model
from edgekv.errors import ConfigError, InputError, UnsupportedModelError

from .template_sandbox import Sandbox
from .text import PARAGRAPH

_LONGEST_DATE = 100  # characters of a date's format
_DATE = re.compile(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*")  # no widths, which could be of gigabytes

_SIGN = secrets.token_hex(8)  # no tool's text can hold it
MARK = f"{_SIGN}-EDGEKV-MARK-{{}}-"  # stands for the content of a message, by its number
_MARKS = re.compile(MARK.format(r"(\d+)"))


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Template text around contents; every piece may hold control tokens.

    before_system + SYSTEM + before_first + USER + after_user + REPLY + between + USER + after_user + ...
    Without a system message only `before_first` comes before the first user content.

    after_system_again: of a template that has the system message in the last turn of the user: between + SYSTEM +
        after_system_again + USER; None = it is told once
    """

    before_system: str
    before_first: str
    after_user: str
    between: str
    after_system_again: str | None
    holds_bos: bool


def chat_format(model: Model, *, with_system: bool) -> ChatFormat:
    """Cut a model's template up. Raises UnsupportedModelError if there is none, or if it cannot be cut."""
    template = model.header.chat_template
    if template is None:
        raise _no_template(model)
    opening = ("system", "user") if with_system else ("user",)
    try:
        one, two = (_with_system(model, template, roles) for roles in (opening, (*opening, "assistant", "user")))
        if one.order != tuple(range(len(opening))) or two.order[-1] != len(opening) + 1:
            raise _Unusable("it has the system message after the user's")
        between, *again = two.before[two.order.index(len(opening)) + 1 :]
        if len(again) > 1:
            raise _Unusable("it has the system message twice in a turn")
    except Exception as error:  # a template is a program, and may raise anything
        what = " with a system message" if with_system else ""
        raise UnsupportedModelError(f"the chat template of {model.path.name} cannot be used{what}: {error}") from error
    before_system, before_first = ("", *one.before)[-2:]
    return ChatFormat(before_system, before_first, one.after, between, again[0] if again else None, one.holds_bos)


def check_template(model: Model, path: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError if a model has its chat template from a file, and cannot use it. path: None = from no file"""
    if path is None:
        return
    try:
        chat_format(model, with_system=False)
    except UnsupportedModelError as error:
        raise ConfigError(
            f"chat_template={str(path)!r} cannot be used: {error.__cause__}; correct the template, or leave it out"
        ) from error


@dataclass(frozen=True, slots=True)
class Rendered:
    """Template text around the contents of whole messages; every piece may hold control tokens.

    before: text before each content, (n,); after: text after the last content
    order: number of the message that each content is of, (n,); only system messages may move, or be told again
    """

    before: tuple[str, ...]
    order: tuple[int, ...]
    after: str
    holds_bos: bool


class _Unusable(jinja2.TemplateError):
    """A template left something out, or moved it."""


def rendered(model: Model, roles: Sequence[str], tools: Sequence[dict[str, Any]] = ()) -> Rendered:
    """Return the template text of a conversation whose messages have these roles, in any order that the template takes.

    A template that takes one system message alone has the first ones joined. One without system messages has the first
    one at the beginning of the first turn of the user, and a UserWarning says so.
    tools: tools that the template describes; they must hold no names of control tokens

    Raises UnsupportedModelError if there is no template, InputError if it does not take such messages.
    """
    header = model.header
    template = header.tools_template if tools or "tool" in roles else header.chat_template
    if template is None:
        raise _no_template(model)
    try:
        return _with_system(model, template, roles, tools)
    except Exception as error:  # a template is a program, and may raise anything
        raise InputError(
            f"the chat template of {model.path.name} does not take messages of {', '.join(roles[:20])}: {error}; leave "
            "one out, or give it another role"
        ) from error


def _with_system(model: Model, template: str, roles: Sequence[str], tools: Sequence[dict[str, Any]] = ()) -> Rendered:
    """Render messages; the next one tells a first system message that the template does not take. Raises anything."""
    roles = tuple(roles)
    try:
        form = _cut(model, template, roles, tools)
        if _has_reply_first(model, template, roles, tools, form):
            raise _Unusable("it tells a second system message as the assistant's")
        return form
    except Exception:  # a template is a program, and may raise anything
        if roles[0] != "system":
            raise
        if roles[1:2] == ("system",):
            return _before_next(_with_system(model, template, roles[1:], tools))
        form = _folded(model, template, roles, tools)
    warnings.warn(
        f"the chat template of {model.path.name} takes no system message, so it is read at the beginning of the user's "
        "first turn",
        stacklevel=2,
    )
    return form


def _has_reply_first(
    model: Model, template: str, roles: tuple[str, ...], tools: Sequence[dict[str, Any]], form: Rendered
) -> bool:
    """Return True if messages begin with two of the system, and the second one looks like a reply of the assistant."""
    if roles[:2] != ("system", "system"):
        return False
    with suppress(Exception):  # most templates refuse a reply there
        return _cut(model, template, ("system", "assistant", *roles[2:]), tools) == form
    return False


def _folded(model: Model, template: str, roles: tuple[str, ...], tools: Sequence[dict[str, Any]]) -> Rendered:
    """Render messages with the first one at the beginning of the first turn of the user. Raises anything."""
    others = roles[1:]
    if others[:1] != ("user",):  # there is no such turn, so the message is one
        return _cut(model, template, ("user", *others), tools)
    return _before_next(_cut(model, template, others, tools))


def _before_next(form: Rendered) -> Rendered:
    """Put a further message before message 0, wherever that is told. Numbers of messages are one higher then."""
    before: list[str] = []
    order: list[int] = []
    for text, i in zip(form.before, form.order, strict=True):
        before += [text] if i else [text, PARAGRAPH]
        order += [i + 1] if i else [0, 1]
    return replace(form, before=tuple(before), order=tuple(order))


def _cut(model: Model, template: str, roles: Sequence[str], tools: Sequence[dict[str, Any]]) -> Rendered:
    """Render messages whose contents are marks, and cut the text at these. Raises anything."""
    messages = [{"role": role, "content": MARK.format(i)} for i, role in enumerate(roles)]
    bos, eos = (model.control_text(name) for name in ("bos", "eos"))
    whole = render(template, messages, bos, eos, tools)
    *pieces, after = _MARKS.split(whole)
    order = tuple(map(int, pieces[1::2]))
    if left_out := {*range(len(roles))} - {*order}:
        raise _Unusable(f"it leaves a message of {roles[min(left_out)]!r} out")
    others = [i for i in order if roles[i] != "system"]
    for before, i in pairwise(others):
        if before >= i:
            raise _Unusable(f"it moves a message of {roles[i]!r}, or tells it twice")
    if any(_SIGN in text.lower() for text in (*pieces[::2], after)):
        raise _Unusable("it tells a part of a message, or changes one")
    return Rendered(tuple(pieces[::2]), order, after, bool(bos) and whole.startswith(bos))


def _no_template(model: Model) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{model.path.name} has no chat template; give one (chat_template), continue a text with Session.generate or "
        "`edgekv complete`, or use an instruct model"
    )


def opens_with(template: str) -> str:
    """Return the text that a template puts between a user's turn and the reply; "" if it cannot be rendered."""
    with suppress(Exception):  # an error of the template is raised when a chat begins
        mark = MARK.format(0)
        return render(template, [{"role": "user", "content": mark}], "", "").partition(mark)[2]
    return ""


class _Generation(Extension):
    """The tags `generation` and `endgeneration`, by which training finds replies. All between them stays."""

    tags = {"generation"}  # noqa: RUF012 - as the class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rehearse(template: str | None = None) -> None:
    """Compile a template, or render a small one, so that its memory is taken before a plan is made."""
    with suppress(Exception):  # an error of the template is raised when a chat begins
        if template is None:
            render("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}", [{"content": "text"}], "", "")
        else:
            _compile(template)


def render(
    template: str, messages: list[dict[str, Any]], bos: str, eos: str, tools: Sequence[dict[str, Any]] = ()
) -> str:
    """Render messages and tools, up to the beginning of the reply. Raises anything."""
    further = {"tools": list(tools)} if tools else {}
    compiled = _compile(template)
    compiled.environment.begin(messages, further)  # type: ignore[attr-defined]
    text: str = compiled.render(messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos, **further)
    return text


@functools.lru_cache(maxsize=3)  # the model's templates, with and without tools, and the rehearsal's
def _compile(template: str) -> jinja2.Template:
    extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
    environment = Sandbox({"tojson": _as_json}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals |= {"raise_exception": _raise, "strftime_now": _today}
    environment.begin()  # constants are calculated here
    return environment.from_string(template)


def _as_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Return JSON as models were trained on it: jinja's own is for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _today(form: str) -> str:
    if len(form) > _LONGEST_DATE or not _DATE.fullmatch(form):
        raise jinja2.exceptions.SecurityError(f"strftime_now of {form[:40]!r} is not possible")
    return datetime.now().strftime(form)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)
