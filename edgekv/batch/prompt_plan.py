"""Plan of the prompts of a batch: their tokens, and the prefixes that they share."""

from __future__ import annotations

import itertools
import json
from array import array
from collections import deque
from collections.abc import Iterable, Iterator

from edgekv.api.api_errors import ApiError, api_error_of
from edgekv.api.reply_request import ReplyRequest
from edgekv.binding.model import Model
from edgekv.conversations.history import request_of
from edgekv.conversations.history_prompt import HistoryPrompt
from edgekv.errors import EdgeKVError, UnsupportedModelError

from .endpoints import Reply, parse, reply_of
from .prefix_groups import block_hashes, group_by_prefix
from .requests import Requests
from .sharding import Shard
from .worker import Prefix, Task

REPLY_TOKENS = 200  # stands for the work of a reply, in tokens that are read


class PromptPlan:
    """The prompts of a file. The plan depends on the whole file alone, not on the requests that have results already.

    refused: replies to requests that the model need not see, by number
    n_tokens: tokens of each prompt; 0 = unknown
    n_shared: tokens of the prefix that each prompt shares with others, and that is read once; 0 = none
    """

    def __init__(
        self,
        requests: Requests,
        model: Model,
        *,
        step: int,
        focus: bool,
    ) -> None:
        """model: its vocabulary; step: tokens of a block that may be shared; focus: True = the runtime has a focus"""
        self._requests = requests
        self._model = model
        self._focus = focus
        self.refused: dict[int, Reply] = {}
        self.n_tokens: list[int] = []
        chains: list[bytes] = []
        for number in range(len(requests)):
            hashes, n = self._parse(number, step)
            chains.append(hashes)
            self.n_tokens.append(n)
        self.n_shared = [0] * len(requests)
        self._groups = group_by_prefix(chains)
        for group in self._groups:
            for number in group.members:
                self.n_shared[number] = group.n_blocks * step

    def _parse(self, number: int, step: int) -> tuple[bytes, int]:
        """Return the digests and the number of tokens of a request; b"" and 0 for one that is refused."""
        reply_request = parse(self._requests[number])
        if isinstance(reply_request, ReplyRequest):
            try:
                hashes, n_tokens = block_hashes(self._tokens(reply_request), step, _kind(reply_request))
                return (b"" if reply_request.tools else hashes), n_tokens  # a template may put tools anywhere
            except UnsupportedModelError as error:  # no chat template, which completions do without
                reply_request = reply_of(ApiError(400, "unsupported_model", str(error)))
            except EdgeKVError as error:
                api_error = api_error_of(error)
                if api_error.status >= 500:
                    raise
                reply_request = reply_of(api_error)
        self.refused[number] = reply_request
        return b"", 0

    def shards(self, numbers: Iterable[int]) -> Iterator[Shard]:
        """Yield these requests in shards by common prefix."""
        wanted = set(numbers)
        for group in self._groups:
            left = [number for number in group.members if number in wanted]
            own = ((number, self.n_tokens[number] - self.n_shared[number] + REPLY_TOKENS) for number in left)
            if left:
                yield Shard(self.n_shared[left[0]], deque(own))

    def task_of(self, number: int) -> Task:
        """Return the task of a request, for a worker. Any thread may call this."""
        reply_request = parse(self._requests[number])
        assert isinstance(reply_request, ReplyRequest)
        n_shared = self.n_shared[number]
        if not n_shared:
            return Task(reply_request, None)
        tokens = array("i", itertools.islice(self._tokens(reply_request), n_shared))
        return Task(reply_request, Prefix(_kind(reply_request), tokens, self._question(reply_request)))

    def _question(self, reply_request: ReplyRequest) -> str | tuple[str, ...] | None:
        """Return the question that a prefix is read with: one that all requests name that share it; None = none."""
        focus = _focus(reply_request)
        return None if not self._focus or isinstance(focus, bool) or reply_request.prompt is not None else focus

    def _tokens(self, reply_request: ReplyRequest) -> Iterator[int]:
        """Return the tokens of a prompt, as a session reads them. Raises InputError and UnsupportedModelError."""
        wanted = request_of(reply_request.history)
        return HistoryPrompt(wanted, self._model).prompt().tokens()


def _focus(reply_request: ReplyRequest) -> bool | str | tuple[str, ...]:
    """Return the focus of a request. Left out, it is the last message, because a batch knows which texts are shared."""
    return True if reply_request.focus is None else reply_request.focus


def _kind(reply_request: ReplyRequest) -> bytes:
    """Return a key that requests must share, beside tokens, to share a prefix: a system message may be pinned."""
    first = reply_request.messages[0] if reply_request.messages else {}
    system = first.get("content") if first.get("role") == "system" else None
    return json.dumps([reply_request.prompt is None, _focus(reply_request), system]).encode()
