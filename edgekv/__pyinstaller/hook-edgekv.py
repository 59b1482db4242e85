"""What a packaged program needs of edgekv beside the modules that it is seen to import."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules, copy_metadata

# What stands on `edgekv.runtime` is there if the program imports it.
OUTER = ("__main__", "__pyinstaller", "batch", "cli", "config", "evals", "inspection", "server", "testing")


def is_inner(name: str) -> bool:
    """Whether a runtime may need a module."""
    return name.partition(".")[2].partition(".")[0] not in OUTER


binaries = collect_dynamic_libs("edgekv")
datas = collect_data_files("edgekv", excludes=["_lib", "__pyinstaller"]) + copy_metadata("edgekv")
hiddenimports = [*collect_submodules("edgekv", filter=is_inner), "llama_cpp.llama_cpp"]
