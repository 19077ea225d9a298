"""Is it the optimum? Objective against L-BFGS-B, KKT residual, node error, monotone history, and random starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.common import SHARED_DATA, largest_rise, report
from cbmm_spark.kernels.alternation import LoopOptions, ScaleFit
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.packing.tile_codec import decode, encode_cells
from cbmm_spark.simulation.generator import draw_matrix
from tests.oracles import fit_lbfgsb

ONE = {"suite": frozenset(["suite"])}
REAL = (
    "swebench_verified_history", "bridge_multi_benchmark", "mmlu_pro", "chembench", "swebench_pro",
    "misguided_attention", "lsat6", "lsat7",
)  # fmt: skip
STARTS = 5

Matrix = NDArray[np.float64]


def run() -> None:
    """Print and write the figures."""
    real = [_compare(name, *matrices) for name, matrices in _real()]
    report("exactness_real", "real data: the fit against L-BFGS-B on the same penalised objective", real)
    simulated = [_compare(name, *matrices) for name, matrices in _simulated()]
    report("exactness_simulated", "simulated data: the fit against L-BFGS-B", simulated)
    starts = [_starts(name, *matrices) for name, matrices in _real()]
    report("exactness_starts", f"real data: {STARTS} random starts, abilities in standard deviations", starts)


def blocks_of(attempts: Matrix, successes: Matrix, items_per_block: int = 1024) -> list[Block]:
    """Return item blocks of dense counts, shape (n_models, n_items), in the encoding that packing would choose."""
    blocks = []
    for start in range(0, attempts.shape[1], items_per_block):
        n = attempts[:, start : start + items_per_block].T
        k = successes[:, start : start + items_per_block].T
        item, model = np.nonzero(n)
        packed = encode_cells(
            item, model, n[item, model].astype(np.int64), k[item, model], n.shape[0], n.shape[1], 1.0 / 64.0
        )
        cells = decode(packed.encoding, packed.attempted, packed.solved, *n.shape)
        blocks.append(Block("suite", cells, np.arange(n.shape[1]), start + 1))
    return blocks


def _fit(attempts: Matrix, successes: Matrix, sigma: float = 1.0, start: Matrix | None = None) -> ScaleFit:
    begin = None if start is None else {"suite": start}
    options = LoopOptions(max_iterations=500)
    return fit_blocks(
        blocks_of(attempts, successes), ONE, attempts.shape[0], Penalty(), sigma, options, begin
    )["suite"]  # fmt: skip


def _compare(name: str, attempts: Matrix, successes: Matrix, sigma: float = 1.0) -> dict[str, Any]:
    fit = _fit(attempts, successes, sigma)
    ridge = Penalty().of_scale(fit.counts.n_items, fit.models.size)
    oracle = fit_lbfgsb(attempts, successes, sigma, (ridge.ability, ridge.discrimination, ridge.easiness))
    return {
        "data": name,
        "models": attempts.shape[0],
        "items": attempts.shape[1],
        "observed": float(np.count_nonzero(attempts) / attempts.size),
        "sigma": sigma,
        "iterations": fit.iteration,
        "converged": fit.converged,
        "objective": fit.objective,
        "vs L-BFGS-B": fit.objective / oracle.objective - 1.0,
        "kkt": fit.kkt_residual,
        "node error": fit.node_error,
        "largest rise": largest_rise(fit),
    }


def _starts(name: str, attempts: Matrix, successes: Matrix) -> dict[str, Any]:
    rng = np.random.default_rng(20260511)
    reference = _fit(attempts, successes)
    spread = reference.theta.std()
    distances, gaps = [], []
    for _ in range(STARTS):
        fit = _fit(attempts, successes, start=rng.standard_normal(attempts.shape[0]))
        distances.append(float(np.abs(fit.theta - reference.theta).max() / spread))
        gaps.append(fit.objective / reference.objective - 1.0)
    return {
        "data": name,
        "largest distance, sd": max(distances),
        "starts within 1e-4 sd": sum(distance <= 1e-4 for distance in distances),
        "lowest objective": min(gaps),
        "highest objective": max(gaps),
    }


def _real() -> Iterator[tuple[str, tuple[Matrix, Matrix]]]:
    for name in REAL:
        path = SHARED_DATA / f"{name}.parquet"
        if not path.exists():
            print(f"{name}: left out, {path.name} is not in ../shared/data")
            continue
        yield name, matrices(path)


def matrices(path: Path) -> tuple[Matrix, Matrix]:
    """Return attempts and successes of a long Parquet file, shape (n_models, n_items); no score is missing."""
    table = pq.read_table(path)
    score = "score" if "score" in table.column_names else "correct"
    table = table.filter(pc.is_valid(table[score]))
    _, model = np.unique(table["model"].to_numpy().astype(str), return_inverse=True)
    _, item = np.unique(table["item"].to_numpy().astype(str), return_inverse=True)
    shape = (int(model.max()) + 1, int(item.max()) + 1)
    attempts, successes = np.zeros(shape), np.zeros(shape)
    np.add.at(attempts, (model, item), 1.0)
    np.add.at(successes, (model, item), table[score].cast("float64").to_numpy())
    return attempts, successes


def _simulated() -> Iterator[tuple[str, Any]]:
    """Yield a name and (attempts, successes) or (attempts, successes, sigma)."""
    for mechanism in ("mcar", "mar", "mnar"):
        for missing in (0.1, 0.5, 0.9):
            n, k, _ = draw_matrix(300, 600, 7, missing=missing, mechanism=mechanism)
            yield f"{mechanism} {missing:.0%}", (n.astype(float), k.astype(float))
    for sigma in (0.25, 4.0):
        n, k, _ = draw_matrix(300, 600, 8, missing=0.1, sigma=sigma)
        yield f"sigma {sigma:g}", (n.astype(float), k.astype(float), sigma)
    n, k, _ = draw_matrix(300, 600, 9, duplicates=0.3, missing=0.0)
    yield "30 % duplicated items", (n.astype(float), k.astype(float))
    n, k, _ = draw_matrix(300, 600, 9, uninformative=0.5, missing=0.0)
    yield "50 % zero discrimination", (n.astype(float), k.astype(float))
    for shape in ((30, 6_000), (6_000, 30)):
        n, k, _ = draw_matrix(*shape, 10, missing=0.05)
        yield f"{shape[0]} x {shape[1]}", (n.astype(float), k.astype(float))
    n, k, _ = draw_matrix(300, 600, 11, attempts=3, missing=0.2)
    yield "three attempts", (n.astype(float), k.astype(float))
