"""Collect the modules, data and libraries of edgekv that PyInstaller does not see a program import."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules, copy_metadata

# Rooms above `edgekv.runtime` are packaged if the program imports them.
OUTER = ("__main__", "__pyinstaller", "batch", "cli", "config", "evals", "inspection", "server", "testing")


def is_inner(name: str) -> bool:
    """Return whether a runtime may need a module."""
    return name.partition(".")[2].partition(".")[0] not in OUTER


binaries = collect_dynamic_libs("edgekv")
datas = collect_data_files("edgekv", excludes=["_lib", "__pyinstaller"]) + copy_metadata("edgekv")
hiddenimports = [*collect_submodules("edgekv", filter=is_inner), "llama_cpp.llama_cpp"]
