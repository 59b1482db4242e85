"""Array types of the reference formulas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Keys = npt.NDArray[np.floating]  # (n, d)
Positions = npt.NDArray[np.int32]  # (n,) one value a cell
Scores = npt.NDArray[np.floating]  # (n,)
Indices = npt.NDArray[np.intp]
