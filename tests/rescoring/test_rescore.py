"""The whole job on tables: what is published, what odd input gives, what a failed run leaves."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.dataset as dataset
import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, PackConfig, RescoreConfig, ScalesConfig, SolverConfig
from cbmm_spark.errors import GateError, InputError, NotConvergedError
from cbmm_spark.fit import fit_scales as module
from cbmm_spark.fit.checkpoint import saved_abilities
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.model import standard_gauge
from cbmm_spark.rescoring.job import RescoreReport, RunOptions, rescore
from cbmm_spark.runs.publish import last_published, published
from cbmm_spark.tables import SPECS, Warehouse
from tests.kernels.layouts import blocks_of, drawn
from tests.oracles import fit_lbfgsb, load_matrix
from tests.spark.helpers import DAY, Heard, Matrix, collected, store

CONFIG = Config(pack=PackConfig(items_per_block=16), solver=SolverConfig(partitions=2))
ONE_SCALE = Config(pack=PackConfig(items_per_block=16), scales=ScalesConfig(per_benchmark=False))
THIN = Config(pack=PackConfig(items_per_block=16), scales=ScalesConfig(overall=False))
TABLES = ("abilities", "item_parameters", "runs", "run_scales", "run_iterations", "latest_abilities",
          "latest_item_parameters")  # fmt: skip
PERFECT, HOPELESS, SILENT, ONLY_X, ONE_ANSWER = range(5)
SOLVED, UNSOLVED, REVERSED, UNSEEN = range(4)


class Night(NamedTuple):
    """A run and what it heard, read and left."""

    warehouse: Warehouse
    parts: dict[str, Matrix]
    report: RescoreReport
    heard: Heard

    def rows(self, name: str, **where: Any) -> list[Any]:
        return [r for r in collected(self.warehouse, name) if all(r[key] == value for key, value in where.items())]


def leaderboard() -> dict[str, Matrix]:
    """Two benchmarks with every kind of odd model and item."""
    found = {}
    for seed, (name, size) in enumerate({"x": 40, "y": 25}.items(), start=1):
        n, k = drawn(30, size, seed, observed=0.9)
        strength = np.argsort(np.argsort(k.sum(axis=1)))
        if name == "x":
            n[:, [SOLVED, UNSOLVED, REVERSED]] = 1.0
            k[:, SOLVED], k[:, UNSOLVED], k[:, REVERSED] = 1.0, 0.0, strength < 15
        null = np.zeros_like(n)
        null[:, [UNSEEN, size - 1]] = 1.0
        null[SILENT] = 1.0
        n[SILENT], n[ONE_ANSWER] = 0.0, 0.0
        n[ONE_ANSWER, 10] = float(name == "x")
        if name == "y":
            n[ONLY_X], null[ONLY_X] = 0.0, 0.0
        n[null > 0] = 0.0
        keep = n[[PERFECT, HOPELESS]].copy()
        if name == "x":
            keep[0, UNSOLVED], keep[1, SOLVED] = 0.0, 0.0
        n[[PERFECT, HOPELESS]] = keep
        k[PERFECT], k[HOPELESS] = 1.0, 0.0
        found[name] = Matrix(n, k * n, null)
    return found


@pytest.fixture(scope="module")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables, created once: a copy of the folder is the same tables in another place."""
    root = tmp_path_factory.mktemp("template") / "warehouse"
    Warehouse(spark, str(root)).ensure(*(name for name in SPECS if name != "quarantine"))
    return root


@pytest.fixture
def warehouse(spark: SparkSession, empty_tables: Path, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, str(shutil.copytree(empty_tables, tmp_path / "warehouse")))


def score(
    warehouse: Warehouse, parts: dict[str, Matrix], config: Config = CONFIG, as_of: dt.date | None = DAY, **stored: Any
) -> Night:
    store(warehouse, parts, **stored)
    heard = Heard()
    return Night(warehouse, parts, rescore(warehouse.spark, warehouse, config, as_of, heard), heard)


