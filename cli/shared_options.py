"""Command-line options that several commands share: of a runtime, named as its arguments, and of a reply."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, get_args

import click
import typer

import edgekv
from edgekv.documents.text_file import read_text
from edgekv.generation.request import MAX_TOKENS
from edgekv.options import DEFAULT_ARCHIVE, RPC_TIMEOUT_S
from edgekv.planning.default_memory import default_memory_line
from edgekv.planning.streaming_cost import streaming_cost

from .render import loading, say

# sections of a command's help, with the options of `common` in them
SECTIONS = {
    "Model": ("model", "chat_template", "thinking"),
    "Memory": (
        "memory",
        "device_memory",
        "gpu_context",
        "budget",
        "block",
        "kv_type",
        "repack",
        "mmap",
        "resident",
        "yields",
    ),
    "What is kept": ("policy", "focus", "focus_policy", "archive", "reposition", "allow_beyond_trained"),
    "Speed and devices": (
        "threads",
        "prompt_lookup",
        "gpu_layers",
        "tensor_split",
        "rpc",
        "rpc_timeout",
        "isolated",
    ),
}
_SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}

System = Annotated[str | None, typer.Option(help="System message; never evicted.")]
FocusOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="Read with this in mind, not the question; again for more, and each keeps what it needs."
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Put nothing before the question. Default: with files, how to answer it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _file_or_text(metavar: str, meaning: str) -> Any:
    """Return an option whose value stays a text. A Path would shorten the // of an address in a schema."""
    return typer.Option(metavar=metavar, click_type=click.Path(), help=meaning)


JsonSchema = Annotated[
    str | None,
    _file_or_text("FILE|JSON", "The answer is JSON that fits this JSON schema: a file, or the schema itself."),
]
Grammar = Annotated[
    str | None,
    _file_or_text("FILE|TEXT", "The answer follows this grammar, in GBNF or Lark: a file, or the grammar itself."),
]


def cells_are_here(rpc: str | None) -> None:
    """Raise ConfigError if cells would lie with servers, and so out of a process that looks at them."""
    if rpc is not None:
        raise edgekv.ConfigError(f"rpc={rpc} keeps cells out of this process, which looks at them; leave it out")


NoRpc = Annotated[str | None, typer.Option("--rpc", hidden=True, callback=cells_are_here)]


def common(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Path of a GGUF model, or a name (`edgekv models list`).")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory ceiling of the whole process: 256MiB, 1.5GB, 25%. Default: 256MiB; for a model of your own "
            "what its trained context needs, at most half of what is free."
        ),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]SIZE,...", help="Memory ceiling of a GPU or an RPC server's device; of several, by name."
        ),
    ] = None,
    gpu_context: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What the driver takes of each GPU beside that. Default: 524MiB with CUDA."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Eviction policy, with options as in 'keydiff(kernel=15)'. Default: keydiff(rope=off), or keydiff of "
            "models whose keys cannot be turned back.",
        ),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Cells that each layer and head keeps. Default: as many as fit.")
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(help="Tokens fed between two evictions. Default: 32 to 1024, as the cells allow (`edgekv plan`)."),
    ] = None,
    kv_type: Annotated[
        str | None,
        typer.Option(
            help="Type of cached keys and values: f16, q8_0, q4_0. Default: q8_0, or f16 if it holds as many cells."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads. Default: one for every processor.")] = None,
    reposition: Annotated[
        str, typer.Option(help="Turn kept keys to adjacent positions: auto (in long texts), always, never.")
    ] = "auto",
    prompt_lookup: Annotated[
        str,
        typer.Option(help="Say several tokens with one decode where the text suggests them: auto, on, off."),
    ] = "auto",
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Template in Jinja for messages. Default: the one that the model carries."),
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking", help="Begin replies with reasoning, or not. Default: as the template does."
        ),
    ] = None,
    allow_beyond_trained: Annotated[
        bool, typer.Option("--allow-beyond-trained", help="Read past the trained context without repositioning.")
    ] = False,
    focus: Annotated[
        bool, typer.Option("--focus/--no-focus", help="Read files with the question in mind: keep what matters to it.")
    ] = True,
    focus_policy: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Scores by the question. Default: the policy if it reads queries."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|auto|off",
            help="Keep what is evicted on the disk, at most so much a session, and recall what a question needs. "
            f"auto: a quarter of what is free there. Default: {DEFAULT_ARCHIVE}.",
        ),
    ] = None,
    repack: Annotated[
        bool | None,
        typer.Option(
            "--repack/--no-repack", help="Keep weights in the processor's own order. Default: where there is one."
        ),
    ] = None,
    mmap: Annotated[
        bool | None,
        typer.Option(
            "--mmap/--no-mmap",
            help="Map the weights from the file. Default: if all of them lie in memory as they are there.",
        ),
    ] = None,
    resident: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Layers whose weights stay in memory, as 50%; those of the others are read again and again. Default: "
            "all, or as many as leave room for 2,048 cells.",
        ),
    ] = None,
    gpu_layers: Annotated[
        int | None, typer.Option(help="Layers to put on devices. Default: none on GPUs; with --rpc as many as fit.")
    ] = None,
    yields: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of the ceiling to give up while the system is short of memory."),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...", help="Put layers on these servers (edgekv rpc-server); implies --isolated."
        ),
    ] = None,
    rpc_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="A server that says nothing for so long counts as gone.")
    ] = RPC_TIMEOUT_S,
    tensor_split: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Layers of each device, in proportion. Default: as their ceilings allow."),
    ] = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Load the model in a worker process; the ceiling is for that process.")
    ] = False,
) -> None:
    """Never called: its parameters are the options."""


