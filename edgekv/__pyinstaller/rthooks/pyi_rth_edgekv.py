"""Runs before a packaged program does: where the program was started as a worker process, it becomes one."""

from edgekv.worker.frozen import serve_if_worker

serve_if_worker()
