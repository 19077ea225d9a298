"""Growth of the fit on Spark with models, items, observed share, scales and cores."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from benchmarks.common import report
from benchmarks.spark_common import facts, fit_stored, session, stored_blocks
from cbmm_spark.simulation.generator import World, draw_world

SHAPES = (
    (1_000, 10_000, 0.05), (2_000, 10_000, 0.05), (4_000, 10_000, 0.05), (8_000, 10_000, 0.05),
    (2_000, 5_000, 0.05), (2_000, 20_000, 0.05), (2_000, 40_000, 0.05),
    (2_000, 10_000, 0.0), (2_000, 10_000, 0.5), (2_000, 10_000, 0.9), (11_785, 36_259, 0.99),
)  # fmt: skip


def run() -> None:
    """Print and write the figures."""
    rows = []
    for cores in (1, 2):
        with session(cores) as spark:
            fit_stored_once(spark, {"warm": _world(500, 1_000, 0.05)})  # starts the Python workers
            for shape in SHAPES if cores == 2 else SHAPES[1:2]:
                rows.append({"cores": cores, "scales": 1, **fit_stored_once(spark, {"suite": _world(*shape)})})
            if cores == 2:
                four = {f"suite{i}": _world(2_000, 2_500, 0.05, seed=i) for i in range(4)}
                rows.append({"cores": cores, "scales": 5, **fit_stored_once(spark, four)})
    report("growth", "Spark: growth with models, items, observed share, scales and cores; seconds", rows)


def _world(n_models: int, n_items: int, missing: float, seed: int = 1) -> World:
    return draw_world(n_models, n_items, seed, missing=missing, discrimination="uniform")


def fit_stored_once(spark: SparkSession, worlds: dict[str, World]) -> dict[str, Any]:
    """Fit every benchmark by itself and, where there are several, all together."""
    scales = {name: frozenset([name]) for name in worlds}
    if len(worlds) > 1:
        scales["overall"] = frozenset(worlds)
    n_models = max(world.n_models for world in worlds.values())
    n_items = sum(world.n_items for world in worlds.values())
    with stored_blocks(spark, worlds) as tiles:
        fits, seconds = fit_stored(spark, tiles, scales, n_models)
    last = fits[next(reversed(scales))]
    responses = sum(fit.counts.cells for name, fit in fits.items() if name != "overall")
    return {
        "models": n_models,
        "items": n_items,
        "responses": responses,
        **seconds,
        "ns per response and iteration": seconds["iterate"] / last.iteration / responses * 1e9,
        **facts(last),
    }
