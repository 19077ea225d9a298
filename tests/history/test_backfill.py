"""A history in the same passes is what a rescore of every date would have published, and what follows from that."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config, GatesConfig, LinkingConfig, PackConfig, RescoreConfig, SolverConfig
from cbmm_spark.errors import ConflictError, GateError, InputError, NotConvergedError
from cbmm_spark.fit.checkpoint import saved_abilities
from cbmm_spark.history.job import BackfillReport, Request, backfill
from cbmm_spark.history.stale_days import stale_days
from cbmm_spark.kernels.linking import LEAST_MODELS
from cbmm_spark.rescoring.job import RunOptions, rescore
from cbmm_spark.runs.claims import start_run
from cbmm_spark.runs.gates import judge_alone
from cbmm_spark.runs.publish import last_published, published
from cbmm_spark.runs.table import RunKey
from cbmm_spark.tables import SPECS, Warehouse
from tests.kernels.layouts import drawn
from tests.spark.helpers import Heard, Matrix, long_table, responses_of
from tests.spark.table_samples import frame, full_row

CONFIG = Config(pack=PackConfig(items_per_block=16), solver=SolverConfig(partitions=2, tolerance=1e-6))
LINKING = replace(CONFIG, linking=LinkingConfig(min_anchors=5), rescore=RescoreConfig(few_responses=1))
DATES = [dt.date(2026, 3, day) for day in (2, 9, 16)]
BEFORE, STILL_BEFORE, LAST = dt.date(2026, 2, 1), dt.date(2026, 2, 8), dt.date(2026, 3, 18)
MODELS, UNDATED, WHOLE, SILENT = 24, 0, 1, 2
RESULTS = ("abilities", "item_parameters", "run_scales")


def evaluated_at(table: pa.Table) -> pa.Array:
    """Days of evaluation: some models at once, some item by item over all dates and beyond, one of unknown date."""
    rng = np.random.default_rng(4)
    model = table.column("model_index").to_numpy() - 1
    benchmark = np.array(table.column("benchmark").to_pylist())
    day = rng.integers(0, 21, MODELS)[model]  # from the first date's week to the days after the last
    straddling = (model % 3 == 0) | (model == SILENT)
    day = np.where(straddling, rng.integers(0, 21, model.size), day)
    day = np.where(model == WHOLE, 0, day)
    day = np.where(benchmark == "y", np.maximum(day, 5), day)  # y begins after the first date
    texts = [
        None if m == UNDATED else (DATES[0] + dt.timedelta(days=int(d) - 1)).isoformat()
        for m, d in zip(model, day, strict=True)
    ]
    return pa.array(texts, pa.string())


def responses() -> pa.Table:
    parts = {}
    for name, size in {"x": 40, "y": 25}.items():
        n, k = drawn(MODELS, size, seed=size, observed=0.9, attempts=2 if name == "y" else 1)
        null = np.zeros_like(n)
        null[:, 3] = 1.0
        null[SILENT] = 1.0
        n[null > 0] = 0.0
        if name == "y":
            n[UNDATED] = 0.0
            null[UNDATED] = 0.0
        parts[name] = Matrix(n, k * (n > 0), null)
    table = long_table(parts)
    return table.set_column(table.schema.get_field_index("day"), "day", evaluated_at(table))


@pytest.fixture(scope="module")
def template(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables, filled as ingest would leave them."""
    root = tmp_path_factory.mktemp("history") / "warehouse"
    warehouse = Warehouse(spark, str(root))
    warehouse.ensure(*(name for name in SPECS if name not in ("quarantine", "ingests")))
    rows = responses_of(spark, responses()).coalesce(2)
    warehouse.append(rows, "responses")
    for name, key in (("models", ["model_id", "model_index"]), ("items", ["benchmark", "item_id", "item_index"])):
        found = rows.select(*key).distinct()
        columns = [
            (F.col(f.name) if f.name in key else F.lit(None)).cast(f.dataType).alias(f.name)
            for f in SPECS[name].schema.fields
        ]
        warehouse.append(found.select(*columns).coalesce(1), name)
    return root