ALONE: dict[str, Any] = {"swap_bytes": 0}  # options of a runtime with one session


def with_common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the common options; it receives them as one dict, its parameter `runtime`."""

    @functools.wraps(command)
    def isolated(*args: Any, runtime: dict[str, Any], **kwargs: Any) -> Any:
        runtime["isolated"] |= runtime["rpc"] is not None  # ggml's client may abort its process
        return command(*args, runtime=runtime, **kwargs)

    return gathered(isolated, common, "runtime", variables=True)


@contextmanager
def opened(options: dict[str, Any], *, goes_back: bool = False) -> Iterator[edgekv.Runtime]:
    """Open the runtime of the common options. A command has one session, so no memory is planned for swapping.

    goes_back: plan as much memory as a swapped-out session takes, to load full cells from a checkpoint or a file
    """
    with loading():
        runtime = edgekv.Runtime(**({} if goes_back else ALONE), **options)
    with runtime:
        if options["memory"] is None and (line := default_memory_line(runtime.plan)):
            say(line)
        if cost := streaming_cost(runtime.plan, runtime.options.n_ubatch):
            say(str(cost))
        yield runtime


def with_reply_options(usual: edgekv.Sampling) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a reply; it receives them as one dict, `reply`. usual: their defaults"""

    def options(
        temp: Annotated[float, typer.Option(help="Temperature; 0 = always the most likely token.")] = usual.temperature,
        top_k: Annotated[
            int, typer.Option(help="With a temperature, choose among so many of the most likely tokens; 0 = all.")
        ] = usual.top_k,
        top_p: Annotated[
            float, typer.Option(help="Of these, choose among those that together reach this probability.")
        ] = usual.top_p,
        min_p: Annotated[
            float, typer.Option(help="Of these, choose among those this much as likely as the first; 0 = all.")
        ] = usual.min_p,
        repeat_penalty: Annotated[
            float, typer.Option(help="Make the last 64 tokens that were said less likely to come again; 1 = off.")
        ] = usual.repeat_penalty,
        seed: Annotated[int | None, typer.Option(help="Seed of the sampler. Default: a new one each time.")] = None,
        max_tokens: Annotated[int, typer.Option(help="Longest reply, in tokens.")] = MAX_TOKENS,
        stop: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TEXT", help="End the reply before this text; again for more. $'\\n' is a line break."
            ),
        ] = None,
        allow_loops: Annotated[
            bool, typer.Option("--allow-loops", help="Go on where the reply goes round in a circle.")
        ] = False,
    ) -> None:
        """Never called: its parameters are the options."""

    return lambda command: gathered(command, options, "reply", section="Reply", variables=True)


def reply_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `Session.ask` and `Session.chat`. Raises ConfigError for values that cannot work."""
    if options["max_tokens"] < 1:
        raise edgekv.ConfigError(f"max_tokens={options['max_tokens']} is not possible; give at least 1")
    sampling = edgekv.Sampling(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        seed=options["seed"],
    )
    ending = {name: options[name] for name in ("max_tokens", "allow_loops")}
    return {"sampling": sampling, "stop": options["stop"] or (), **ending}


def held_to(json_schema: str | None, grammar: str | None) -> dict[str, str]:
    """Return the schema and the grammar that are given or named, as arguments of a reply. Raises InputError."""
    limits = {}
    if json_schema is not None:
        is_itself = json_schema.lstrip().startswith("{")
        limits["json_schema"] = json_schema if is_itself else "".join(read_text(json_schema))
    if grammar is not None:
        is_itself = "::=" in grammar or "\n" in grammar  # a rule of GBNF; several lines of Lark
        limits["grammar"] = grammar if is_itself else "".join(read_text(grammar))
    return limits


def one_way_to_share(workers: int, cluster: str | None) -> None:
    """Raise ConfigError if work is to be shared out in two ways."""
    if workers and cluster is not None:
        raise edgekv.ConfigError(f"workers and cluster={cluster} are two ways to share the work; give one")


def gathered(
    command: Callable[..., Any],
    options: Callable[..., None],
    into: str,
    *,
    without: Collection[str] = (),
    section: str | None = None,
    variables: bool = False,
) -> Callable[..., Any]:
    """Give a command the options that are the parameters of another function; it receives them as one dict.

    without: names of options that it does not get
    section: of the command's help; None = that of SECTIONS
    variables: take an option that is not given, unless it is a list, from the environment: EDGEKV_MEMORY
    """
    every = inspect.signature(options, eval_str=True).parameters
    shared = {name: parameter for name, parameter in every.items() if name not in without}
    for name, parameter in shared.items():
        kind, option = get_args(parameter.annotation)
        option.rich_help_panel = section or _SECTION_OF.get(name)
        if variables and "list" not in str(kind):
            option.envvar = f"EDGEKV_{name.upper()}"
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != into]

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return command(*args, **{into: {name: kwargs.pop(name) for name in shared}}, **kwargs)

    parameters = own + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shared.values()]
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__
    return wrapper
