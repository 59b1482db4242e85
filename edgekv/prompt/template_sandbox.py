"""Run chat templates in jinja's sandbox, with a limit on all texts that one rendering makes.

Every text and list that a template makes is counted, be it shown or kept in a variable. The result of a step over large
values is estimated before the step. Loops that make nothing are not bounded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import wraps
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.sandbox
from jinja2.exceptions import SecurityError

_MOST = 1 << 25  # characters of all texts that a rendering may make, and of its input
_PART = 16  # cost of a text or a value beside its characters
_PER_INPUT = 256  # further ones for each character of its input
_MAX_NUMBER = 1 << 20  # the most repetitions or padding that a template may ask for
_WIDTH = re.compile(r"\d{7}")  # a width in a format that is, or may be, above _MAX_NUMBER
_WIDENING = ("batch", "center", "format", "indent", "tojson")  # filters that repeat or pad as often as they are told
_UNBOUNDED = ("lipsum", "pprint")  # jinja has them, and no chat needs them
# filters that make no text of their input, so large values cost nothing there
_PASSING = (
    *("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "last"),
    *("length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse", "round", "select"),
    *("selectattr", "slice", "sort", "unique"),
)


class _Code(jinja2.compiler.CodeGenerator):
    """Compiles templates so that texts are counted also if jinja calls no method of the environment."""

    def buffer(self, frame: Any) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.new_buffer()")

    def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802 - as the class declares it
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: Any, frame: Any) -> None:  # noqa: N802
        is_slice = isinstance(node.arg, jinja2.nodes.Slice)
        self.write("environment.counted(" if is_slice else "")
        super().visit_Getitem(node, frame)
        self.write(")" if is_slice else "")


class _Buffer(list[str]):
    """Texts of a part of a template, counted as they come."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count

    def append(self, text: str) -> None:
        self._count(len(text) + _PART)
        super().append(text)

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.append(text)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox that raises SecurityError for a rendering that makes too much. Call `begin` before each in its thread."""

    code_generator_class = _Code
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        """filters: filters that jinja lacks; options: of the environment"""
        super().__init__(finalize=self._shown, **options)
        self._thread = threading.local()
        known: dict[str, Any] = {**self.filters, **filters}
        every = {name: it for name, it in known.items() if name not in _UNBOUNDED}
        self.filters = {name: self._bounded(name, it) for name, it in every.items()}
        self.tests |= {name: self._bounded(name, self.tests[name]) for name in ("lower", "upper")}
        del self.globals["lipsum"]

    def begin(self, *given: Any) -> None:
        """Begin to count anew. given: the input"""
        self._thread.left = _MOST  # the input may not be larger, either
        self._thread.left += _PER_INPUT * self._size(given)

    def counted(self, value: Any) -> Any:
        """Count a value that was made, and return it."""
        if isinstance(value, int):
            self._count(value.bit_length() // 8)
        elif isinstance(value, (str, bytes, list, tuple, dict)):
            self._count(len(value))
        return value

    def joined(self, values: Sequence[Any]) -> str:
        """Return values as one text."""
        self._size(values)
        text: str = self.counted("".join(map(str, values)))
        return text

    def new_buffer(self) -> list[str]:
        """Return a list that counts the texts that it is given."""
        return _Buffer(self._count)

    def concat(self, texts: Iterable[str]) -> str:
        """Return texts as one, counted before."""
        if not isinstance(texts, _Buffer):
            pieces = self.new_buffer()
            pieces.extend(texts)
            texts = pieces
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator != "+":
            sizes = [len(value) for value in (left, right) if isinstance(value, Sequence)]
            if operator == "**" or (operator == "%" and sizes):
                raise SecurityError(f"it calculates {operator!r} of something large")
            if operator == "*" and sizes:
                self._check(sizes[0], [value for value in (left, right) if isinstance(value, int)])
        return self.counted(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(list(it) if isinstance(it, Iterator) else it for it in args)
        values = (*args, *kwargs.values())
        _check_numbers(values)
        method = getattr(function, "__wrapped__", function)
        if isinstance(text := getattr(method, "__self__", None), (str, bytes)):
            if method.__name__ in ("format", "format_map"):
                _check_widths((text, *values))
            self._check_product((text, *values), values)
        return self.counted(super().call(context, function, *args, **kwargs))

    def _bounded(self, name: str, plain: Any) -> Callable[..., Any]:
        """Return a filter that counts its output, and refuses to make too much."""

        @wraps(plain)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name not in _PASSING:
                args = tuple(list(it) if isinstance(it, Iterator) else it for it in args)
                n_before = 1 if hasattr(plain, "jinja_pass_arg") else 0
                value, *others = (*args[n_before:], *kwargs.values())
                if name == "format":
                    _check_widths((value,))
                is_widening = name in _WIDENING and (name != "format" or "*" in value)  # a star takes a width
                numbers = others if is_widening else []
                _check_numbers(numbers)
                self._check_product((value, *others), numbers)
            return self.counted(plain(*args, **kwargs))

        return bounded

    def _shown(self, value: Any) -> Any:
        if not isinstance(value, str):
            self._size(value)
        return value

    def _check_product(self, values: Sequence[Any], numbers: Sequence[Any]) -> None:
        """Raise SecurityError if the largest value, repeated for each part of another one, is too large."""
        sizes = sorted((self._size(value) + 1 for value in values), reverse=True)
        self._check(sizes[0], [*sizes[1:2], *(it for it in numbers if isinstance(it, int))])

    def _check(self, size: int, times: Iterable[int]) -> None:
        if size * max(times, default=1) > self._thread.left:
            raise _too_much()

    def _size(self, value: Any) -> int:
        """Return the number of characters and parts of a value. Raises SecurityError if it is too large."""
        size, rest = 0, [value]
        while rest:
            it = rest.pop()
            is_text = isinstance(it, (str, bytes))
            size += len(it) if is_text else _PART
            if size > self._thread.left:
                raise _too_much()
            if is_text:  # most values are, and to ask if one is a Mapping takes long
                continue
            if isinstance(it, (dict, Mapping)):
                rest += (*it, *it.values())
            elif isinstance(it, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)):
                rest += it
        return size

    def _count(self, n: int) -> None:
        self._thread.left -= n
        if self._thread.left < 0:
            raise _too_much()


def _too_much() -> SecurityError:
    return SecurityError("it makes texts that are too large")


def _check_numbers(values: Iterable[Any]) -> None:
    """Raise SecurityError for a number above _MAX_NUMBER."""
    if any(isinstance(value, int) and value > _MAX_NUMBER for value in values):
        raise SecurityError(f"it calls a function with a number beyond {_MAX_NUMBER}")


def _check_widths(values: Iterable[Any]) -> None:
    """Raise SecurityError for texts that may make a format wider than _MAX_NUMBER."""
    if any(_WIDTH.search(str(value)) for value in values):
        raise SecurityError(f"it formats with a number beyond {_MAX_NUMBER}")