@pytest.fixture
def warehouse(spark: SparkSession, template: Path, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(shutil.copytree(template, tmp_path / "warehouse")))


def fill(warehouse: Warehouse, request: Request, config: Config = CONFIG) -> tuple[BackfillReport, Heard]:
    heard = Heard()
    return backfill(warehouse.spark, warehouse, config, request, heard), heard


class Filled(NamedTuple):
    warehouse: Warehouse
    report: BackfillReport
    heard: Heard


@pytest.fixture(scope="module")
def filled(spark: SparkSession, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A backfill of the three dates, each on its own scale."""
    warehouse = Warehouse(spark, str(shutil.copytree(template, tmp_path_factory.mktemp("filled") / "warehouse")))
    report, heard = fill(warehouse, Request(dates=[LAST, *DATES, STILL_BEFORE, BEFORE], link=False))
    return Filled(warehouse, report, heard)


@pytest.fixture(scope="module")
def one_by_one(spark: SparkSession, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A rescore as of each of the three dates."""
    warehouse = Warehouse(spark, str(shutil.copytree(template, tmp_path_factory.mktemp("single") / "warehouse")))
    for date in DATES:
        config = replace(CONFIG, linking=LinkingConfig(method="off"))
        rescore(spark, warehouse, config, date, Heard(), RunOptions(accept_gates=True))
    return warehouse


@pytest.fixture
def copy_of_filled(filled: Filled, tmp_path: Path) -> Warehouse:
    return Warehouse(filled.warehouse.spark, str(shutil.copytree(filled.warehouse.root, tmp_path / "copy")))


KEYS = {
    "abilities": ["scored_on", "scale", "model_id"],
    "item_parameters": ["scored_on", "scale", "benchmark", "item_id"],
    "run_scales": ["scored_on", "scale"],
}


def rows_of(warehouse: Warehouse, name: str, dates: Iterable[dt.date] = DATES) -> pd.DataFrame:
    """Published rows of some dates, ordered by key."""
    days = warehouse.read("runs").where("status = 'published'").select("run_id", "scored_on")
    found = published(warehouse, name).drop("scored_on").join(days, "run_id").where(F.col("scored_on").isin(*dates))
    return found.toPandas().sort_values(KEYS[name]).reset_index(drop=True).drop(columns="run_id")


def commits(warehouse: Warehouse, name: str) -> int:
    return warehouse.version(name)


# ------------------------------------------------------------------------------------------------ the same
TOLERANCE = {"iterations": np.inf, "node_error": 1e-6, "kkt_residual": 1e-5}


@pytest.mark.parametrize("name", RESULTS)
def test_a_backfill_is_what_a_rescore_of_every_date_writes(filled: Filled, one_by_one: Warehouse, name: str) -> None:
    ours, theirs = rows_of(filled.warehouse, name), rows_of(one_by_one, name)
    pd.testing.assert_frame_equal(ours[KEYS[name]], theirs[KEYS[name]])
    assert set(ours.scored_on) == set(DATES)
    for column in ours.columns:
        a, b = ours[column], theirs[column]
        if column in TOLERANCE:
            assert (np.abs(a - b) <= TOLERANCE[column]).all(), column
        elif a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=2e-4, rtol=2e-4, err_msg=column)
        else:
            pd.testing.assert_series_equal(a, b, check_dtype=False)


def test_the_history_is_one_of_models_that_came_bit_by_bit(filled: Filled) -> None:
    """What the comparison above is worth: models with several states, some of no date, one without any verdict."""
    told = filled.heard.of("history")[0]
    assert told["columns"] > told["models"]
    abilities = rows_of(filled.warehouse, "abilities")
    sizes = abilities[abilities.scale == "x"].pivot(index="model_id", columns="scored_on", values="n_items")
    grown = (sizes[DATES[2]] > sizes[DATES[0]]) & (sizes[DATES[0]] > 0)
    assert grown.sum() >= 4
    assert sizes.loc["model 00001"].nunique() == 1  # no date: counts always
    assert set(abilities[abilities.scored_on == DATES[0]].scale) == {"overall", "x"}
    silent = abilities[abilities.model_id == f"model {SILENT + 1:05d}"]
    assert set(silent.status) == {"no_responses"}
    assert silent.last_evaluated_at.nunique() > 1  # as it stood, too


