"""Answer a file of requests: workers take those without a result, and write a file of results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import ReplyRequest
from edgekv.binding.model import Model
from edgekv.errors import ConfigError
from edgekv.models import find_model
from edgekv.options import Options, default_threads

from .endpoints import Reply, parse, render, reply_of
from .prompt_plan import PromptPlan
from .requests import Requests
from .results_file import Results, digest_of, with_own_ids
from .run_config import resolve
from .sharding import ShardQueue
from .worker import Outcome, Setup
from .workers import Worker, answer_all, cluster_workers, local_workers

SHAPING = ("response_format", "json_schema", "grammar", "text", "tools")  # without these a reply may be any text


class Answered(NamedTuple):
    """A request that has a result. number: its place in the file, from 0 on; failed: the result is an error"""

    number: int
    custom_id: str
    failed: bool


@dataclass
class BatchStats:
    """Statistics of a batch.

    answered: requests that got a result
    prefixes: prefixes that were read for several requests; each counts again for every further worker that reads it
    prefix_tokens: tokens of these; shared_tokens: tokens that were not read again
    peak_bytes: the largest peak of a process with the model
    """

    answered: int = 0
    prefixes: int = 0
    prefix_tokens: int = 0
    shared_tokens: int = 0
    peak_bytes: int = 0

    def add(self, outcome: Outcome, n_shared: int) -> None:
        """Count the result of a request."""
        self.answered += 1
        self.prefixes += outcome.prefix_tokens_read > 0
        self.prefix_tokens += outcome.prefix_tokens_read
        self.shared_tokens += n_shared if not outcome.prefix_tokens_read and outcome.error is None else 0
        self.peak_bytes = max(self.peak_bytes, outcome.peak_bytes)


class Batch:
    """Answers the requests of a file that have no result yet. Use it in `with`, or close it.

        with Batch(Path("requests.jsonl"), Path("results.jsonl"), memory="256MiB") as batch:
            for answered in batch.run():
                print(answered.custom_id)

    requests: JSON lines in OpenAI's batch format
    results: file that gets a line for each request; requests that it has a line of are not answered again
    model, options: as for `edgekv.Runtime`. Each worker has the model in a process of its own, under this ceiling. With
        `parallel` the model is in this process, and so many requests are answered at a time; None = as many as cost no
        cells, at most 4, which answer as one does. grammars: None = if a request needs them

    Raises, before anything is answered, InputError for a file that holds no such requests, ConfigError for results that
    are not those of these requests, this model and these options, and what `edgekv.plan` raises.
    """

    def __init__(
        self, requests: Path, results: Path, model: str | None = None, *, parallel: int | None = 1, **options: Any
    ) -> None:
        self.stats = BatchStats()
        self._open = ExitStack()
        try:
            self.requests = self._open.enter_context(closing(Requests(requests)))
            self.results = self._open.enter_context(closing(Results(results, self.requests)))
            path = find_model(model)
            if options.get("grammars") is None:
                options["grammars"] = _needs_grammars(self.requests)
            # opened before the plan: a ceiling for this process counts it
            vocabulary = self._open.enter_context(Model(path, Options(), no_alloc=True))
            self.config = resolve(
                path, options | {"parallel": parallel}, results, has_results=bool(self.results.answered)
            )
            chosen = self.config.chosen
            self.prompt_plan = PromptPlan(
                self.requests,
                vocabulary,
                step=self.config.step,
                focus=chosen.focus,
            )
        except BaseException:
            self._open.close()
            raise

    def close(self) -> None:
        """Close all files."""
        self._open.close()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.requests)

    def run(self, *, workers: int = 1, cluster: str | None = None) -> Iterator[Answered]:
        """Answer the requests without a result; yield every request once it has one.

        A result is on the disk before it is yielded. What is under way when this is closed is dropped.

        workers: number of workers of this machine; cluster: address of a Dask scheduler, whose workers answer instead

        Raises ConfigError if there is no such cluster, and for several workers over `rpc` or with `parallel`; and what
        the runtime raises that is no fault of a request, as CeilingError, CeilingExceededError and DeviceError.
        """
        if workers > 1 or cluster is not None:
            how = f"workers={workers}" if cluster is None else f"cluster={cluster}"
            if rpc := self.config.options.get("rpc"):
                raise ConfigError(f"rpc={rpc} serves one worker at a time; leave {how} out")
            if (n_slots := self.config.chosen.parallel) > 1:
                raise ConfigError(f"parallel={n_slots} has one model in this process; leave it or {how} out")
        answered, refused = self.results.answered, self.prompt_plan.refused
        custom_ids = self.requests.custom_ids
        left = [number for number, name in enumerate(custom_ids) if name not in answered and number not in refused]
        queue = ShardQueue(self.prompt_plan.shards(left))
        # before the first result: a batch whose workers cannot begin answers nothing
        with self._workers(min(workers, len(left)), cluster) if left else nullcontext(()) as taken:
            for number, custom_id in enumerate(custom_ids):
                if custom_id in answered:
                    yield Answered(number, custom_id, answered[custom_id])
                elif number in refused:
                    yield self._record(number, refused[number])
            for number, outcome in answer_all(taken, queue, self.prompt_plan.task_of):
                self.stats.add(outcome, self.prompt_plan.n_shared[number])
                yield self._record_outcome(number, outcome)

    def _workers(self, workers: int, cluster: str | None) -> AbstractContextManager[Sequence[Worker]]:
        options = self.config.options
        if cluster is not None:
            return cluster_workers(cluster, Setup(str(self.config.model), options))
        threads = options.get("threads") or max(1, default_threads() // workers)
        return local_workers(workers, Setup(str(self.config.model), options | {"threads": threads}))

    def _record_outcome(self, number: int, outcome: Outcome) -> Answered:
        """Write down the result of a request."""
        if outcome.died:
            assert outcome.error is not None
            error = {name: outcome.error[name] for name in ("code", "message")}
            return self._append(number, None, error)
        if outcome.error is not None:
            return self._record(number, reply_of(ApiError(**outcome.error)))
        return self._record(number, render(self.requests[number], outcome.events, self.config.model.stem))

    def _record(self, number: int, reply: Reply) -> Answered:
        """Record a reply without the values that differ from run to run: memory of the process, and random ids."""
        own = digest_of(self.requests.digest, self.requests.custom_ids[number])
        body = with_own_ids(reply.body, own)
        body.get("edgekv", {}).pop("peak_bytes", None)
        return self._append(number, {"status_code": reply.status, "request_id": f"req_{own}", "body": body}, None)

    def _append(self, number: int, response: dict[str, Any] | None, error: dict[str, Any] | None) -> Answered:
        custom_id = self.requests.custom_ids[number]
        return Answered(number, custom_id, self.results.add(custom_id, response, error))


def _needs_grammars(requests: Requests) -> bool:
    """Return True if one of the requests needs a runtime with grammars."""
    for number in range(len(requests)):
        request = requests[number]
        if isinstance(request.body, dict) and any(request.body.get(name) for name in SHAPING):
            reply_request = parse(request)
            if isinstance(reply_request, ReplyRequest) and reply_request.needs_grammars:
                return True
    return False
