"""Runtime hook of PyInstaller: serve as a worker if the program was started as one."""

from edgekv.worker.frozen import serve_if_worker

serve_if_worker()
