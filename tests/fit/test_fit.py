"""The stages on Spark against the same blocks in one process, however they are partitioned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from benchmarks.spark_common import last_query, plan_sizes
from cbmm_spark.config.schema import RescoreConfig, ScalesConfig, SolverConfig
from cbmm_spark.fit.fit_scales import fit_scales, loop_options
from cbmm_spark.fit.scales import choose_scales
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.in_process import fit_blocks, item_solution
from cbmm_spark.kernels.model import Penalty
from cbmm_spark.results.published_scale import on_published_scale
from cbmm_spark.results.results import RunFits, RunKey, item_rows, solve_fit_items
from cbmm_spark.spark.scoped import job_description
from tests.kernels.layouts import blocks_of, drawn
from tests.spark.helpers import DAY, Heard, Matrix, tiles_in_memory

MODELS = 45
KEY = RunKey("run", DAY)
SOLVER = SolverConfig()
GROUPS = ScalesConfig(groups={"pair": ("attempts", "plain")})


@pytest.fixture(scope="module")
def parts() -> dict[str, Matrix]:
    """Three benchmarks in several blocks each; most models ran one or two of them; one model ran none."""
    plain, gaps = drawn(MODELS, 50, 1, observed=0.9), drawn(MODELS, 40, 2, observed=0.7)
    attempts = drawn(MODELS, 30, 3, observed=0.8, attempts=3)
    ran = {"plain": np.arange(MODELS) < 35, "gaps": np.arange(MODELS) >= 10, "attempts": np.arange(MODELS) % 3 > 0}
    found = {}
    for name, (n, k) in {"plain": plain, "gaps": gaps, "attempts": attempts}.items():
        mask = (ran[name] & (np.arange(MODELS) != 20))[:, None]
        found[name] = Matrix(n * mask, k * mask)
    return found


@pytest.fixture(scope="module")
def dense(parts: dict[str, Matrix]) -> dict[str, ScaleFit]:
    return in_process(parts)


def in_process(parts: dict[str, Matrix]) -> dict[str, ScaleFit]:
    blocks = [b for name in sorted(parts) for b in dense_blocks(name, parts[name])]
    scales = choose_scales(GROUPS, sorted(parts)).to_fit
    return fit_blocks(blocks, scales, MODELS, Penalty(), SOLVER.sigma, loop_options(SOLVER))


def dense_blocks(name: str, part: Matrix) -> Any:
    layout = "counts" if part.attempts.max() > 1 else "bits"
    return blocks_of(part.attempts, part.successes, layout, 16, name)


@pytest.fixture(scope="module")
def on_spark(spark: SparkSession, parts: dict[str, Matrix]) -> dict[int, dict[str, ScaleFit]]:
    """The fit with 1, 2 and 7 item partitions."""
    return {p: fitted(spark, parts, p) for p in (1, 2, 7)}


def fitted(spark: SparkSession, parts: dict[str, Matrix], partitions: int, **solver: Any) -> dict[str, ScaleFit]:
    with SparkBlocks(spark, tiles_in_memory(spark, parts), partitions) as blocks:
        assert blocks.benchmarks == sorted(parts)
        assert blocks.blocks.rdd.getNumPartitions() == partitions
        scales = choose_scales(GROUPS, blocks.benchmarks)
        return fit_scales(blocks, scales, SolverConfig(**solver), MODELS, None, KEY, Heard())


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_spark_is_dense(on_spark: Any, dense: dict[str, ScaleFit], partitions: int) -> None:
    fits = on_spark[partitions]
    assert list(fits) == ["overall", "pair", "attempts", "gaps", "plain"]
    assert {name: fit.models.size for name, fit in fits.items()} == {
        "overall": 44, "pair": 41, "attempts": 29, "gaps": 34, "plain": 34,
    }  # fmt: skip
    for name, fit in fits.items():
        assert fit.converged
        assert fit.iteration == dense[name].iteration
        np.testing.assert_array_equal(fit.models, dense[name].models)
        np.testing.assert_allclose(fit.theta, dense[name].theta, rtol=0, atol=1e-8)
        np.testing.assert_allclose(fit.information, dense[name].information, rtol=1e-8)
        assert fit.objective == pytest.approx(dense[name].objective, rel=1e-12)
        for count in ("attempts", "successes", "items", "easiness"):
            np.testing.assert_allclose(getattr(fit.counts, count), getattr(dense[name].counts, count), rtol=1e-12)
        assert (fit.counts.n_items, fit.counts.cells) == (dense[name].counts.n_items, dense[name].counts.cells)


def test_counts_are_those_of_the_matrices(on_spark: Any, parts: dict[str, Matrix]) -> None:
    fit = on_spark[2]["pair"]
    both = np.concatenate([parts[b].attempts for b in ("attempts", "plain")], axis=1)
    solved = np.concatenate([parts[b].successes for b in ("attempts", "plain")], axis=1)
    np.testing.assert_array_equal(fit.counts.attempts, both.sum(axis=1)[fit.models])
    np.testing.assert_array_equal(fit.counts.successes, solved.sum(axis=1)[fit.models])
    np.testing.assert_array_equal(fit.counts.items, (both > 0).sum(axis=1)[fit.models])
    assert fit.counts.cells == np.count_nonzero(both)


def test_item_parameters_are_those_of_the_dense_fit(
    spark: SparkSession, parts: dict[str, Matrix], dense: dict[str, ScaleFit]
) -> None:
    names = [(b, f"item {i + 1}", i + 1) for b, part in parts.items() for i in range(part.attempts.shape[1])]
    items = spark.createDataFrame(names, "benchmark string, item_id string, item_index int")
    with SparkBlocks(spark, tiles_in_memory(spark, parts), 2) as blocks:
        scales = choose_scales(GROUPS, blocks.benchmarks)
        rows = item_rows(
            [RunFits(KEY, scales, dense)], items, RescoreConfig(), 1.0, solve_fit_items(blocks, dense, RescoreConfig())
        ).collect()
    found = {(r["scale"], r["benchmark"], r["item_id"]): r for r in rows}
    assert len(rows) == len(found) == 2 * (50 + 30) + 40 + 50 + 30 + 40
    compared = 0
    for scale, fit in dense.items():
        gauge = on_published_scale(fit, RescoreConfig()).gauge
        for benchmark in fit.benchmarks:
            solutions = [item_solution(b, fit) for b in dense_blocks(benchmark, parts[benchmark])]
            a, b = gauge.items(*(np.concatenate([getattr(s, n) for s in solutions]) for n in "ab"))
            k, n = parts[benchmark].successes.sum(axis=0), parts[benchmark].attempts.sum(axis=0)
            for i in np.flatnonzero((k > 0) & (k < n) & (a > 0)):
                row = found[scale, benchmark, f"item {i + 1}"]
                np.testing.assert_allclose([row["discrimination"], row["easiness"]], [a[i], b[i]], atol=1e-8)
                assert row["difficulty"] == pytest.approx(-b[i] / a[i], rel=1e-6)
                assert row["accuracy"] == pytest.approx(k[i] / n[i])
                compared += 1
    assert compared > 200


def test_the_plan_does_not_grow(spark: SparkSession, parts: dict[str, Matrix]) -> None:
    """Case N10: the job of the last iteration is as large as that of the first."""
    before = last_query(spark)
    fits = fitted(spark, parts, 2, anderson_depth=0, tolerance=1e-8)
    sizes = plan_sizes(spark, "iterate", before)
    assert len(sizes) == max(fit.iteration for fit in fits.values()) > 5
    assert len(set(sizes)) == 1


# ------------------------------------------------------------------------------------- what is left behind
@pytest.fixture
def untouched(spark: SparkSession) -> Iterator[None]:
    """Cached data, session settings and the description of jobs are afterwards what they were before."""
    keys = ("spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxRecordsPerBatch")
    context = spark.sparkContext

    def seen() -> tuple[dict[str, str | None], set[int], str | None]:
        settings = {key: spark.conf.get(key, None) for key in keys}
        described = context.getLocalProperty("spark.job.description")
        return settings, set(context._jsc.getPersistentRDDs().keySet()), described

    # Delta describes its own jobs and leaves whatever it found before them, or "" in place of nothing.
    with job_description(spark, "what ran before"):
        before = seen()
        yield
        assert seen() == before


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_behind(spark: SparkSession, parts: dict[str, Matrix]) -> None:
    names = ("spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxRecordsPerBatch")
    before = [spark.conf.get(name, None) for name in names]
    with SparkBlocks(spark, tiles_in_memory(spark, {"gaps": parts["gaps"]}), 2) as blocks:
        assert [spark.conf.get(name, None) for name in names] == before, "set for more than the jobs on the blocks"
        fit_scales(blocks, choose_scales(ScalesConfig(), ["gaps"]), SOLVER, MODELS, None, KEY, Heard())
        assert blocks.blocks.storageLevel.useMemory
    with pytest.raises(RuntimeError, match="with statement"):
        _ = blocks.blocks


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_behind_after_an_exception(spark: SparkSession, parts: dict[str, Matrix]) -> None:
    class StoppedError(Exception):
        pass

    class Stopping(Heard):
        def iteration(self, *values: Any) -> None:
            raise StoppedError

    with pytest.raises(StoppedError), SparkBlocks(spark, tiles_in_memory(spark, {"gaps": parts["gaps"]}), 2) as blocks:
        fit_scales(blocks, choose_scales(ScalesConfig(), ["gaps"]), SOLVER, MODELS, None, KEY, Stopping())


@pytest.mark.usefixtures("untouched")
def test_nothing_is_left_behind_where_blocks_cannot_be_read(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="nowhere"), SparkBlocks(spark, spark.range(3).selectExpr("id AS nowhere"), 2):
        pass


# ------------------------------------------------------------------------------------- workers of their own
CLUSTER = """
import json
import numpy as np
from cbmm_spark.config.schema import ScalesConfig, SolverConfig
from cbmm_spark.fit.spark_blocks import SparkBlocks
from cbmm_spark.fit.fit_scales import fit_scales
from cbmm_spark.results.results import RunKey
from cbmm_spark.fit.scales import choose_scales
from tests.kernels.layouts import drawn
from tests.spark.helpers import DAY, Heard, Matrix, tiles_in_memory
parts = {"x": Matrix(*drawn(40, 50, 4, observed=0.8)), "y": Matrix(*drawn(40, 30, 5, observed=0.9))}
with SparkBlocks(spark, tiles_in_memory(spark, parts), 3) as blocks:
    scales = choose_scales(ScalesConfig(), blocks.benchmarks)
    fits = fit_scales(blocks, scales, SolverConfig(), 40, None, RunKey("r", DAY), Heard())
print("FITS " + json.dumps({name: [fit.converged, fit.theta.tolist()] for name, fit in fits.items()}))
"""


@pytest.mark.cluster
@pytest.mark.slow
def test_two_workers_give_the_dense_fit(run_cluster: Any) -> None:
    done = run_cluster(CLUSTER)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FITS ")]
    assert lines, done.stderr[-3000:]
    found = json.loads(lines[0][5:])
    parts = {"x": Matrix(*drawn(40, 50, 4, observed=0.8)), "y": Matrix(*drawn(40, 30, 5, observed=0.9))}
    blocks = [b for name, part in parts.items() for b in dense_blocks(name, part)]
    scales = choose_scales(ScalesConfig(), sorted(parts)).to_fit
    dense = fit_blocks(blocks, scales, 40, Penalty(), 1.0, loop_options(SolverConfig()))
    assert found.keys() == dense.keys()
    for name, (converged, theta) in found.items():
        assert converged
        np.testing.assert_allclose(theta, dense[name].theta, rtol=0, atol=1e-8)
