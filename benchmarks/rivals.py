"""The whole fit in one process against scaled L-BFGS-B and the paper's recurrence, on the same data and penalty."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks import lbfgsb
from benchmarks.common import dense_of, report, simulated
from cbmm_spark.kernels.in_process import fit_blocks
from tests import reference

SHAPES = ((500, 1_000, 0.0), (2_000, 2_000, 0.0), (2_000, 10_000, 0.0), (2_000, 10_000, 0.05), (2_000, 10_000, 0.3))
ONE = {"suite": frozenset(["suite"])}


def run() -> None:
    """Print and write the figures."""
    rows = [_measure(*shape) for shape in SHAPES]
    report(
        "rivals",
        "fit in process, one core: seconds, and objective relative to L-BFGS-B "
        "(paper: its own stopping rule, with the same penalty)",
        rows,
    )


def _measure(n_models: int, n_items: int, missing: float) -> dict[str, Any]:
    _, blocks = simulated(n_models, n_items, missing)
    fit, seconds = None, float("inf")
    for _ in range(3):
        began = time.perf_counter()
        fit = fit_blocks(blocks, ONE, n_models)["suite"]
        seconds = min(seconds, time.perf_counter() - began)
    assert fit is not None
    attempts, successes = dense_of(blocks)
    y = (2 * successes - 1) * attempts
    rival = lbfgsb.fit(np.ascontiguousarray(y), fit.ridge)
    began = time.perf_counter()
    paper = reference.fit(attempts, successes, 1.0, reference.Ridge(*_weights(fit.ridge)), tolerance=1e-4)
    paper_seconds = time.perf_counter() - began
    return {
        "models x items": f"{n_models} x {n_items}",
        "missing": missing,
        "seconds": seconds,
        "L-BFGS-B s": rival.seconds,
        "L-BFGS-B / fit": rival.seconds / seconds,
        "paper s": paper_seconds,
        "paper / fit": paper_seconds / seconds,
        "objective vs L-BFGS-B": fit.objective / rival.objective - 1.0,
        "paper vs L-BFGS-B": paper.objective / rival.objective - 1.0,
        "iterations": fit.iteration,
        "evaluations": rival.evaluations,
        "sweeps": paper.sweeps,
        "converged": fit.converged,
    }


def _weights(ridge: Any) -> tuple[float, float, float]:
    return ridge.ability, ridge.discrimination, ridge.easiness
