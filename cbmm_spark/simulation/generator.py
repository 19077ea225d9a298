"""Simulated leaderboards with known truth, of any size.

A :class:`World` holds every true parameter; :func:`draw_tile` and :func:`draw_block` turn any part of it into
responses. They follow P(correct) = 1 / (1 + exp(−(θ_i a_j + b_j)/σ)), a ≥ 0, except for what real leaderboards also
contain: models that solve everything or nothing, items with a reversed key, items that copy another one.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.simulation.missing import MECHANISMS, Mechanism, with_missing
from cbmm_spark.simulation.tiles import (
    DUPLICATE,
    ITEM_KINDS,
    MISKEYED,
    REGULAR,
    UNINFORMATIVE,
    FloatArray,
    Items,
    PackedBlock,
    Tile,
    World,
    draw_block,
    draw_counts,
    draw_tile,
    iterate_tiles,
    standardised,
    stream,
)

__all__ = [
    "DISCRIMINATIONS",
    "DUPLICATE",
    "ITEM_KINDS",
    "MECHANISMS",
    "MISKEYED",
    "REGULAR",
    "UNINFORMATIVE",
    "Discrimination",
    "Items",
    "Mechanism",
    "PackedBlock",
    "Releases",
    "Tile",
    "World",
    "build_world",
    "draw_block",
    "draw_counts",
    "draw_history",
    "draw_items",
    "draw_matrix",
    "draw_tile",
    "draw_world",
    "iterate_tiles",
    "split_items",
    "with_missing",
]

Discrimination = Literal["lognormal", "uniform"]
DISCRIMINATIONS: tuple[Discrimination, ...] = ("lognormal", "uniform")


class Releases(NamedTuple):
    """Models of a leaderboard in order of release.

    Attributes
    ----------
    theta
        Ability (n_models,), mean 0 and standard deviation 1.
    day
        Days since the start of the history (n_models,), ascending.
    family
        Number of the family (n_models,), 0 … n_families − 1.
    """

    theta: FloatArray
    day: FloatArray
    family: NDArray[np.intp]


def draw_history(
    n_models: int, seed: int, *, days: float = 548.0, n_families: int | None = None, trend: float = 2.0
) -> Releases:
    """Draw the models of a leaderboard: abilities rise with the release date, and families share a level.

    Parameters
    ----------
    n_models
        How many, ≥ 1.
    seed
        Any non-negative integer.
    days
        Length of the history.
    n_families
        By default one family for eight models.
    trend
        Rise of the mean ability over the whole history, in standard deviations of the models around the trend.
    """
    rng = stream(seed, "history")
    families = max(1, n_models // 8) if n_families is None else n_families
    day = np.sort(days * rng.random(n_models) ** 0.8)  # submissions become a little more frequent
    family = rng.integers(families, size=n_models)
    level = rng.normal(0.0, 0.6, families)
    theta = trend * day / days + level[family] + rng.normal(0.0, 0.8, n_models)
    return Releases(standardised(theta), day, family)


def split_items(n_items: int, n_benchmarks: int, seed: int) -> NDArray[np.intp]:
    """Split items over benchmarks of unequal size, at least one each: sizes (n_benchmarks,) that add up to n_items."""
    if not 1 <= n_benchmarks <= n_items:
        raise ValueError(f"{n_items} items cannot fill {n_benchmarks} benchmarks")
    share = stream(seed, "sizes").dirichlet(np.full(n_benchmarks, 6.0)) * (n_items - n_benchmarks)
    sizes = np.floor(share).astype(np.intp) + 1
    largest_rest = np.argsort(np.floor(share) - share, kind="stable")
    sizes[largest_rest[: n_items - sizes.sum()]] += 1
    return sizes


def draw_items(
    sizes: NDArray[np.intp],
    seed: int,
    *,
    discrimination: Discrimination = "lognormal",
    uninformative: float = 0.0,
    duplicates: float = 0.0,
    miskeyed: float = 0.0,
    benchmark_spread: float = 0.6,
) -> Items:
    """Draw the items of all benchmarks.

    Parameters
    ----------
    sizes
        Items of each benchmark (n_benchmarks,).
    seed
        Any non-negative integer.
    discrimination
        ``lognormal``: exp N(0, 0.5); ``uniform``: U(0.2, 2). Times the benchmark's own factor.
    uninformative, duplicates, miskeyed
        Shares of the items, rounded to whole items: discrimination exactly 0; copies of a regular item of the same
        benchmark; reversed key. No item is two of these.
    benchmark_spread
        Standard deviation of the benchmarks' mean easiness, and half that of the logarithm of their discrimination
        factor. 0: all benchmarks alike, b ~ N(0, 1).

    Raises
    ------
    ValueError
        If the shares leave a benchmark without a regular item to copy.
    """
    rng = stream(seed, "items")
    n_benchmarks, n_items = len(sizes), int(sizes.sum())
    benchmark = np.repeat(np.arange(n_benchmarks), sizes)
    counts = [round(share * n_items) for share in (uninformative, duplicates, miskeyed)]
    if sum(counts) > n_items:
        raise ValueError("the shares of uninformative, duplicate and miskeyed items add up to more than 1")
    a = rng.lognormal(0.0, 0.5, n_items) if discrimination == "lognormal" else rng.uniform(0.2, 2.0, n_items)
    a *= np.exp(rng.normal(0.0, 0.5 * benchmark_spread, n_benchmarks))[benchmark]
    b = rng.normal(0.0, 1.0, n_items) + rng.normal(0.0, benchmark_spread, n_benchmarks)[benchmark]

    kind = np.full(n_items, REGULAR, dtype=np.int8)
    special = np.split(rng.permutation(n_items)[: sum(counts)], np.cumsum(counts)[:-1])
    for which, chosen in zip((UNINFORMATIVE, DUPLICATE, MISKEYED), special, strict=True):
        kind[chosen] = which
    a[kind == UNINFORMATIVE] = 0.0
    source = np.arange(n_items)
    for bench in np.unique(benchmark[kind == DUPLICATE]):
        here = benchmark == bench
        copies, originals = np.flatnonzero(here & (kind == DUPLICATE)), np.flatnonzero(here & (kind == REGULAR))
        if not len(originals):
            raise ValueError(f"benchmark {bench} has no regular item that a duplicate could copy")
        source[copies] = rng.choice(originals, len(copies))
    return Items(a[source], b[source], benchmark, kind, source)


def build_world(
    theta: FloatArray, items: Items, seed: int, *, sigma: float = 1.0, perfect: int = 0, hopeless: int = 0
) -> World:
    """Put models and items together, without missing responses.

    ``perfect`` and ``hopeless`` models, chosen at random, solve every item or none. Their abilities have no finite
    value; they are set to one standard deviation beyond the best and below the worst of the others.
    """
    n_models = len(theta)
    if perfect + hopeless > n_models:
        raise ValueError(f"{perfect} perfect and {hopeless} hopeless models are more than {n_models}")
    chosen = stream(seed, "forced").permutation(n_models)
    forced = np.zeros(n_models, dtype=np.int8)
    forced[chosen[:perfect]] = 1
    forced[chosen[perfect : perfect + hopeless]] = -1
    theta = theta.copy()
    others, step = theta[forced == 0], float(theta.std()) or 1.0
    highest, lowest = (others.max(), others.min()) if len(others) else (0.0, 0.0)
    theta[forced == 1], theta[forced == -1] = highest + step, lowest - step
    run = np.ones((n_models, int(items.benchmark.max()) + 1), dtype=np.bool_)
    return World(theta, items, float(sigma), seed, forced, None, np.zeros(len(items.a), dtype=np.bool_), run)


def draw_world(
    n_models: int,
    n_items: int,
    seed: int,
    *,
    sigma: float = 1.0,
    mechanism: Mechanism = "mcar",
    missing: float = 0.0,
    discrimination: Discrimination = "uniform",
    uninformative: float = 0.1,
    duplicates: float = 0.0,
    miskeyed: float = 0.0,
    n_benchmarks: int = 1,
    not_run: float = 0.0,
    perfect: int = 0,
    hopeless: int = 0,
) -> World:
    """Draw a world for tests and benchmarks: θ and b standard normal, a as in :func:`draw_items`, all from one seed."""
    theta = stream(seed, "abilities").normal(size=n_models)
    items = draw_items(
        split_items(n_items, n_benchmarks, seed),
        seed,
        discrimination=discrimination,
        uninformative=uninformative,
        duplicates=duplicates,
        miskeyed=miskeyed,
        benchmark_spread=0.0 if n_benchmarks == 1 else 0.6,
    )
    world = build_world(theta, items, seed, sigma=sigma, perfect=perfect, hopeless=hopeless)
    if missing == 0.0 and not_run == 0.0:
        return world
    return with_missing(world, mechanism, missing, not_run=not_run)


def draw_matrix(
    n_models: int, n_items: int, seed: int, *, attempts: int = 1, **options: Any
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], World]:
    """Return attempts and successes (n_models, n_items) and the truth; options as in :func:`draw_world`."""
    world = draw_world(n_models, n_items, seed, **options)
    return (*draw_counts(world, attempts), world)
