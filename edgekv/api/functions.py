"""OpenAI's older form of tools: the fields `functions` and `function_call`, and messages of role `function`."""

from __future__ import annotations

from typing import Any

from .api_errors import ApiError
from .body import Body
from .reply_request import ToolCall


class FunctionFields(Body):
    """Fields of the body of a chat completion."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None

    @property
    def calls_functions(self) -> bool:
        """True if the client knows the older form alone."""
        return bool(self.functions)

    def tool_arguments(self) -> dict[str, Any]:
        """Return arguments of a `ReplyRequest`, in either form. Raises ApiError if both are given."""
        if self.functions and self.tools:
            raise ApiError(400, "invalid_value", "tools and functions are both given; give tools", param="functions")
        choice, tools = self.tool_choice, self.tools or ()
        if self.functions:
            tools = [{"type": "function", "function": function} for function in self.functions]
            choice = self.function_call
            if isinstance(choice, dict):
                choice = {"type": "function", "function": choice}
        return {
            "tools": tuple(tools),
            "tool_choice": "auto" if choice is None else choice,
            "parallel_tool_calls": self.parallel_tool_calls is not False and not self.functions,
        }


def function_call_field(call: ToolCall) -> dict[str, Any]:
    """Return a call, as a message of the assistant has it in the older form."""
    return {"name": call.name, "arguments": call.arguments}
