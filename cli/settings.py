"""Settings of a user's own: a TOML file with options for all commands, for one, and presets of `edgekv chat`.

What is given on the command line comes first, then the environment (`EDGEKV_MEMORY`), a preset, the file.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import platformdirs

from edgekv.errors import ConfigError
from edgekv.extras import needed

VARIABLE = "EDGEKV_CONFIG"  # names another file
PRESETS = "preset"

Options = Mapping[str, Any]


def settings_path() -> Path:
    """Return the path of the settings file, which need not exist."""
    named = os.environ.get(VARIABLE)
    return Path(named or Path(platformdirs.user_config_dir("edgekv", appauthor=False)) / "config.toml").expanduser()


def defaults(command: click.Command) -> dict[str, Any]:
    """The options that the file gives to each command, for click's `default_map`. Raises ConfigError for mistakes."""
    path = settings_path()
    settings = _read(path)
    if not settings:
        return {}
    commands: dict[str, click.Command] = getattr(command, "commands", {})
    general = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    everywhere = {key for it in commands.values() for key in _parameters(it)}
    _checked(general, everywhere, f"{path}", "of any command")
    for name in settings.keys() - general.keys() - {PRESETS}:
        if name not in commands:
            near = difflib.get_close_matches(name, commands, 1)
            meant = f"did you mean [{near[0]}]? " if near else ""
            raise ConfigError(f"{path}: [{name}] is no command; {meant}possible: {', '.join(commands)}, {PRESETS}.NAME")
    found = {}
    for name, inner in commands.items():
        parameters = _parameters(inner)
        own = _checked(settings.get(name, {}), parameters, f"{path}: [{name}]", f"of edgekv {name}")
        shared = {key: value for key, value in general.items() if _spelt(key) in parameters}
        found[name] = {parameters[_spelt(key)]: value for key, value in {**shared, **own}.items()}
    return found


def preset_options(name: str, command: click.Command) -> dict[str, Any]:
    """The options of a preset, for a command. Raises ConfigError if there is none of this name."""
    path = settings_path()
    presets = _read(path).get(PRESETS, {})
    if not isinstance(presets, dict) or not isinstance(presets.get(name), dict):
        there = ", ".join(presets) or "none"
        raise ConfigError(f"there is no preset {name!r} in {path}; there: {there}; write a table [{PRESETS}.{name}]")
    parameters = _parameters(command)
    options = _checked(presets[name], parameters, f"{path}: [{PRESETS}.{name}]", f"of edgekv {command.name}")
    return {parameters[_spelt(key)]: value for key, value in options.items()}


def preset_names() -> list[str]:
    """The names of all presets."""
    presets = _read(settings_path()).get(PRESETS, {})
    return list(presets) if isinstance(presets, dict) else []


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        if VARIABLE in os.environ:
            raise ConfigError(f"{VARIABLE} names {str(path)!r}, which is not a file; write it, or unset {VARIABLE}")
        return {}
    toml = importlib.import_module("tomllib") if sys.version_info >= (3, 11) else needed("tomli", "chat")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}; mend it, or name another file in {VARIABLE}") from error


def _parameters(command: click.Command) -> dict[str, str]:
    """Return the parameters of a command's options, by their long spelling without dashes."""
    options = [it for it in command.params if isinstance(it, click.Option) and it.name and not it.is_eager]
    return {_spelt(word): str(it.name) for it in options for word in it.opts if word.startswith("--")}


def _spelt(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _checked(options: Any, possible: Mapping[str, str] | set[str], where: str, what: str) -> Options:
    """Return options of the file. Raises ConfigError for unknown options, and for values that no option has."""
    if not isinstance(options, dict):
        raise ConfigError(f"{where} is no table; write its options below a line [...]")
    for key, value in options.items():
        if _spelt(key) not in possible:
            near = difflib.get_close_matches(_spelt(key), possible, 3)
            meant = f"did you mean {' or '.join(near)}?" if near else "--help of a command lists its options"
            raise ConfigError(f"{where}: {key!r} is no option {what}; {meant}")
        if isinstance(value, dict) or not isinstance(value, str | int | float | list):
            raise ConfigError(
                f"{where}: {key} = {value!r} is not possible; give a text, a number, true, false or a list"
            )
    return options