def test_a_day_on_which_nothing_changed_shows_the_fit_of_the_day_before(filled: Filled) -> None:
    report, heard = filled.report, filled.heard
    assert report.published == (BEFORE, STILL_BEFORE, *DATES, LAST)
    assert report.empty == ()
    assert heard.of("left_out")[0]["responses"] > 0
    # two days see nothing but what has no date, on x alone; so does the third on more of x; from then on three scales
    assert report.fits == 1 + 1 + 3 * 3
    assert len({(run, scale) for run, scale, *_ in heard.iterations}) == report.fits
    for name in ("abilities", "item_parameters"):
        rows = rows_of(filled.warehouse, name, [BEFORE, STILL_BEFORE]).drop(columns="scored_on")
        half = len(rows) // 2
        assert half > 0
        pd.testing.assert_frame_equal(rows[:half].reset_index(drop=True), rows[half:].reset_index(drop=True))


def test_every_table_gets_one_commit_and_every_day_one_file(filled: Filled) -> None:
    for name in ("abilities", "item_parameters", "run_scales", "run_iterations", "run_abilities"):
        assert commits(filled.warehouse, name) == 1, name
    assert commits(filled.warehouse, "runs") == 2  # started, published
    assert len(filled.warehouse.read("item_parameters").inputFiles()) == len(filled.report.published)


def test_the_last_date_is_the_latest_and_later_nights_can_start_from_it(filled: Filled) -> None:
    last = last_published(filled.warehouse)
    assert last is not None
    assert last.scored_on == LAST
    latest = filled.warehouse.read("latest_abilities")
    assert [row[0] for row in latest.select("run_id").distinct().collect()] == [last.run_id]
    saved = saved_abilities(filled.warehouse, last.run_id)
    assert set(saved) == {"overall", "x", "y"}
    _, numbers, theta = saved["x"]
    abilities = published(filled.warehouse, "abilities").where(
        (F.col("scored_on") == F.lit(LAST)) & (F.col("scale") == "x") & F.col("ability").isNotNull()
    )
    shown = {row["model_id"]: row["ability"] for row in abilities.collect()}
    ordered = np.array([shown[f"model {number:05d}"] for number in numbers])
    assert np.corrcoef(ordered, theta)[0, 1] == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------ again
def test_published_days_are_left_alone_unless_they_are_to_be_replaced(copy_of_filled: Warehouse) -> None:
    before = {name: commits(copy_of_filled, name) for name in SPECS if copy_of_filled.exists(name)}
    report, _ = fill(copy_of_filled, Request(dates=DATES))
    assert (report.published, report.kept) == ((), tuple(DATES))
    assert {name: commits(copy_of_filled, name) for name in before} == before


