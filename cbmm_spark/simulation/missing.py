"""Missing responses for a simulated leaderboard: at random, given what is observed, or given the unseen answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from cbmm_spark.simulation.tiles import (
    MISKEYED,
    TILE_CELLS,
    BoolArray,
    FloatArray,
    World,
    draw_tile,
    standardised,
    stream,
)

Mechanism = Literal["mcar", "mar", "mnar"]
MECHANISMS: tuple[Mechanism, ...] = ("mcar", "mar", "mnar")

_ANCHOR_SHARE = 0.05  # MAR: items nobody misses; their accuracy is what the other responses' absence depends on
_PROBE = 1024  # MNAR: models and items of the sample on which the share is calibrated


def with_missing(
    world: World,
    mechanism: Mechanism,
    share: float,
    *,
    day: FloatArray | None = None,
    not_run: float = 0.0,
    strength: float = 1.0,
) -> World:
    """Return the world with missing responses.

    Parameters
    ----------
    world
        A complete world.
    mechanism
        ``mcar``: every response is missing with the same probability. ``mar``: 5 % of the items are anchors that
        nobody misses; elsewhere the log-odds fall with the model's accuracy on the anchors and with its date, and
        differ between benchmarks; given what is observed, the answer itself plays no part. ``mnar``: the log-odds fall
        with the ability and are higher for an answer that would have been wrong.
    share
        Expected share of missing responses, 0 ≤ share < 1, among the benchmarks that were run.
    day
        Dates of the models (n_models,) for ``mar``; without them the dates play no part.
    not_run
        Share of the (model, benchmark) pairs never run at all; each model keeps at least one benchmark.
    strength
        Scale of all effects on the log-odds; 0 turns every mechanism into ``mcar``.

    Raises
    ------
    ValueError
        If the share cannot be reached (under ``mar`` the anchors always answer).
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the share of missing responses must be in [0, 1), got {share}")
    world = replace(world, run=_draw_runs(world, not_run))
    n_models, n_benchmarks = world.run.shape
    if share == 0.0:
        return replace(world, absence=_float32_probability(np.zeros((n_models, n_benchmarks, 1)), world.run))
    if mechanism == "mcar":
        return replace(world, absence=_float32_probability(np.full((n_models, n_benchmarks, 1), share), world.run))
    if mechanism == "mar":
        return _with_mar(world, share, day, strength)
    if mechanism == "mnar":
        return _with_mnar(world, share, strength)
    raise ValueError(f"unknown mechanism {mechanism!r}: one of {', '.join(MECHANISMS)}")


def _draw_runs(world: World, not_run: float) -> BoolArray:
    n_models, n_benchmarks = world.run.shape
    if not 0.0 <= not_run < 1.0:
        raise ValueError(f"the share of benchmarks not run must be in [0, 1), got {not_run}")
    dropped = round(not_run * n_models * n_benchmarks)
    if dropped > n_models * (n_benchmarks - 1):
        raise ValueError(f"a share of {not_run} leaves models without any of the {n_benchmarks} benchmarks")
    rng = stream(world.seed, "runs")
    order = rng.random((n_models, n_benchmarks))
    order[np.arange(n_models), rng.integers(n_benchmarks, size=n_models)] = np.inf  # everyone keeps one
    run = np.ones(n_models * n_benchmarks, dtype=np.bool_)
    run[np.argsort(order, axis=None, kind="stable")[:dropped]] = False
    return run.reshape(n_models, n_benchmarks)


def _with_mar(world: World, share: float, day: FloatArray | None, strength: float) -> World:
    rng = stream(world.seed, "mar")
    n_benchmarks = world.run.shape[1]
    anchor = np.zeros(world.n_items, dtype=np.bool_)
    anchor[rng.permutation(world.n_items)[: max(1, round(_ANCHOR_SHARE * world.n_items))]] = True
    world = replace(world, anchor=anchor)
    log_odds = -strength * standardised(_anchor_accuracy(world))
    if day is not None:
        log_odds = log_odds - 0.5 * strength * standardised(day)
    effect = log_odds[:, None] + strength * rng.normal(0.0, 0.7, n_benchmarks)
    free = np.bincount(world.items.benchmark[~anchor], minlength=n_benchmarks)
    every = np.bincount(world.items.benchmark, minlength=n_benchmarks)
    cells, target = world.run * free, share * float((world.run * every).sum())
    if target >= cells.sum():
        raise ValueError(f"a share of {share} cannot be missing at random beside {anchor.sum()} anchor items")
    level = _solve(lambda c: float((cells * expit(c + effect)).sum()) - target)
    return replace(world, absence=_float32_probability(expit(level + effect)[:, :, None], world.run))


def _anchor_accuracy(world: World) -> FloatArray:
    """Accuracy of each model on the anchors of the benchmarks it ran (n_models,); 0.5 with none."""
    solved, seen = np.zeros(world.n_models), np.zeros(world.n_models)
    anchors = np.flatnonzero(world.anchor)
    step = max(1, TILE_CELLS // world.n_models)
    complete = replace(world, absence=None)
    for first in range(0, len(anchors), step):
        part = anchors[first : first + step]
        run = world.run[:, world.items.benchmark[part]].T
        solved += (draw_tile(complete, slice(None), part).correct & run).sum(axis=0)
        seen += run.sum(axis=0)
    return (solved + 0.5) / (seen + 1.0)


def _with_mnar(world: World, share: float, strength: float) -> World:
    effect = -0.5 * strength * standardised(world.theta)[:, None] + strength * np.array([0.75, -0.75])
    model = _spread_out(world.n_models)
    item = _spread_out(world.n_items)
    p = _probability(world, model, item)
    weight = world.run[model][:, world.items.benchmark[item]]
    # Expected numbers of wrong and of correct answers of the probed models: all that the share depends on.
    answers = np.stack([((1.0 - p) * weight).sum(axis=1), (p * weight).sum(axis=1)], axis=1)
    target = share * answers.sum()
    level = _solve(lambda c: float((answers * expit(c + effect[model])).sum()) - target)
    absence = np.repeat(expit(level + effect)[:, None, :], world.run.shape[1], axis=1)
    return replace(world, absence=_float32_probability(absence, world.run))


def _probability(world: World, model: NDArray[np.intp], item: NDArray[np.intp]) -> FloatArray:
    """P(scored correct) of some models and items, forced models and reversed keys included (models, items)."""
    p = expit((world.theta[model, None] * world.items.a[item] + world.items.b[item]) / world.sigma)
    p = np.where(world.items.kind[item] == MISKEYED, 1.0 - p, p)
    forced = world.forced[model, None]
    return np.where(forced == 0, p, forced == 1)


def _float32_probability(absence: FloatArray, run: BoolArray) -> NDArray[np.float32]:
    probability = absence.astype(np.float32)
    probability[~run] = 1.0  # a uniform number is below 1: never seen
    return probability


def _solve(excess: Callable[[float], float]) -> float:
    return float(brentq(excess, -60.0, 60.0, xtol=1e-12))


def _spread_out(n: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, n - 1, min(n, _PROBE)).astype(np.intp))