@pytest.fixture(scope="module")
def night(spark: SparkSession, empty_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    root = shutil.copytree(empty_tables, tmp_path_factory.mktemp("night") / "warehouse")
    return score(Warehouse(spark, str(root)), leaderboard())


@pytest.fixture
def copy_of_night(night: Night, tmp_path: Path) -> Warehouse:
    return Warehouse(night.warehouse.spark, str(shutil.copytree(night.warehouse.root, tmp_path / "copy")))


def as_numbers(warehouse: Warehouse, name: str) -> dict[str, np.ndarray]:
    """Columns of floats of a table as another reader of Delta sees them; null is left out."""
    deltalake = pytest.importorskip("deltalake")
    files = deltalake.DeltaTable(warehouse.location(name)).file_uris()
    assert files
    table = dataset.dataset(files, schema=None).to_table()
    doubles = [f.name for f in table.schema if str(f.type) == "double"]
    return {column: table.column(column).drop_null().to_numpy() for column in doubles}


def check_published(night: Night) -> None:
    """No number in any table is NaN or infinite, no discrimination negative, and the run is visible."""
    run = last_published(night.warehouse)
    assert run is not None
    assert (run.run_id, run.scored_on) == (night.report.run_id, DAY)
    for name in TABLES:
        for column, values in as_numbers(night.warehouse, name).items():
            assert np.isfinite(values).all(), f"{name}.{column}"
            if column.startswith("discrimination") or column.endswith("_se"):
                assert (values >= 0).all(), f"{name}.{column}"


# ------------------------------------------------------------------------------------- an ordinary night
def test_everything_published_is_finite_and_read_by_others(night: Night) -> None:
    check_published(night)
    duckdb = pytest.importorskip("duckdb")
    deltalake = pytest.importorskip("deltalake")
    files = deltalake.DeltaTable(night.warehouse.location("latest_abilities")).file_uris()
    best = duckdb.sql(
        f"SELECT model_id, ability, rank FROM read_parquet({files!r}) WHERE scale = 'overall' ORDER BY rank LIMIT 1"
    ).fetchall()
    assert best[0][0] == "model 00001"
    assert best[0][2] == 1
    assert night.report.exit_code == 0
    assert set(night.report.scales) == {"overall", "x", "y"}


def test_every_model_has_a_row_in_its_scales_whether_it_answered_or_not(night: Night) -> None:
    rows = {(r["scale"], r["model_id"]): r for r in night.rows("abilities")}
    assert len(rows) == 30 + 30 + 29
    assert ("y", f"model {ONLY_X + 1:05d}") not in rows
    for scale in ("overall", "x", "y"):
        silent = rows[scale, f"model {SILENT + 1:05d}"]
        assert silent["status"] == "no_responses"
        assert (silent["n_items"], silent["coverage"]) == (0, 0.0)
        for column in ("ability", "ability_se", "ability_lower", "rank", "accuracy", "accuracy_rank", "rank_shift"):
            assert silent[column] is None
    for (scale, model), row in rows.items():
        n = np.concatenate([night.parts[b].attempts for b in ("xy" if scale == "overall" else scale)], axis=1)
        k = np.concatenate([night.parts[b].successes for b in ("xy" if scale == "overall" else scale)], axis=1)
        i = int(model[6:]) - 1
        assert row["n_items"] == n[i].sum()
        assert row["coverage"] == pytest.approx(n[i].sum() / n.any(axis=0).sum())
        if row["n_items"]:
            assert row["accuracy"] == pytest.approx(k[i].sum() / n[i].sum())
            assert row["accuracy_lower"] <= row["accuracy"] <= row["accuracy_upper"]
            assert row["ability_lower"] < row["ability"] < row["ability_upper"]
            assert row["rank_shift"] == row["accuracy_rank"] - row["rank"]
            assert row["first_evaluated_at"] is not None


def test_statuses_and_ranks(night: Night) -> None:
    rows = {r["model_id"]: r for r in night.rows("abilities", scale="overall")}

    def of(i: int) -> Any:
        return rows[f"model {i + 1:05d}"]

    assert of(PERFECT)["status"] == "all_correct"
    assert of(HOPELESS)["status"] == "all_wrong"
    assert of(PERFECT)["rank"] == 1
    assert of(HOPELESS)["rank"] == 29
    assert of(ONE_ANSWER)["status"] in ("few_items", "all_correct", "all_wrong")
    ordinary = [r for r in rows.values() if r["status"] == "ok"]
    assert len(ordinary) == 26
    ability = np.array([r["ability"] for r in ordinary])
    assert ability.mean() == pytest.approx(0.0, abs=1e-9)
    assert ability.std() == pytest.approx(1.0, abs=1e-9)
    typical = np.median([r["ability_se"] for r in ordinary])
    for i in (PERFECT, HOPELESS, ONE_ANSWER):
        assert of(i)["ability_se"] > 1.5 * typical
    answered = [r for r in rows.values() if r["rank"] is not None]
    by_ability = sorted(answered, key=lambda r: -r["ability"])
    assert [r["rank"] for r in by_ability] == sorted(r["rank"] for r in answered)


def test_item_parameters_and_flags(night: Night) -> None:
    rows = {(r["scale"], r["benchmark"], r["item_id"]): r for r in night.rows("item_parameters")}

    def of(item: int, scale: str = "x", benchmark: str = "x") -> Any:
        return rows[scale, benchmark, f"item {item + 1:05d}"]

    for item, reason in ((SOLVED, "all_correct"), (UNSOLVED, "all_wrong"), (REVERSED, "uninformative")):
        for scale in ("x", "overall"):
            row = of(item, scale)
            assert row["is_flagged"]
            assert reason in row["flag_reasons"].split(";")
            assert row["discrimination"] == 0.0
            assert row["difficulty"] is None
            assert row["discrimination_se"] is None
            assert row["easiness_se"] > 0
    assert of(SOLVED)["easiness"] > 1.5
    assert of(UNSOLVED)["easiness"] < -1.5
    unseen = of(UNSEEN)
    assert unseen["n_models"] == 0
    assert unseen["accuracy"] is None
    assert unseen["easiness"] is None
    assert unseen["is_flagged"]
    for row in rows.values():
        assert row["is_flagged"] == (row["flag_reasons"] is not None)
        if row["discrimination"]:
            assert row["difficulty"] == pytest.approx(-row["easiness"] / row["discrimination"])
            assert row["max_information"] == pytest.approx(row["discrimination"] ** 2 / 4)
    regular = [r for r in rows.values() if r["flag_reasons"] is None]
    assert len(regular) > 60


def test_every_item_has_a_row_whether_it_was_answered_or_not(night: Night) -> None:
    found = {(r["benchmark"], r["item_id"]) for r in night.rows("item_parameters", scale="overall")}
    assert found == {(r["benchmark"], r["item_id"]) for r in night.rows("items")}


def test_the_runs_tables_tell_what_was_done(night: Night) -> None:
    (run,) = night.rows("runs")
    assert run["status"] == "published"
    assert run["config"] == CONFIG.as_json()
    assert run["responses_version"] == night.warehouse.version("responses")
    scales = {r["scale"]: r for r in night.rows("run_scales")}
    assert set(scales) == {"overall", "x", "y"}
    iterations = night.rows("run_iterations")
    for name, row in scales.items():
        own = sorted((r for r in iterations if r["scale"] == name), key=lambda r: r["iteration"])
        assert row["converged"]
        assert [r["iteration"] for r in own] == list(range(1, row["iterations"] + 1))
        assert own[-1]["objective"] == pytest.approx(row["objective"], rel=1e-9)
        assert row["log_loss"] < row["accuracy_log_loss"]
        parts = night.parts if name == "overall" else {name: night.parts[name]}
        assert row["n_responses"] == sum(p.attempts.sum() for p in parts.values())
        assert row["n_items"] == sum(p.attempts.any(axis=0).sum() for p in parts.values())
    assert scales["x"]["uninformative_items"] >= 3
    heard = [(scale, iteration) for _, scale, iteration, *_ in night.heard.iterations]
    assert sorted(heard) == sorted((r["scale"], r["iteration"]) for r in iterations)


def test_the_published_objective_is_the_optimum(night: Night) -> None:
    for row in night.rows("run_scales"):
        names = "xy" if row["scale"] == "overall" else row["scale"]
        n, k = (np.concatenate([night.parts[b][i] for b in names], axis=1) for i in (0, 1))
        n, k = n[n.any(axis=1)], k[n.any(axis=1)]
        ridge = (0.25 * row["n_items"] / row["n_models"], 0.25, 0.1)
        assert row["objective"] <= fit_lbfgsb(n, k, 1.0, ridge).objective * (1 + 1e-8)


def test_abilities_are_saved_on_the_way(night: Night) -> None:
    saved = saved_abilities(night.warehouse, night.report.run_id)
    assert set(saved) == {"overall", "x", "y"}
    for scale, (iteration, models, theta) in saved.items():
        rows = {r["model_id"]: r for r in night.rows("abilities", scale=scale) if r["ability"] is not None}
        assert iteration == night.report.scales[scale]["iterations"]
        assert [f"model {m:05d}" for m in models] == sorted(rows)
        ability = np.array([rows[m]["ability"] for m in sorted(rows)])
        assert np.corrcoef(theta, ability)[0, 1] > 1 - 1e-6


# ------------------------------------------------------------------------------------- other nights
def without_run(rows: list[Any]) -> list[Any]:
    kept = [tuple(v for n, v in r.asDict().items() if n not in ("run_id", "seconds")) for r in rows]
    return sorted(kept, key=repr)


def test_permuted_rows_and_a_rerun_give_the_same_tables_once(night: Night, copy_of_night: Warehouse) -> None:
    again = score(copy_of_night, night.parts, shuffled=7)
    assert again.report.run_id != night.report.run_id
    for name in ("abilities", "item_parameters", "run_scales", "latest_abilities", "latest_item_parameters"):
        before, after = night.rows(name), again.rows(name, run_id=again.report.run_id)
        assert len(published(copy_of_night, name).collect()) == len(before) if "latest" not in name else True
        if name == "run_scales":  # means of discriminations are added up in the order in which Spark finds them
            before, after = ([r.asDict() for r in sorted(rows, key=lambda r: r["scale"])] for rows in (before, after))
            for one, other in zip(before, after, strict=True):
                for column in ("discrimination_mean", "discrimination_sd"):
                    assert one.pop(column) == pytest.approx(other.pop(column), rel=1e-12)
                for row in (one, other):  # runs of the same day are never asked: each begins the scale
                    assert row.pop("reference_run_id") == row.pop("run_id")
                assert one == other
            continue
        assert without_run(before) == without_run(after)
    assert [r["run_id"] for r in again.rows("runs", status="published")] == [again.report.run_id]
    check_published(again)


def test_the_next_night_begins_where_the_last_one_ended(night: Night, copy_of_night: Warehouse) -> None:
    heard, cold = Heard(), Heard()
    config = replace(CONFIG, solver=replace(CONFIG.solver, warm_start=False))
    report = rescore(copy_of_night.spark, copy_of_night, CONFIG, DAY + dt.timedelta(days=1), heard)
    assert {e["scale"]: (e["from_run"], e["models"]) for e in heard.of("warm_start")} == {
        scale: (night.report.run_id, facts["models"]) for scale, facts in night.report.scales.items()
    }
    for scale, facts in report.scales.items():
        assert facts["iterations"] <= 3 < night.report.scales[scale]["iterations"]
        assert facts["objective"] == pytest.approx(night.report.scales[scale]["objective"], rel=1e-9)
    again = rescore(copy_of_night.spark, copy_of_night, config, DAY + dt.timedelta(days=1), cold)
    assert not cold.of("warm_start")
    assert again.scales["overall"]["iterations"] == night.report.scales["overall"]["iterations"]


def test_further_starts_keep_the_best_and_the_next_night_starts_from_it(
    copy_of_night: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAME_OPTIMUM", -1.0)  # the second start always wins
    heard = Heard()
    config = replace(CONFIG, solver=replace(CONFIG.solver, starts=2))
    day = DAY + dt.timedelta(days=1)
    report = rescore(copy_of_night.spark, copy_of_night, config, day, heard)
    told = heard.of("start")
    assert {(e["scale"], e["number"]) for e in told} == {("overall", 1), ("x", 1), ("y", 1)}
    assert all(abs(e["relative_gain"]) < 1e-8 for e in told)
    saved = saved_abilities(copy_of_night, report.run_id)
    for scale, (iteration, models, theta) in saved.items():
        assert iteration > report.scales[scale]["iterations"]
        where = f"scale = '{scale}' AND run_id = '{report.run_id}' AND ability IS NOT NULL"
        rows = {r["model_id"]: r["ability"] for r in copy_of_night.read("abilities").where(where).collect()}
        ability = np.array([rows[f"model {m:05d}"] for m in models])
        slope, origin = np.polyfit(theta, ability, 1)
        np.testing.assert_allclose(slope * theta + origin, ability, atol=1e-12)


def test_a_run_that_does_not_converge_publishes_nothing(night: Night, copy_of_night: Warehouse) -> None:
    before = without_run(published(copy_of_night, "abilities").collect())
    config = Config(pack=CONFIG.pack, solver=SolverConfig(max_iterations=1))
    with pytest.raises(NotConvergedError, match=r"solver\.max_iterations") as caught:
        rescore(copy_of_night.spark, copy_of_night, config, DAY, Heard())
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    run = last_published(copy_of_night)
    assert run is not None
    assert run.run_id == night.report.run_id
    assert without_run(published(copy_of_night, "abilities").collect()) == before
    assert {r["run_id"] for r in copy_of_night.read("latest_abilities").collect()} == {night.report.run_id}
    failed = [r for r in copy_of_night.read("runs").collect() if r["run_id"] != night.report.run_id]
    assert [r["status"] for r in failed] == ["not_converged"]
    assert failed[0]["finished_at"] is not None


def test_a_night_makes_one_commit_a_table_and_two_to_runs(night: Night, empty_tables: Path) -> None:
    before = Warehouse(night.warehouse.spark, str(empty_tables))
    made = {name: night.warehouse.version(name) - before.version(name) for name in TABLES}
    assert made == dict.fromkeys(TABLES, 1) | {"runs": 2}


def test_a_night_that_lost_half_of_its_models_is_stopped_and_resumed_when_accepted(
    night: Night, copy_of_night: Warehouse
) -> None:
    half = {name: Matrix(*(plane[:15] for plane in part if plane is not None)) for name, part in night.parts.items()}
    store(copy_of_night, half)
    day = DAY + dt.timedelta(days=1)
    heard = Heard()
    with pytest.raises(GateError, match=r"gate models: scale '\w+' has .* fewer models since run .*--accept-gates"):
        rescore(copy_of_night.spark, copy_of_night, CONFIG, day, heard)
    (told,) = heard.of("gates")
    assert told["compared_with"] == night.report.run_id
    assert len(told["failed"]) >= 6  # models and responses of each scale
    run = last_published(copy_of_night)
    assert run is not None
    assert run.run_id == night.report.run_id
    (stopped,) = (r for r in copy_of_night.read("runs").collect() if r["scored_on"] == day)
    assert (stopped["status"], "gate models" in stopped["error"]) == ("failed", True)
    assert json.loads(stopped["gates"])["findings"][0]["gate"] == "models"

    report = rescore(copy_of_night.spark, copy_of_night, CONFIG, day, heard, RunOptions(accept_gates=True))
    assert {e["scale"]: e["from_run"] for e in heard.of("resumed")} == dict.fromkeys(report.scales, stopped["run_id"])
    assert all(facts["iterations"] <= 3 for facts in report.scales.values())
    assert sum("gate models" in warning for warning in report.warnings) == 3
    (accepted,) = (r for r in copy_of_night.read("runs").collect() if r["run_id"] == report.run_id)
    assert accepted["status"] == "published"
    assert json.loads(accepted["gates"])["accepted"]


def test_an_earlier_day_leaves_later_responses_out(warehouse: Warehouse) -> None:
    n, k = drawn(24, 30, 5, observed=0.9)
    dates = [DAY + dt.timedelta(days=1) if i % 3 == 0 else DAY for i in range(24)]
    found = score(warehouse, {"b": Matrix(n, k)}, ONE_SCALE, dates=dates)
    early = np.array([i % 3 > 0 for i in range(24)])
    assert found.heard.of("left_out")[0]["responses"] == n[~early].sum()
    rows = {r["model_id"]: r["ability"] for r in found.rows("abilities")}
    assert sorted(rows) == [f"model {i + 1:05d}" for i in np.flatnonzero(early)]
    alone = fit_blocks(blocks_of(n[early], k[early], "bits", 16), {"s": frozenset("b")}, int(early.sum()))["s"]
    expected = standard_gauge(alone.theta).abilities(alone.theta)
    np.testing.assert_allclose([rows[m] for m in sorted(rows)], expected, atol=1e-7)
    check_published(found)
    with pytest.raises(InputError, match="no response was evaluated by"):
        rescore(warehouse.spark, warehouse, ONE_SCALE, DAY - dt.timedelta(days=9), Heard())


@pytest.fixture(scope="module")
def thin(spark: SparkSession, empty_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Night:
    """One run over scales that are too thin: a single model, one or two items, LSAT6, coin flips, two groups."""
    data = load_matrix("lsat6.parquet", 400)
    flips = np.random.default_rng(1).integers(0, 2, (24, 30)).astype(float)
    apart = drawn(24, 40, 4)
    apart[0][:10, 20:], apart[0][10:, :20] = 0.0, 0.0
    parts = {
        "one model": Matrix(*drawn(1, 3, 1)),
        "one item": Matrix(*drawn(12, 1, 3)),
        "two items": Matrix(*drawn(50, 2, 2)),
        "lsat6": Matrix(data.attempts, data.successes),
        "coin flips": Matrix(np.ones_like(flips), flips),
        "apart": Matrix(apart[0], apart[1] * apart[0]),
        "ordinary": Matrix(*drawn(24, 40, 5)),
    }
    root = shutil.copytree(empty_tables, tmp_path_factory.mktemp("thin") / "warehouse")
    config = replace(THIN, rescore=RescoreConfig(disconnected="publish"))
    return score(Warehouse(spark, str(root)), parts, config)


def test_thin_scales_are_published_finite_and_with_a_warning(thin: Night) -> None:
    check_published(thin)
    assert [e["message"] for e in thin.heard.of("warning")] == list(thin.report.warnings)
    for scale in ("one model", "one item", "two items", "lsat6"):
        assert any(f"'{scale}'" in w and "ill-posed" in w for w in thin.report.warnings)
    assert all(r["converged"] for r in thin.rows("run_scales"))
    assert len(thin.rows("item_parameters", scale="lsat6")) == 5


def test_flags_of_scales_say_what_the_warnings_say(thin: Night) -> None:
    """Cases F3, F4, F6: published never without a flag."""
    flags = {r["scale"]: set((r["flag_reasons"] or "").split(";")) for r in thin.rows("run_scales")}
    assert flags["ordinary"] == {""}
    assert flags["coin flips"] == {"no_signal"}
    assert flags["apart"] == {"disconnected"}
    assert "few_items" in flags["two items"]
    assert flags["one model"] == {"few_items", "single_model"}
    assert any("'coin flips'" in w and "no more than by chance" in w for w in thin.report.warnings)
    assert sum(len(f - {""}) for f in flags.values()) == len(thin.report.warnings)


def test_groups_without_a_common_item_are_never_ranked_together(thin: Night) -> None:
    rows = thin.rows("abilities", scale="apart")
    groups = {c: sorted(r["rank"] for r in rows if r["component"] == c) for c in (1, 2)}
    assert groups == {1: list(range(1, 15)), 2: list(range(1, 11))}
    items = {r["item_id"]: r["component"] for r in thin.rows("item_parameters", scale="apart")}
    assert [items[f"item {j + 1:05d}"] for j in range(40)] == [2] * 20 + [1] * 20


def test_groups_without_a_common_item_are_refused_unless_asked_for(thin: Night, tmp_path: Path) -> None:
    copy = Warehouse(thin.warehouse.spark, str(shutil.copytree(thin.warehouse.root, tmp_path / "copy")))
    with pytest.raises(InputError, match=r"scale 'apart' \(14 \+ 10 models\)") as caught:
        rescore(copy.spark, copy, THIN, DAY, Heard())
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    run = last_published(copy)
    assert run is not None
    assert run.run_id == thin.report.run_id


def test_a_single_model_is_scored(thin: Night) -> None:
    (row,) = thin.rows("abilities", scale="one model")
    assert row["ability"] is not None
    assert row["rank"] == 1
    assert row["status"] != "ok"
    assert any("single model" in w for w in thin.report.warnings)
    assert len(thin.rows("item_parameters", scale="one model")) == 3


def test_a_single_item_is_scored(thin: Night) -> None:
    rows = thin.rows("abilities", scale="one item")
    assert len(rows) == 12
    assert {r["status"] for r in rows} <= {"few_items", "all_correct", "all_wrong"}
    assert len({r["ability"] for r in rows}) == 2
    assert len(thin.rows("item_parameters", scale="one item")) == 1


def test_the_same_five_answers_give_the_same_ability(thin: Night) -> None:
    rows = {r["model_id"]: r["ability"] for r in thin.rows("abilities", scale="lsat6")}
    assert len(rows) == 400
    patterns: dict[bytes, set[float]] = {}
    for i, answers in enumerate(thin.parts["lsat6"].successes):
        patterns.setdefault(answers.tobytes(), set()).add(round(rows[f"model {i + 1:05d}"], 9))
    assert len(patterns) > 10
    assert all(len(found) == 1 for found in patterns.values())
