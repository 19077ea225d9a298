"""The same cells in every layout, built from the bytes that `blocks` documents, and naive sums to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cbmm_spark.kernels.cells import Block
from cbmm_spark.packing.tile_codec import decode

LAYOUTS = ("bits", "counts", "scores", "sparse_bits", "sparse_scores")
"""Layouts that hold one attempt a cell; `counts`, `scores` and `sparse_scores` hold more."""


def cells_of(attempts: np.ndarray, successes: np.ndarray, layout: str) -> Any:
    """Cells of counts given models × items (as the oracle takes them)."""
    n, k = np.ascontiguousarray(attempts.T), np.ascontiguousarray(successes.T)
    if layout == "bits":
        seen, solved = (np.packbits(plane > 0, axis=1, bitorder="little").tobytes() for plane in (n, k))
        return decode("bits", b"" if (n == 1).all() else seen, solved, *n.shape)
    if layout in ("counts", "scores"):
        return decode(layout, n.astype("<u2").tobytes(), k.astype("<u2" if layout == "counts" else "<f8").tobytes(),
                      *n.shape)  # fmt: skip
    item, model = np.nonzero(n)
    start = np.zeros(n.shape[0] + 1, dtype="<i8")
    np.cumsum((n > 0).sum(axis=1), out=start[1:])
    where = start.tobytes() + model.astype("<i4").tobytes()
    if layout == "sparse_bits":
        return decode(layout, where, k[item, model].astype(np.uint8).tobytes(), *n.shape)
    values = n[item, model].astype("<u2").tobytes() + k[item, model].astype("<f8").tobytes()
    return decode(layout, where, values, *n.shape)


def blocks_of(
    attempts: np.ndarray,
    successes: np.ndarray,
    layout: str = "bits",
    items_per_block: int = 1_000_000,
    benchmark: str = "b",
) -> list[Block]:
    """Item blocks of counts (models × items); columns without any response are left out, as packing does."""
    blocks = []
    for start in range(0, attempts.shape[1], items_per_block):
        part = slice(start, start + items_per_block)
        models = np.flatnonzero(attempts[:, part].any(axis=1))
        blocks.append(Block(benchmark, cells_of(attempts[models, part], successes[models, part], layout), models))
    return blocks


def drawn(
    n_models: int, n_items: int, seed: int, observed: float = 1.0, attempts: int = 1, fractional: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Responses of a 2PL as counts (attempts, successes), models × items."""
    rng = np.random.default_rng(seed)
    theta, a, b = rng.normal(size=n_models), rng.lognormal(0.0, 0.4, n_items), rng.normal(0.2, 1.0, n_items)
    p = 1.0 / (1.0 + np.exp(-(np.outer(theta, a) + b)))
    n = (rng.random(p.shape) < observed) * rng.integers(1, attempts + 1, p.shape)
    k = rng.binomial(n, p).astype(float)
    if fractional:
        k = np.where(n > 0, np.clip(k + rng.uniform(-0.5, 0.5, p.shape) * (rng.random(p.shape) < 0.3), 0, n), 0.0)
    return n.astype(float), k


def dense_of(cells: Any) -> tuple[np.ndarray, np.ndarray]:
    """(attempts, successes) of any cells, items × models, read cell by cell."""
    from cbmm_spark.packing.tile_codec import cell_list

    n, k = np.zeros((cells.n_items, cells.n_models)), np.zeros((cells.n_items, cells.n_models))
    item, model, attempts, successes = cell_list(cells)
    n[item, model], k[item, model] = attempts, successes
    return n, k


def stacked(blocks: Sequence[Block], n_models: int) -> tuple[np.ndarray, np.ndarray]:
    """(attempts, successes) of blocks, models × items."""
    parts = []
    for block in blocks:
        n, k = dense_of(block.cells)
        full = np.zeros((2, n_models, n.shape[0]))
        full[0, block.models], full[1, block.models] = n.T, k.T
        parts.append(full)
    joined = np.concatenate(parts, axis=2)
    return joined[0], joined[1]