def test_dates_are_put_on_the_scale_in_use(copy_of_filled: Warehouse) -> None:
    before = {name: commits(copy_of_filled, name) for name in SPECS if copy_of_filled.exists(name)}
    plain, plain_items = rows_of(copy_of_filled, "abilities"), rows_of(copy_of_filled, "item_parameters")
    latest = last_published(copy_of_filled)
    assert latest is not None
    report, heard = fill(copy_of_filled, Request(dates=DATES, replace=True), LINKING)
    assert (report.published, report.left_out, report.exit_code) == (tuple(DATES), {}, 0)
    assert last_published(copy_of_filled) == latest  # of a newer day
    assert commits(copy_of_filled, "latest_abilities") == before["latest_abilities"]
    linked = rows_of(copy_of_filled, "abilities")
    # Rows of the runs that were replaced stay until upkeep, where readers, who join on runs, do not see them.
    published = copy_of_filled.read("runs").where("status = 'published'").select("run_id")
    with_rows = copy_of_filled.read("abilities").select("run_id").distinct().join(published, "run_id").count()
    assert published.count() == with_rows == len(DATES) + 3

    # the published run of the nearest other day is the reference; models whose answers grew on are no anchors
    scales = rows_of(copy_of_filled, "run_scales").set_index(["scored_on", "scale"])
    assert len(scales) == 2 + 3 + 3
    assert set(scales.reference_run_id) == set(scales.link_run_id) == {latest.run_id}
    by_models, by_items = scales.n_anchor_models.notna(), scales.n_anchors.notna()
    assert (by_models ^ by_items).all()
    assert by_items[DATES[0], "overall"]  # y came later: nobody's answers on both are what they were
    assert by_models[DATES[2], "x"]
    assert (scales.n_anchor_models[by_models] >= LEAST_MODELS).all()
    assert (scales.n_anchors[by_items] >= LINKING.linking.min_anchors).all()
    assert [event["by_models"] for event in heard.of("linked")] == [by_models.sum()]

    # every ability is on the line that run_scales tells, and probabilities stay
    at = scales.reindex(pd.MultiIndex.from_frame(linked[["scored_on", "scale"]]))
    slope, intercept = at.link_slope.to_numpy(), at.link_intercept.to_numpy()
    np.testing.assert_allclose(linked.ability, slope * plain.ability + intercept, atol=1e-6)
    np.testing.assert_allclose(linked.ability_se, slope * plain.ability_se, atol=1e-6)
    np.testing.assert_array_equal(linked["rank"], plain["rank"])
    items = rows_of(copy_of_filled, "item_parameters")
    at = scales.reindex(pd.MultiIndex.from_frame(items[["scored_on", "scale"]]))
    slope, intercept = at.link_slope.to_numpy(), at.link_intercept.to_numpy()
    np.testing.assert_allclose(items.discrimination * slope, plain_items.discrimination, atol=1e-6)
    np.testing.assert_allclose(items.easiness + items.discrimination * intercept, plain_items.easiness, atol=1e-6)


def test_the_newest_date_is_the_reference_of_the_first_backfill_and_of_what_follows(warehouse: Warehouse) -> None:
    first, _ = fill(warehouse, Request(dates=DATES[:2]), LINKING)
    scales = rows_of(warehouse, "run_scales").set_index(["scored_on", "scale"])
    newest = last_published(warehouse)
    assert newest is not None
    assert set(scales.reference_run_id) == {newest.run_id}
    assert (scales.loc[DATES[1]].link_slope == 1.0).all()
    assert scales.loc[DATES[1]].link_run_id.isna().all()
    assert scales.loc[(DATES[0], "overall"), "n_anchors"] >= 1  # linked to a run of the same job, by items
    second, _ = fill(warehouse, Request(dates=[DATES[2]]), LINKING)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert set(rows_of(warehouse, "run_scales").reference_run_id) == {newest.run_id}


def test_a_scale_that_cannot_be_linked_is_left_out_of_its_date(copy_of_filled: Warehouse) -> None:
    config = replace(LINKING, linking=LinkingConfig(min_anchors=1000))
    report, heard = fill(copy_of_filled, Request(dates=DATES, replace=True), config)
    assert report.published == tuple(DATES)
    assert report.exit_code == 4
    assert "overall" in report.left_out[str(DATES[0])]
    assert "linking.min_anchors = 1000" in report.left_out[str(DATES[0])]["overall"]
    told = {(event["scored_on"], event["scale"]) for event in heard.of("unlinked")}
    assert (DATES[0], "overall") in told
    assert sum("without a scale" in line for line in report.lines()) == len(told)
    for name in RESULTS:
        shown = {(day, scale) for day, scale in rows_of(copy_of_filled, name)[["scored_on", "scale"]].values}
        assert not shown & told
        assert (DATES[2], "x") in shown


def test_a_day_that_another_run_holds_is_not_scored(warehouse: Warehouse) -> None:
    start_run(warehouse, "another", DATES[1], "{}", None)
    with pytest.raises(ConflictError, match="is being scored by run another"):
        fill(warehouse, Request(dates=DATES))
    assert [row["run_id"] for row in warehouse.read("runs").collect()] == ["another"]


