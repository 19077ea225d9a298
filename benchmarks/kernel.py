"""Nanoseconds per cell and iteration on one core, against the floor: unpack the bits and one float32 product."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.common import best_of, largest_rise, report, simulated
from cbmm_spark.kernels.aggregate import Mode, ScaleTask
from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit
from cbmm_spark.kernels.block_products import ITEM_PIECE, MODEL_PIECE, pieces
from cbmm_spark.kernels.cells import Block, Workspace
from cbmm_spark.kernels.in_process import fit_blocks, run_blocks

SHAPES = ((2_000, 10_000, 0.0), (2_000, 10_000, 0.05), (2_000, 10_000, 0.5), (10_000, 2_000, 0.05), (500, 20_000, 0.05))
MODES: tuple[Mode, Mode] = ("nodes", "late")
ONE = {"suite": frozenset(["suite"])}


def run() -> None:
    """Print and write the figures."""
    rows = [_measure(*shape) for shape in SHAPES]
    report(
        "kernel",
        "kernel, one core: nanoseconds per cell and iteration (floor: unpack both planes, one product with 32 columns)",
        rows,
    )


def _measure(n_models: int, n_items: int, missing: float) -> dict[str, Any]:
    _, blocks = simulated(n_models, n_items, missing)
    cells = n_models * n_items
    floor = best_of(lambda: _floor(blocks)) / cells * 1e9
    fit, seconds = None, float("inf")
    for _ in range(3):
        began = time.perf_counter()
        fit = fit_blocks(blocks, ONE, n_models, options=LoopOptions())["suite"]
        seconds = min(seconds, time.perf_counter() - began)
    assert fit is not None
    nodes, late = (_nanoseconds(blocks, _task(fit, mode), cells) for mode in MODES)
    mean = seconds / fit.iteration / cells * 1e9
    return {
        "models x items": f"{n_models} x {n_items}",
        "missing": missing,
        "floor": floor,
        "node iteration": nodes,
        "late iteration": late,
        "mean of the fit": mean,
        "mean / floor": mean / floor,
        "iterations": fit.iteration,
        "largest rise": largest_rise(fit),
        "seconds": seconds,
        "converged": fit.converged,
    }


def _nanoseconds(blocks: list[Block], task: ScaleTask, cells: int) -> float:
    return best_of(lambda: run_blocks(blocks, [task]), 3) / cells * 1e9


def _task(fit: ScaleFit, mode: Mode) -> ScaleTask:
    return ScaleTask(fit.name, fit.benchmarks, fit.models, fit.theta, fit.nodes, fit.ridge, mode)


def _floor(blocks: list[Block]) -> None:
    """Read every cell once: unpack what is stored, multiply the successes with 32 columns."""
    n_models = blocks[0].cells.n_models
    weights = np.ones((n_models, 32), dtype=np.float32)
    memory = Workspace(ITEM_PIECE * (MODEL_PIECE + 8))
    for block in blocks:
        cells = block.cells
        out = np.zeros((cells.n_items, 32))
        for items in pieces(cells.n_items, ITEM_PIECE):
            for models in pieces(n_models, MODEL_PIECE):
                if not cells.is_complete:
                    cells.attempts_of(items, models, memory)  # type: ignore[union-attr]
                out[items] += cells.successes_of(items, models, memory) @ weights[models]  # type: ignore[union-attr]
