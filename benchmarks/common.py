"""What the benchmarks share: timing, data in blocks, tables on the terminal, results as JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.cells import BitCells, Block
from cbmm_spark.simulation.generator import World, draw_block, draw_world

RESULTS = Path(__file__).parent / "results"
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
ITEMS_PER_BLOCK = 1024


def best_of(function: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest of several wall-clock times, in seconds: the machines are shared and noisy."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def largest_rise(fit: ScaleFit) -> float:
    """Return by how much of itself the recorded objective rose at most between two accepted iterations."""
    accepted = [record.objective for record in fit.history if record.accepted]
    return max([0.0] + [(after - before) / abs(before) for before, after in pairwise(accepted)])


def simulated(n_models: int, n_items: int, missing: float, seed: int = 1) -> tuple[World, list[Block]]:
    """Return a simulated world and its responses as item blocks, packed."""
    world = draw_world(n_models, n_items, seed, missing=missing, discrimination="uniform")
    blocks = []
    for start in range(0, n_items, ITEMS_PER_BLOCK):
        drawn = draw_block(world, slice(start, min(start + ITEMS_PER_BLOCK, n_items)))
        attempted = None if missing == 0.0 else drawn.attempted
        blocks.append(Block("suite", BitCells(attempted, drawn.solved, n_models), np.arange(n_models), start + 1))
    return world, blocks


def dense_of(blocks: Sequence[Block]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return attempts and successes of bit blocks as (n_models, n_items) arrays, for rivals that need them."""
    attempts, successes = [], []
    for block in blocks:
        cells = block.cells
        assert isinstance(cells, BitCells)
        solved = np.unpackbits(cells.solved, axis=1, bitorder="little", count=cells.n_models).view(np.int8)
        successes.append(solved)
        attempts.append(
            np.ones_like(solved)
            if cells.attempted is None
            else np.unpackbits(cells.attempted, axis=1, bitorder="little", count=cells.n_models).view(np.int8)
        )
    return np.ascontiguousarray(np.concatenate(attempts).T), np.ascontiguousarray(np.concatenate(successes).T)


def report(name: str, title: str, rows: Sequence[Mapping[str, Any]], notes: Mapping[str, Any] | None = None) -> None:
    """Print a table and write it, with the machine it was measured on, to benchmarks/results/<name>.json."""
    print(f"\n{title}")
    if rows:
        columns = list(rows[0])
        cells = [[_text(row.get(column)) for column in columns] for row in rows]
        widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
        print("  ".join(column.rjust(width) for column, width in zip(columns, widths, strict=True)))
        for line in cells:
            print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for key, value in (notes or {}).items():
        print(f"{key}: {_text(value)}")
    RESULTS.mkdir(exist_ok=True)
    document = {"benchmark": name, "machine": machine(), "rows": list(rows), "notes": dict(notes or {})}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, default=float) + "\n")


def machine() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    blas = [f"{info['internal_api']} {info['version']} {info.get('architecture', '')}" for info in threadpool_info()]
    load = os.getloadavg()[0]
    return {
        "cores": os.cpu_count(),
        "load": round(load, 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "-" if value is None else ("yes" if value else "no")
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{number:.3g}" if abs(number) < 1e-3 or abs(number) >= 1e6 else f"{number:.4g}"
    return str(value)