def test_a_date_with_models_without_ability_fails_its_gate(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"))
    warehouse.ensure("abilities")
    keys = [RunKey("good", DATES[0]), RunKey("bad", DATES[1])]
    rows = [
        full_row("abilities", run_id=key.run_id, scored_on=key.scored_on, scale=scale, status="ok")
        | ({"ability": None} if (key.run_id, scale) == ("bad", "x") else {})
        for key in keys
        for scale in ("x", "y")
    ]
    warehouse.append(frame(spark, "abilities", *rows), "abilities")
    verdicts = judge_alone(warehouse, keys, GatesConfig())
    verdicts["good"].enforce()
    with pytest.raises(GateError, match="1 models of scale 'x' have status ok and no ability"):
        verdicts["bad"].enforce()


def test_days_whose_past_was_corrected_are_stale_and_scored_again(copy_of_filled: Warehouse) -> None:
    assert stale_days(copy_of_filled).days == ()
    # Of some models only: what changed as a whole could not be put on the old scale, and would be left out.
    some = F.col("model_index") % 5 == 0
    changed = (F.col("benchmark") == "x") & (F.col("score") == 1.0) & some
    between = (F.col("evaluated_at") > F.lit(DATES[0] + dt.timedelta(days=1))) & (
        F.col("evaluated_at") <= F.lit(DATES[1])
    )
    copy_of_filled.delta("responses").update(changed & between, {"score": F.lit(0.0)})
    found = stale_days(copy_of_filled)
    assert found.days == (DATES[1], DATES[2], LAST)
    assert found.unknown == ()
    before = rows_of(copy_of_filled, "abilities")
    report, heard = fill(copy_of_filled, Request(stale=True))
    assert report.published == found.days
    after = rows_of(copy_of_filled, "abilities")
    first = DATES[0]
    pd.testing.assert_frame_equal(after[after.scored_on == first], before[before.scored_on == first])
    # What cannot be put on the old scale any more is left out of its date, and told.
    scales = [set(zip(frame.scored_on, frame.scale, strict=True)) for frame in (before, after)]
    told = {(str(event["scored_on"]), event["scale"]) for event in heard.of("unlinked")}
    assert {(str(day), scale) for day, scale in scales[0] - scales[1]} <= told
    both = before.merge(after, on=["scored_on", "scale", "model_id"], suffixes=("_before", ""))
    assert (both.accuracy - both.accuracy_before).abs().max() > 0.01
    assert stale_days(copy_of_filled).days == ()
    assert fill(copy_of_filled, Request(stale=True))[0].published == ()


def test_without_the_feed_every_day_is_stale_and_that_is_said(copy_of_filled: Warehouse) -> None:
    copy_of_filled.delta("responses").update(F.col("benchmark") == "x", {"score": F.lit(0.0)})
    shutil.rmtree(Path(copy_of_filled.root) / "responses" / "_change_data")
    found = stale_days(copy_of_filled)
    assert found.days == found.unknown == (BEFORE, STILL_BEFORE, *DATES, LAST)


# ------------------------------------------------------------------------------------------------ what cannot be
def test_a_history_that_does_not_converge_leaves_no_results(warehouse: Warehouse) -> None:
    config = Config(pack=CONFIG.pack, solver=SolverConfig(partitions=2, max_iterations=2))
    with pytest.raises(
        NotConvergedError, match=r"none of 2 days can be published; the first one: \d of \d scales did not"
    ):
        fill(warehouse, Request(dates=DATES[:2]), config)
    runs = {row["scored_on"]: row for row in warehouse.read("runs").collect()}
    assert {day: row["status"] for day, row in runs.items()} == dict.fromkeys(DATES[:2], "not_converged")
    assert all(row["error"] and row["finished_at"] for row in runs.values())
    for name in ("abilities", "item_parameters", "latest_abilities"):
        assert warehouse.read(name).isEmpty()
    assert not warehouse.read("run_scales").where("NOT converged").isEmpty()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(first=dt.date(2027, 1, 1), last=dt.date(2027, 2, 1), every="change"), "nothing was evaluated from"),
    ],
)
def test_dates_that_cannot_be_are_told(filled: Filled, request_: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fill(filled.warehouse, request_)
