"""The command line: a thin layer over the public API."""

import os

# Before numpy is imported: it multiplies little here, and each thread that it starts burns a twentieth of a second
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
