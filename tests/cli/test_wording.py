"""Messages of the library, in the words of the command line."""

from __future__ import annotations

import pytest

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("max_tokens=0 is not possible", "--max-tokens 0 is not possible"),
        ("memory=190.0 MiB (kv_type=q4_0, block=32)", "--memory 190.0 MiB (--kv-type q4_0, --block 32)"),
        ("mmap=True with repack=True", "--mmap with --repack"),
        ("use repack=False, or allow_beyond_trained=True", "use --no-repack, or --allow-beyond-trained"),
        ("raise device_memory to 5MiB", "raise --device-memory to 5MiB"),
        ("temperature=-1.0", "--temp -1.0"),
        ("n_sink=3", "n_sink=3"),
        ("lower the budget to 5", "lower the budget to 5"),
        ("snapkv(window=64, seed=3)+ada: seed=4", "snapkv(window=64, seed=3)+ada: --seed 4"),
        ("/tmp/block=3/kv_type cannot be read", "/tmp/block=3/kv_type cannot be read"),
        ("n_embd=3 is no option", "n_embd=3 is no option"),
    ],
)
def test_arguments_become_options(message, expected):
    import typer.main

    from edgekv.cli.main import app
    from edgekv.cli.wording import worded

    command = typer.main.get_command(app)
    assert all(command.commands.values())  # messages are worded for commands that are in use
    assert worded(message, command) == expected
