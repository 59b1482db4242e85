"""Collect the commands of the command line, each of which is imported by its name."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = collect_submodules("edgekv.cli")
