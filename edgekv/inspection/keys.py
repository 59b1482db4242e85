"""The keys of one head: points of kept and evicted keys, and the volume that the kept keys span.

KeyDiff (arXiv:2504.15364) shows both: figures 5 and 8 by PCA, figure 12 by log det(K K^T).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng  # imported here, because numpy would import it at its first use, after the plan

from edgekv.warmup import register_warmup

Keys = npt.NDArray[np.floating]

COLUMNS = ("keys of", "kept", "evicted", "log det: kept", "random", "all", "on 2 axes")
DRAWS = 20  # random sets to compare the kept set with
AT_ONCE = 256  # keys that are copied in double precision


@dataclass(frozen=True)
class Volumes:
    """log det(K K^T) of the kept keys, of all keys, and of random sets of as many keys as were kept.

    -inf if keys span fewer dimensions than they could. `random` and `deviation` are NaN if nothing was evicted.
    """

    kept: float
    full: float
    random: float
    deviation: float


@dataclass(frozen=True)
class KeyStudy:
    """Keys of one (layer, KV head), as they were first stored.

    kept: (n,), True if the head still holds a token; points: (n, 2), the first two principal components of its key
    explained: share of the variance of all keys that lies along each of the two
    """

    layer: int
    head: int
    kept: npt.NDArray[np.bool_]
    points: npt.NDArray[np.float64]
    explained: tuple[float, float]
    volumes: Volumes

    @classmethod
    def of(cls, layer: int, head: int, keys: Keys, kept: npt.NDArray[np.bool_]) -> KeyStudy:
        """Study keys (n, d) with kept (n,)."""
        points, (first, second) = principal(keys)
        return cls(layer, head, kept, points, (float(first), float(second)), volumes(keys, kept))

    def as_row(self) -> tuple[str, ...]:
        """Return the values for a table, under COLUMNS."""
        n_kept, found = int(self.kept.sum()), self.volumes
        random = f"{found.random:.1f} ± {found.deviation:.1f}" if math.isfinite(found.deviation) else "-"
        return (
            f"{self.layer}, {self.head}",
            f"{n_kept:,}",
            f"{len(self.kept) - n_kept:,}",
            f"{found.kept:.1f}",
            random,
            f"{found.full:.1f}",
            f"{100 * sum(self.explained):.0f} %",
        )

    def as_dict(self) -> dict[str, object]:
        """Return plain values for JSON; None for values that are not finite."""
        return {
            "layer": self.layer,
            "head": self.head,
            "n_kept": int(self.kept.sum()),
            "n_evicted": int((~self.kept).sum()),
            "log_det": {name: value if math.isfinite(value) else None for name, value in asdict(self.volumes).items()},
            "explained": self.explained,
            "points": np.round(self.points, 4).tolist(),
        }


def principal(keys: Keys, n: int = 2) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the principal components of keys (n_keys, d): coordinates (n_keys, n) along the n directions in which they
    vary most, and the share of the variance along each.

    A direction's sign is free: its largest element is made positive.
    """
    mean = keys.mean(axis=0, dtype=np.float64)
    _, sizes, directions = np.linalg.svd(_triangle(keys, mean))
    variances = np.pad(sizes**2, (0, n))
    axes = np.pad(directions[: len(sizes)], ((0, n), (0, 0)))[:n]  # fewer keys than n have fewer directions
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = np.where(largest < 0, -axes, axes)
    points = np.concatenate([(some - mean) @ axes.T for some in _pieces(keys)])
    return points, variances[:n] / max(variances.sum(), np.finfo(float).tiny)


def log_det_gram(keys: Keys) -> float:
    """Return log det(K K^T) of keys (n, d), or log det(K^T K) if n > d; -inf if their rank is less than both n and d.

    With more keys than dimensions K K^T is always singular; det(K^T K) is the product of its other
    eigenvalues. Both are twice the sum of the logarithms of K's singular values.
    """
    sizes = np.linalg.svd(_triangle(keys), compute_uv=False)
    if sizes.size == 0:
        return 0.0
    if sizes[-1] <= sizes[0] * max(keys.shape) * np.finfo(float).eps:
        return -math.inf
    return float(2 * np.log(sizes).sum())


def volumes(keys: Keys, kept: npt.NDArray[np.bool_]) -> Volumes:
    """Return the volumes of keys (n, d), with those in `kept` (n,) kept. The random sets are the same in every run."""
    n_kept = int(kept.sum())
    mean = deviation = math.nan
    if n_kept < len(keys):
        generator = default_rng(0)
        draws = [log_det_gram(keys[generator.choice(len(keys), n_kept, replace=False)]) for _ in range(DRAWS)]
        if all(map(math.isfinite, draws)):
            mean, deviation = float(np.mean(draws)), float(np.std(draws))
        else:
            mean = -math.inf
    return Volumes(log_det_gram(keys[kept]), log_det_gram(keys), mean, deviation)


def _pieces(keys: Keys) -> Iterator[npt.NDArray[np.float64]]:
    for first in range(0, len(keys), AT_ONCE):
        yield keys[first : first + AT_ONCE].astype(np.float64)


def _triangle(keys: Keys, origin: npt.NDArray[np.float64] | float = 0.0) -> npt.NDArray[np.float64]:
    """Return R of the QR decomposition of keys (n, d) from an origin: at most (d, d), equal singular values and axes.

    The keys come in pieces, so its memory does not grow with the text.
    """
    found = np.empty((0, keys.shape[1]))
    for some in _pieces(keys):
        found = np.asarray(np.linalg.qr(np.concatenate([found, some - origin]), mode="r"))
    return found


def _rehearse() -> None:
    """Run the linear algebra once on keys of usual sizes, so that the memory that it keeps is taken."""
    for n in (64, 512):
        keys = default_rng(0).standard_normal((n, 128))
        principal(keys)
        log_det_gram(keys)


register_warmup(_rehearse)
