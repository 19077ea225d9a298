"""Nine nights with stronger models and changed items: how far an unchanged model drifts, unlinked and linked.

Every night brings 2 % new models, each night's stronger than the last one's, and 1 % of the items change: all models
but the tracked ones answer them anew, with another easiness. The tracked models never answered an item that changes,
so their answers are the same every night; whatever moves their ability is the scale and the items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import report
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.cells import BitCells, Block
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.linking import Bank, Method, curve_differences, link_items, quantiles
from cbmm_spark.kernels.model import IDENTITY, sigmoid, standard_gauge
from cbmm_spark.kernels.statistics import ability_errors

NIGHTS, MODELS, ITEMS, TRACKED = 9, 500, 2_000, 20
NEW, CHANGED, MOVED = 0.02, 0.01, 1.5
SEED = 20260511

Bits = NDArray[np.bool_]


@dataclass
class Night:
    """One night's fit on its own standardised scale."""

    fit: ScaleFit
    bank: Bank
    theta: NDArray[np.float64]
    error: NDArray[np.float64]


def run() -> None:
    """Print and write the figures."""
    rows, notes = simulate()
    report("linking", f"drift of {TRACKED} unchanged models over {NIGHTS} nights, in standard errors", rows, notes)


def simulate(
    models: int = MODELS, items: int = ITEMS, nights: int = NIGHTS, tracked: int = TRACKED, seed: int = SEED
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return one row a night, and the figures over all nights."""
    rng = np.random.default_rng(seed)
    per_night, changed_per_night = round(NEW * models), round(CHANGED * items)
    total = models + (nights - 1) * per_night
    night_of = np.concatenate([np.zeros(models), 1 + np.arange(total - models) // per_night]).astype(int)
    theta = rng.normal(0.0, 1.0, total) + np.where(night_of > 0, 1.0 + 0.15 * night_of, 0.0)
    a, b = rng.lognormal(0.0, 0.5, items), rng.normal(0.3, 1.2, items)
    change_on = np.full(items, nights)
    changing = rng.permutation(items)[: (nights - 1) * changed_per_night]
    change_on[changing] = 1 + np.arange(changing.size) // changed_per_night
    solved = rng.random((total, items)) < sigmoid(np.outer(theta, a) + b)
    other = b + MOVED * np.where(rng.random(items) < 0.5, 1.0, -1.0)
    again = rng.random((total, items)) < sigmoid(np.outer(theta, a) + other)
    places = (np.linspace(0.05, 0.95, tracked) * (models - 1)).astype(int)
    chosen = np.argsort(theta[:models])[places]
    attempted = rng.random((total, items)) < 0.95
    attempted[np.ix_(chosen, changing)] = False

    first: Night | None = None
    rows, drifts = [], []
    for night in range(nights):
        here = night_of <= night
        is_changed = change_on <= night
        now = _fit(attempted[here], np.where(is_changed, again, solved)[here])
        if first is None:
            first = now
            continue
        row: dict[str, Any] = {"night": night + 1, "models": int(here.sum()), "changed": int(is_changed.sum())}
        unlinked = (now.theta[chosen] - first.theta[chosen]) / first.error[chosen]
        row |= {"unlinked_mean": _mean(unlinked), "unlinked_largest": _largest(unlinked)}
        methods: tuple[Method, ...] = ("stocking-lord", "mean-sigma")
        for method in methods:
            link = link_items(first.bank, now.bank, method, 10)
            linked = (link.gauge.abilities(now.theta)[chosen] - first.theta[chosen]) / first.error[chosen]
            short = "sl" if method == "stocking-lord" else "ms"
            row |= {f"{short}_mean": _mean(linked), f"{short}_largest": _largest(linked)}
            if method == "stocking-lord":
                row |= _named(link.drifted, is_changed, first.bank, Bank(a, np.where(is_changed, other, b), now.bank.n,
                                                                         first.bank.theta), a, b)  # fmt: skip
                row |= {"slope": link.slope, "intercept": link.intercept}
                drifts.append((unlinked, linked))
        rows.append(row)
    unlinked, linked = (np.concatenate(parts) for parts in zip(*drifts, strict=True))
    notes = {
        "unlinked drift of an unchanged model, root mean square, SE": float(np.sqrt(np.mean(unlinked**2))),
        "linked drift of an unchanged model, root mean square, SE": float(np.sqrt(np.mean(linked**2))),
        "linked drift, largest mean of a night, SE": float(max(abs(row["sl_mean"]) for row in rows)),
        "linked drift, largest of any model and night, SE": float(np.abs(linked).max()),
        "precision of drifted items, all nights": sum(r["true"] for r in rows) / max(sum(r["named"] for r in rows), 1),
        "recall of items changed by more than 0.1 in probability": sum(r["clear_named"] for r in rows)
        / max(sum(r["clear"] for r in rows), 1),
        "recall of all changed items": sum(r["true"] for r in rows) / max(sum(r["changed"] for r in rows), 1),
    }
    return rows, notes


def _fit(attempted: Bits, solved: Bits) -> Night:
    n, k = (np.packbits(x.T, axis=1, bitorder="little") for x in (attempted, solved & attempted))
    block = Block("b", BitCells(n, k, attempted.shape[0]), np.arange(attempted.shape[0]))
    fit = fit_blocks([block], {"b": frozenset("b")}, attempted.shape[0])["b"]
    gauge = standard_gauge(fit.theta)
    items = item_solution(block, fit)
    theta = gauge.abilities(fit.theta)
    bank = Bank(*gauge.items(items.a, items.b), block.cells.observers.astype(np.float64), quantiles(theta))
    return Night(fit, bank, theta, ability_errors(fit.information, fit.ridge.ability) / gauge.stretch)


def _named(drifted: Bits, changed: Bits, first: Bank, now: Bank, a: Any, b: Any) -> dict[str, int]:
    """Count what was named: against all changed items, and against those whose true curve moved by more than 0.1."""
    true = Bank(a, b, first.n, first.theta)
    clear = changed & (curve_differences(true, now, IDENTITY)[0] > 0.1)
    return {
        "named": int(drifted.sum()),
        "true": int((drifted & changed).sum()),
        "clear": int(clear.sum()),
        "clear_named": int((drifted & clear).sum()),
    }


def _mean(x: NDArray[np.float64]) -> float:
    return float(x.mean())


def _largest(x: NDArray[np.float64]) -> float:
    return float(np.abs(x).max())
