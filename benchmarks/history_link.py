"""The dates of a history put on the scale of the last one: by models whose answers did not change, and by items.

Dates are the first N systems of SWE-bench Verified, or of simulated leaderboards of the same size whose models get
better. Figures are root mean square distances of the linked abilities of a date's systems from those at the last date,
and in the simulation from the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.backfill import history_file
from benchmarks.common import report
from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.kernels.cells import BitCells, Block
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.linking import Bank, Method, link_items, link_models, quantiles
from cbmm_spark.kernels.model import F64, IDENTITY, Gauge, sigmoid, standard_gauge

DATES = (4, 8, 15, 30, 59, 100)
MODELS, ITEMS, SEEDS = 152, 500, 12
METHODS: tuple[Method, ...] = ("stocking-lord", "mean-sigma")

Bits = NDArray[np.bool_]


class Date:
    """One date's fit, standardised over the models that neither solve nor fail everything."""

    def __init__(self, solved: Bits) -> None:
        models = solved.shape[0]
        block = Block("b", BitCells(None, np.packbits(solved.T, axis=1, bitorder="little"), models), np.arange(models))
        fit = fit_blocks([block], {"b": frozenset("b")}, models)["b"]
        self.ordinary = np.flatnonzero(solved.any(axis=1) & ~solved.all(axis=1))
        gauge, found = standard_gauge(fit.theta[self.ordinary]), item_solution(block, fit)
        self.theta = gauge.abilities(fit.theta)
        a, b = gauge.items(found.a, found.b)
        constant = ~solved.any(axis=0) | solved.all(axis=0)
        self.bank = Bank(np.where(constant, 0.0, a), b, np.full(a.size, float(models)),
                         quantiles(self.theta[self.ordinary]))  # fmt: skip


def run() -> None:
    """Print and write the figures."""
    path = history_file()
    if path is not None:
        report(
            "history_link", "SWE-bench Verified: distance of linked abilities from those at the last date", real(path)
        )
    report("history_link_simulated", f"{SEEDS} simulated leaderboards: distance of linked abilities from the truth",
           simulated())  # fmt: skip


def real(path: Any) -> list[dict[str, float]]:
    """Return a row a date."""
    rows = pd.read_parquet(path)
    order = rows.groupby("model").date.first().sort_values(kind="stable").index
    return compare(rows.pivot(index="model", columns="item", values="correct").loc[order].to_numpy().astype(bool))


def simulated(seeds: Sequence[int] = range(SEEDS)) -> list[dict[str, float]]:
    """Return a row a date: root mean squares over leaderboards of which the truth is known."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        theta = np.linspace(-1.5, 1.2, MODELS) + rng.normal(0.0, 0.6, MODELS)
        a, b = rng.lognormal(0.2, 0.5, ITEMS), rng.normal(-0.2, 1.8, ITEMS)
        solved = rng.random((MODELS, ITEMS)) < sigmoid(np.outer(theta, a) + b)
        found.append(pd.DataFrame(compare(solved, standard_gauge(theta).abilities(theta))).set_index("systems"))
    mean = (pd.concat([each**2 for each in found]).groupby("systems").mean()) ** 0.5
    return [{str(k): v for k, v in row.items()} for row in mean.reset_index().to_dict("records")]


def compare(solved: Bits, truth: F64 | None = None) -> list[dict[str, float]]:
    """Return a row a date, each the first so many models of `solved` (models x items, oldest first)."""
    last = Date(solved)
    goal = last.theta if truth is None else truth
    least = float(RescoreConfig().few_responses)
    rows = []
    for models in DATES:
        now = Date(solved[:models])
        seen = now.ordinary

        def distance(gauge: Gauge | None, of: NDArray[np.int64] = seen, now: Date = now) -> float:
            return float("nan") if gauge is None else _rms(gauge.abilities(now.theta[of]) - goal[of])

        slope, shift = np.polyfit(now.theta[seen], goal[seen], 1)
        teach, look = seen[::2], seen[1::2]
        row = {
            "systems": float(models),
            "best line": _rms(slope * now.theta[seen] + shift - goal[seen]),
            "models": distance(link_models(last.theta[seen], now.theta[seen])),
            "half of the models": distance(link_models(last.theta[teach], now.theta[teach]), look),
        }
        for method in METHODS:
            for limit, name in ((least, method), (0.0, f"{method}, any answers")):
                link = link_items(last.bank, now.bank, method, limit)
                row[name] = distance(link.gauge if link.anchors.any() else None)
        rows.append(row | {"not linked": distance(IDENTITY)})
    return rows


def _rms(x: F64) -> float:
    return float(np.sqrt(np.mean(x**2)))
