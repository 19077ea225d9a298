"""Recovery of the truth as in the paper's simulations, beside L-BFGS-B and plain accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import lbfgsb
from benchmarks.common import report
from benchmarks.exactness import blocks_of
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.simulation.generator import draw_matrix
from cbmm_spark.simulation.recovery import accuracy_agreement, compare_with_truth
from tests.reference import Parameters

SIZES = (100, 200, 500, 1_000, 2_000)
MECHANISMS = (("complete", 0.0), ("mcar", 0.3), ("mar", 0.3), ("mnar", 0.3))
ONE = {"suite": frozenset(["suite"])}


def run() -> None:
    """Print and write the figures."""
    rows = [_measure(size, mechanism, missing) for size in SIZES for mechanism, missing in MECHANISMS]
    report("recovery", "recovery at N = J: RMSE (standardised) and Spearman of ability, discrimination, easiness", rows)


def _measure(size: int, mechanism: str, missing: float) -> dict[str, Any]:
    named = "mcar" if mechanism == "complete" else mechanism
    attempts, successes, world = draw_matrix(size, size, 3, missing=missing, mechanism=named)
    blocks = blocks_of(attempts.astype(float), successes.astype(float))
    fit = fit_blocks(blocks, ONE, size)["suite"]
    solved = [item_solution(block, fit) for block in blocks]
    a, b = (np.concatenate([getattr(part, name) for part in solved]) for name in ("a", "b"))
    rival = lbfgsb.fit(np.ascontiguousarray((2 * successes.astype(np.int8) - 1) * attempts.astype(np.int8)), fit.ridge)
    truth = Parameters(world.theta, world.items.a, world.items.b)
    ours = compare_with_truth(Parameters(fit.theta, a, b), truth)
    theirs = compare_with_truth(Parameters(rival.theta, rival.a, rival.b), truth)
    plain = accuracy_agreement(attempts, successes, world.theta)
    row: dict[str, Any] = {"N = J": size, "missing": mechanism}
    for name, short in (("theta", "theta"), ("a", "a"), ("b", "b")):
        row[f"{short} rmse"] = getattr(ours, name).rmse
        row[f"{short} rmse L-BFGS-B"] = getattr(theirs, name).rmse
        row[f"{short} rho"] = getattr(ours, name).spearman
        row[f"{short} rho L-BFGS-B"] = getattr(theirs, name).spearman
    row["accuracy rmse"], row["accuracy rho"] = plain.rmse, plain.spearman
    return row
