"""`/set`, `/policy`, `/memory` and `/stats`: settings and figures of replies. Also the line below the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import edgekv
from edgekv.cli.render import console, figures_of, packed, remembered, say
from edgekv.counting import counted
from edgekv.generation.stats import kept_tokens
from edgekv.memory.sizes import format_size

from .chat import Chat

# the name that /set knows: an argument of `Sampling`, and the function that parses its value
SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temp": ("temperature", float),
    "top-k": ("top_k", int),
    "top-p": ("top_p", float),
    "min-p": ("min_p", float),
    "repeat-penalty": ("repeat_penalty", float),
    "seed": ("seed", int),
    "max-tokens": ("max_tokens", int),
}
OPEN = "none"  # value of the seed for a new one each time


def set_(chat: Chat, argument: str) -> None:
    """Show or change the settings of replies."""
    if argument:
        name, _, written = argument.partition(" ")
        _change(chat, name, written.strip())
    sampling, max_tokens = chat.reply["sampling"], chat.reply["max_tokens"]
    values = {name: getattr(sampling, field, max_tokens) for name, (field, _) in SETTINGS.items()}
    for line in packed([f"{name} {OPEN if value is None else value}" for name, value in values.items()], console.width):
        say(line)


def _change(chat: Chat, name: str, written: str) -> None:
    if name not in SETTINGS:
        raise edgekv.InputError(f"{name!r} cannot be set; possible: {', '.join(SETTINGS)}")
    field, kind = SETTINGS[name]
    try:
        value: Any = None if (name, written) == ("seed", OPEN) else kind(written)
    except ValueError:
        wrong = f"{written!r} is not possible for {name}" if written else f"{name} needs a value"
        raise edgekv.InputError(f"{wrong}; give a number") from None
    if field != "max_tokens":
        chat.reply["sampling"] = replace(chat.reply["sampling"], **{field: value})
    elif value < 1:
        raise edgekv.ConfigError(f"max_tokens={value} is not possible; give at least 1")
    else:
        chat.reply["max_tokens"] = value


def policy(chat: Chat, argument: str) -> None:
    """Show the policy that chooses the cells to keep."""
    options, plan = chat.runtime.options, chat.runtime.plan
    if argument:
        raise edgekv.InputError(
            f"a chat keeps its policy, {options.parsed_policy.spec}; leave, and begin another with: "
            f"edgekv chat --policy {argument!r} (edgekv policies lists them)"
        )
    focus = [f"focus {options.parsed_focus.spec}"] if options.focus else []
    cells = f"{plan.budget_cells:,} cells in each of the heads, and {plan.block} spare ones"
    for line in packed([f"policy {options.parsed_policy.spec}", *focus, cells, plan.kv_type], console.width):
        say(line)


def stats(chat: Chat, _argument: str) -> None:
    """Show the figures of the last reply, and the use of memory."""
    session, plan, last = chat.session, chat.runtime.plan, chat.session.stats
    parts = [
        plan.model.name,
        *([] if chat.name is None else [f"session {chat.name}"]),
        *_standing(chat),
        *_forgotten(chat),
        f"planned {format_size(plan.peak_bytes)}",
    ]
    if last.finish_reason:
        parts += [
            f"last reply: {counted(last.read_tokens, 'token')} read and {last.generated_tokens:,} said",
            f"first token after {last.ttft_s:.1f} s",
            *figures_of(last, plan)[-3:-1],
            counted(last.evictions, "eviction"),
            *_archive(last),
        ]
    if session.n_exceeded:
        parts.append(f"over the ceiling {counted(session.n_exceeded, 'time')}")
    for line in packed(parts, console.width):
        say(line)


def memory(chat: Chat, size: str) -> None:
    """Move the ceiling to a size, if one is given; show the ceiling, the cells under it, and who holds how much."""
    plan = chat.runtime.set_memory(size) if size else chat.runtime.plan
    cells, planned = counted(plan.budget_cells, "cell"), f"planned {format_size(plan.peak_bytes)}"
    say(packed([f"memory {format_size(plan.ceiling_bytes)}", cells, planned, *_standing(chat)], console.width)[0])
    held = sorted(chat.runtime.ledger, key=lambda entry: -entry.held_bytes)
    for line in packed([f"{it.owner} {format_size(it.held_bytes)}" for it in held if it.held_bytes], console.width):
        say(line)
    order = [it.owner for it in sorted(held, key=lambda entry: entry.rank) if it.rank and it.planned_bytes]
    say(f"a lower ceiling takes {', then '.join(order)}; all else stays")


def tell_forgetting(chat: Chat) -> None:
    """Say it if the last reply was the first one after parts of the chat were evicted."""
    forgets = chat.session.stats.forgotten_tokens > 0
    if forgets and not chat.forgets:
        say("older parts of this chat are no longer remembered in full; /kept shows what is left of your messages")
    chat.forgets = forgets


def bottom_line(chat: Chat, width: int) -> str:
    """Return the state of the conversation, cut to one line; "" if its worker died."""
    speed = chat.session.stats.decode_tok_per_s
    try:
        standing = _standing(chat)
    except edgekv.WorkerError:
        return ""
    return packed([*standing, *([f"{speed:.0f} tok/s"] if speed else [])], width)[0]


def reply_line(chat: Chat, n_tokens: int, seconds: float, width: int) -> str:
    """Return the progress of a reply, cut to one line."""
    parts = [counted(n_tokens, "token"), *([f"{n_tokens / seconds:.0f} tok/s"] if n_tokens > 1 else []), *_memory(chat)]
    return packed([*parts, "Ctrl-C stops"], width)[0]


def _standing(chat: Chat) -> list[str]:
    return [remembered(chat.session.n_cells, chat.session.n_past, chat.session.n_recallable), *_memory(chat)]


def _forgotten(chat: Chat) -> list[str]:
    """The number of forgotten tokens, if there are any."""
    n_seen = chat.session.n_past
    n = n_seen - kept_tokens(chat.session.n_cells, n_seen) - chat.session.n_recallable
    return [f"{counted(n, 'token')} forgotten (/kept shows of what)"] if n else []


def _archive(last: edgekv.Stats) -> list[str]:
    """The figures of the archive after the last reply, if there is something in it."""
    if not (last.archived_tokens or last.archive_failure):
        return []
    figures = [f"{counted(last.archived_tokens, 'token')} archived"]
    if last.recalls:
        cells, scanned = counted(last.recalled_cells, "cell"), counted(last.scanned_tokens, "scanned token")
        figures.append(f"{counted(last.recalls, 'recall')} of {cells} from {scanned} in {last.recall_s:.1f} s")
    return [*figures, *([f"archive: {last.archive_failure}"] if last.archive_failure else [])]


def _memory(chat: Chat) -> list[str]:
    """The peak under the ceiling; of a worker, as the last reply told it, unless the ceiling went below that since."""
    isolated, ceiling = chat.runtime.worker_pid is not None, chat.runtime.plan.ceiling_bytes
    peak = chat.session.stats.peak_rss_bytes if isolated else chat.runtime.guard.peak_bytes
    return [f"{format_size(peak)} of {format_size(ceiling)}"] if 0 < peak <= ceiling else []
