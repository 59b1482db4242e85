"""Bodies of requests: JSON that is checked."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from .api_errors import ApiError


class Body(BaseModel):
    """A body of an API, or a part of one. Fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):  # Python counts it as a number
        raise PydanticCustomError("number_type", "Input should be a number, and not true or false")
    return value


Whole = Annotated[int, BeforeValidator(_not_bool)]
Number = Annotated[float, BeforeValidator(_not_bool)]

MAX_VALUES = 1 << 16  # each takes far more memory than the byte or two that it may be written in
_STRING_OR_SEPARATORS = re.compile(rb'"[^"]*"?|[,\[{]+')

B = TypeVar("B", bound=Body)


def parsed(kind: type[B], raw: bytes | bytearray) -> B:
    """Parse and check a body. Raises ApiError for JSON with too many values, or nested more than 200 deep."""
    if _has_too_many_values(raw):
        raise ApiError(400, "invalid_json", f"the body holds more than {MAX_VALUES} values; send fewer")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error) from None


def _has_too_many_values(raw: bytes | bytearray) -> bool:
    """Return True if JSON has more strings, and separators outside of them, than it may."""
    without_escapes = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    n = 0
    for found in _STRING_OR_SEPARATORS.finditer(without_escapes):
        n += 1 if without_escapes[found.start()] == ord('"') else found.end() - found.start()
        if n > MAX_VALUES:
            return True
    return False


def _refusal(error: ValidationError) -> ApiError:
    """Return the error for the first wrong field. The message does not repeat the client's value."""
    first = _closest(list(map(dict, error.errors(include_url=False, include_context=False, include_input=False))))[0]
    if first["type"] == "json_invalid":
        why = first["msg"]
        if "hex escape" in why:  # JSON can write one, and no text can hold it
            why = "it holds half of a character (a lone surrogate, as in \\ud800); send whole characters, in UTF-8"
        return ApiError(400, "invalid_json", f"the body cannot be read: {why}")
    param = ".".join(str(part) for part in first["loc"] if _is_field(part)) or None
    code = {"missing": "missing_required_parameter"}.get(first["type"], "invalid_value")
    return ApiError(400, code, f"{param or 'the body'}: {first['msg']}", param=param)


def _closest(errors: list[dict[str, Any]], depth: int = 0) -> list[dict[str, Any]]:
    """Return the errors. If a field takes several types, keep the errors of the type that is closest to the value.

    depth: parts of the locations that all errors have in common
    """
    location = errors[0]["loc"]
    at = next((i for i in range(depth, len(location)) if not _is_field(location[i])), None)
    if at is None:
        return errors
    of_types: dict[str, list[dict[str, Any]]] = {}
    for error in errors:
        if error["loc"][:at] == location[:at]:
            of_types.setdefault(error["loc"][at], []).append(error)
    closest = [_closest(found, at + 1) for found in of_types.values()]
    near = [found for found in closest if any(map(_is_field, found[0]["loc"][at:])) or found[0]["type"][-5:] != "_type"]
    return min(near or closest, key=len)


def _is_field(part: int | str) -> bool:
    """Return True if a part of a location is a field or an index, and not the name of one of several types."""
    return isinstance(part, int) or (part.isidentifier() and part not in ("bool", "float", "int", "str"))
