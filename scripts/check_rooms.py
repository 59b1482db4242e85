"""Check that imports run downwards through the rooms of `[tool.importlinter]` in pyproject.toml, and never in a circle.

    python scripts/check_rooms.py [CHECKOUT]

`edgekv.models` and `edgekv.cli` lie beside edgekv/ in a checkout, so the package is
put together as it is installed, in a temporary folder. Needs the development dependencies. Exits with 1 where an import
is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

BESIDE = ("models", "cli")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def main(checkout: Path) -> int:
    """The status of import-linter over a checkout."""
    with tempfile.TemporaryDirectory(prefix="edgekv-rooms-") as folder:
        package = Path(folder, "edgekv")
        shutil.copytree(checkout / "edgekv", package)
        for name in BESIDE:
            shutil.copytree(checkout / name, package / name)
        # -S: an editable install of edgekv would be found first
        command = [sys.executable, "-S", "-c", LINT, "--no-cache", "--config", str(checkout / "pyproject.toml")]
        path = os.pathsep.join([folder, sysconfig.get_path("purelib")])
        return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here))
