"""Nights on one scale: links, drifting items, the gate, and scoring against fixed items."""

from __future__ import annotations

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from scipy.optimize import brentq

from cbmm_spark.config.schema import Config, LinkingConfig, PackConfig, RescoreConfig, SolverConfig
from cbmm_spark.errors import GateError, InputError
from cbmm_spark.fit.scales import Scales
from cbmm_spark.kernels.fixed_items import pull
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.linking import item_variance, quantiles
from cbmm_spark.linking.linking import EarlierRun, Origin, earlier_runs, link_scales, reference_runs
from cbmm_spark.rescoring.job import RescoreReport, RunOptions, rescore
from cbmm_spark.results.published_scale import on_published_scale
from cbmm_spark.runs.publish import last_published
from cbmm_spark.tables import SPECS, Warehouse
from tests.kernels.layouts import blocks_of
from tests.spark.helpers import DAY, Heard, Matrix, collected, store
from tests.spark.table_samples import frame, full_row

CONFIG = Config(pack=PackConfig(items_per_block=32), solver=SolverConfig(partitions=2))
OLD, TRACKED, CHANGED = 80, 10, np.array([3, 40])
SIZES = {"x": 90, "y": 50}


def days(count: int) -> dt.date:
    return DAY + dt.timedelta(days=count)


class World:
    """Answers to two benchmarks: old models, then stronger ones night by night; two items of x change on day 1.

    The first models never answered the items that change: their answers are the same every night.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.theta = np.concatenate([rng.normal(0, 1, OLD), rng.normal(1.5, 0.7, 40)])
        self.parts = {}
        for name, size in SIZES.items():
            a, b = rng.lognormal(0.2, 0.3, size), rng.normal(0, 1, size)
            p = 1 / (1 + np.exp(-(np.outer(self.theta, a) + b)))
            k = (rng.random(p.shape) < p).astype(float)
            n = (rng.random(p.shape) < 0.95).astype(float)
            if name == "x":
                n[:TRACKED, CHANGED] = 0.0
                moved = 1 / (1 + np.exp(-(np.outer(self.theta, a) + b + np.where(b > 0, -3.0, 3.0))))
                self.later = (rng.random(p.shape) < moved).astype(float)
            self.parts[name] = (n, k)

    def night(self, models: int, changed: bool) -> dict[str, Matrix]:
        found = {}
        for name, (n, k) in self.parts.items():
            now = k.copy()
            if changed and name == "x":
                now[:, CHANGED] = self.later[:, CHANGED]
            found[name] = Matrix(n[:models], (now * n)[:models])
        return found


WORLD = World()


class Nights(NamedTuple):
    """A warehouse and the reports of its runs."""

    warehouse: Warehouse
    reports: list[RescoreReport]

    def rows(self, name: str, report: RescoreReport, **where: Any) -> list[Any]:
        where |= {"run_id": report.run_id}
        return [r for r in collected(self.warehouse, name) if all(r[key] == value for key, value in where.items())]

    def scales(self, report: RescoreReport) -> dict[str, Any]:
        return {r["scale"]: r for r in self.rows("run_scales", report)}

    def abilities(self, report: RescoreReport, scale: str = "overall") -> dict[str, Any]:
        return {r["model_id"]: r for r in self.rows("abilities", report, scale=scale)}

    def copy(self, place: Path) -> Nights:
        root = shutil.copytree(self.warehouse.root, place / "copy")
        return Nights(Warehouse(self.warehouse.spark, str(root)), list(self.reports))

    def run(self, day: int, config: Config = CONFIG, **options: Any) -> RescoreReport:
        return rescore(self.warehouse.spark, self.warehouse, config, days(day), Heard(), RunOptions(**options))


@pytest.fixture(scope="module")
def two(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """Two nights: 80 models, then 20 stronger ones and two items changed."""
    nights = Nights(Warehouse(spark, str(tmp_path_factory.mktemp("linking") / "warehouse")), [])
    for day, (models, changed) in enumerate([(OLD, False), (100, True)]):
        store(nights.warehouse, WORLD.night(models, changed))
        nights.reports.append(nights.run(day))
    return nights


@pytest.fixture(scope="module")
def three(two: Nights, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """A third night, with 20 more models."""
    nights = two.copy(tmp_path_factory.mktemp("third"))
    store(nights.warehouse, WORLD.night(120, True))
    nights.reports.append(nights.run(2))
    return nights


def name(model: int) -> str:
    return f"model {model + 1:05d}"


# ------------------------------------------------------------------------------------- links
def test_three_nights_are_on_the_scale_of_the_first(three: Nights) -> None:
    first, *later = (three.scales(report) for report in three.reports)
    run = three.reports[0].run_id
    assert {row["reference_run_id"] for row in first.values()} == {run}
    assert all((r["link_slope"], r["link_intercept"], r["link_run_id"]) == (1.0, 0.0, None) for r in first.values())
    for rows in later:
        assert set(rows) == {"overall", "x", "y"}
        for scale, row in rows.items():
            assert (row["reference_run_id"], row["link_run_id"]) == (run, run)
            assert row["n_drifted"] == (0 if scale == "y" else 2)
            assert 40 <= row["n_anchors"] <= row["n_items"] - row["n_drifted"]
            assert row["link_intercept"] > 0.2  # the population grew stronger
    assert reference_runs(three.warehouse) == {run}

    drift, alone = [], []
    for scale in ("overall", "x", "y"):
        before = three.abilities(three.reports[0], scale)
        for report in three.reports[1:]:
            now, row = three.abilities(report, scale), three.scales(report)[scale]
            for i in range(TRACKED):
                old, new = before[name(i)], now[name(i)]
                drift.append((new["ability"] - old["ability"]) / old["ability_se"])
                z = (new["ability"] - row["link_intercept"]) / row["link_slope"]
                alone.append((z - old["ability"]) / old["ability_se"])
    # A third of the models is new, so that items are estimated anew: more than in a night of a real leaderboard.
    assert np.abs(np.mean(drift)) < 0.1
    assert np.sqrt(np.mean(np.square(drift))) < 0.3
    assert np.sqrt(np.mean(np.square(alone))) > 1.0


def test_the_items_that_changed_are_named(three: Nights) -> None:
    expected = {f"item {j + 1:05d}" for j in CHANGED}
    for report in three.reports[1:]:
        for scale in ("overall", "x", "y"):
            rows = three.rows("item_parameters", report, scale=scale)
            drifted = {r["item_id"] for r in rows if "drifted" in (r["flag_reasons"] or "").split(";")}
            assert drifted == (set() if scale == "y" else expected)
            assert all(r["is_flagged"] == (r["flag_reasons"] is not None) for r in rows)
    assert not any("drifted" in (r["flag_reasons"] or "") for r in three.rows("item_parameters", three.reports[0]))


def test_all_that_is_published_is_on_one_scale(three: Nights) -> None:
    """The loss of the published abilities and items is that of the fit, and errors and information follow the scale."""
    report = three.reports[1]
    parts = WORLD.night(100, True)
    for scale, row in three.scales(report).items():
        benchmarks = ["x", "y"] if scale == "overall" else [scale]
        ability = three.abilities(report, scale)
        items = {(r["benchmark"], r["item_id"]): r for r in three.rows("item_parameters", report, scale=scale)}
        loss, attempts, information = 0.0, 0.0, np.zeros(100)
        theta = np.array([ability[name(i)]["ability"] for i in range(100)])
        for benchmark in benchmarks:
            n, k, _ = parts[benchmark]
            rows = [items[benchmark, f"item {j + 1:05d}"] for j in range(SIZES[benchmark])]
            assert not any({"all_correct", "all_wrong"} & set((r["flag_reasons"] or "").split(";")) for r in rows)
            a, b = (np.array([r[c] for r in rows]) for c in ("discrimination", "easiness"))
            x = np.outer(theta, a) + b
            loss += float((n * np.logaddexp(0, x) - k * x).sum())
            attempts += n.sum()
            p = 1 / (1 + np.exp(-x))
            information += (n * p * (1 - p)) @ (a * a)
            for r in rows:
                if r["discrimination"] > 0:
                    assert r["difficulty"] == pytest.approx(-r["easiness"] / r["discrimination"])
                q = 1 / (1 + np.exp(-r["easiness"]))
                assert r["information"] == pytest.approx(r["discrimination"] ** 2 * q * (1 - q), rel=1e-9)
        assert loss / attempts == pytest.approx(row["log_loss"], rel=1e-6)
        ridge = 0.25 * row["n_items"] / row["n_models"]
        error = 1 / np.sqrt(information + ridge * row["gauge_stretch"] ** 2)
        np.testing.assert_allclose([ability[name(i)]["ability_se"] for i in range(100)], error, rtol=1e-4)
        for r in ability.values():
            assert r["ability_lower"] < r["ability"] < r["ability_upper"]
            assert (r["ability_upper"] - r["ability_lower"]) == pytest.approx(2 * 1.959964 * r["ability_se"], rel=1e-5)


def test_a_night_whose_reference_is_gone_links_through_the_last_one(two: Nights, tmp_path: Path) -> None:
    """Retention took the reference's items, or its day was scored again: the last night is on its scale."""
    nights = two.copy(tmp_path)
    first, second = (report.run_id for report in two.reports)
    nights.warehouse.delta("item_parameters").delete(F.col("run_id") == first)
    nights.warehouse.delta("item_parameters").update(
        (F.col("scale") == "y") & (F.col("item_id") > "item 00045"), {"item_id": F.lit("renamed")}
    )
    report = nights.run(2)
    for scale, row in nights.scales(report).items():
        assert (row["reference_run_id"], row["link_run_id"]) == (first, second)
        before = nights.scales(two.reports[1])[scale]
        assert row["link_slope"] == pytest.approx(before["link_slope"], rel=1e-4)
        assert row["link_intercept"] == pytest.approx(before["link_intercept"], abs=1e-4)


def test_too_few_anchors_publish_nothing(two: Nights, tmp_path: Path) -> None:
    nights = two.copy(tmp_path)
    strict = replace(CONFIG, linking=LinkingConfig(min_anchors=60))  # y has 50 items
    with pytest.raises(GateError, match=r"scale 'y' has \d+ stable items with run .*linking\.reference") as caught:
        nights.run(2, strict)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert "'x'" not in str(caught.value)
    run = last_published(nights.warehouse)
    assert run is not None
    assert run.run_id == two.reports[1].run_id
    (failed,) = nights.warehouse.read("runs").where("status = 'failed'").collect()
    assert "min_anchors" in failed["error"]
    for table in ("abilities", "item_parameters", "latest_abilities"):
        assert nights.warehouse.read(table).where(F.col("run_id") == failed["run_id"]).count() == 0
    told = nights.warehouse.read("run_scales").where(F.col("run_id") == failed["run_id"]).collect()
    assert {r["scale"] for r in told} == {"overall", "x", "y"}

    again = replace(CONFIG, linking=LinkingConfig(min_anchors=60, reference={"y": "new"}))
    report = nights.run(2, again)
    rows = nights.scales(report)
    assert rows["y"]["reference_run_id"] == report.run_id
    assert rows["x"]["reference_run_id"] == two.reports[0].run_id


# ------------------------------------------------------------------------------------- which run
def test_origin_of_a_scale(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"))
    warehouse.ensure("runs", "run_scales")
    status = {"a": (0, "published"), "b": (1, "published"), "c": (3, "published"), "d": (4, "failed"),
              "old": (-9, "published")}  # fmt: skip
    runs = [
        full_row("runs", run_id=run, scored_on=days(day), status=state, config='{"solver": {"sigma": 2.0}}')
        for run, (day, state) in status.items()
    ]
    facts = {
        ("a", "s"): "a", ("b", "s"): "a", ("c", "s"): "a", ("d", "s"): "d", ("old", "s"): None, ("c", "t"): "c",
        ("old", "u"): None, ("a", "u"): None, ("gone", "s"): "gone",
    }  # fmt: skip
    rows = [full_row("run_scales", run_id=r, scale=s, reference_run_id=ref) for (r, s), ref in facts.items()]
    warehouse.append(frame(spark, "runs", *runs), "runs")
    warehouse.append(frame(spark, "run_scales", *rows), "run_scales")

    def origins(day: int, **reference: str) -> dict[str, Origin]:
        return earlier_runs(warehouse, days(day), LinkingConfig(reference=reference), ["s", "t", "u", "v"])[1]

    assert origins(4) == {"s": Origin("a", "c"), "t": Origin("c", "c"), "u": Origin("a", "a")}
    assert origins(3) == {"s": Origin("a", "b"), "u": Origin("a", "a")}  # never a run of the same day
    assert origins(2)["s"] == Origin("a", "b")  # of two as near the earlier one
    assert origins(-5)["s"] == Origin("a", "a")  # a past day: the nearest is a later one; unlinked ones come last
    assert origins(4, s="b") == origins(4) | {"s": Origin("b", "b")}
    assert origins(4, s="a") == origins(4)
    assert "s" not in origins(4, s="new")
    assert origins(4, v="a")["v"] == Origin("a", "a")
    runs_found = earlier_runs(warehouse, days(3), LinkingConfig(), ["s"])[0]
    assert set(runs_found) == {"a", "b", "old"}
    assert runs_found["a"] == EarlierRun(days(0), 2.0)
    for wrong, says in (({"s": "d"}, "run d is not published"), ({"w": "a"}, "no such scale")):
        with pytest.raises(InputError, match=says):
            origins(4, **wrong)


# ------------------------------------------------------------------------------------- frozen scoring
def test_the_run_itself_scored_against_its_own_items_is_the_run(three: Nights, tmp_path: Path) -> None:
    nights = three.copy(tmp_path)
    before = three.reports[2]
    report = nights.run(3, items_from=before.run_id)
    for scale in ("overall", "x", "y"):
        old, new = three.abilities(before, scale), nights.abilities(report, scale)
        assert set(old) == set(new)
        for model, row in new.items():
            assert abs(row["ability"] - old[model]["ability"]) < 1e-3 * row["ability_se"]
            assert row["ability_se"] == pytest.approx(old[model]["ability_se"], rel=1e-3)
            for column in ("rank", "accuracy_rank", "status", "n_items", "component"):
                assert row[column] == old[model][column]
            assert row["accuracy"] == pytest.approx(old[model]["accuracy"])
        row, earlier = nights.scales(report)[scale], nights.scales(before)[scale]
        assert row["items_from_run_id"] == before.run_id
        assert row["log_loss"] == pytest.approx(earlier["log_loss"], rel=1e-6)
        for column in ("n_models", "n_items", "n_responses", "reference_run_id", "link_slope", "discrimination_mean"):
            assert row[column] == earlier[column]
    copied = [c for c in SPECS["item_parameters"].column_names if c not in ("run_id", "scored_on")]
    old_items, new_items = (
        {tuple(r[c] for c in copied) for r in nights.rows("item_parameters", x)} for x in (before, report)
    )
    assert old_items == new_items
    assert {r["run_id"] for r in nights.warehouse.read("latest_abilities").collect()} == {report.run_id}

    heard = Heard()  # the next full night is linked to the same reference and starts warm
    later = rescore(nights.warehouse.spark, nights.warehouse, CONFIG, days(4), heard)
    assert {r["reference_run_id"] for r in nights.scales(later).values()} == {three.reports[0].run_id}
    assert {e["models"] for e in heard.of("warm_start")} == {120}
    assert all(facts["iterations"] <= 3 for facts in later.scales.values())


def test_only_new_models_are_scored_and_unknown_items_skipped(two: Nights, tmp_path: Path) -> None:
    """Cases F5 and F9: a model with three known items, one with unknown ones only, one without a verdict."""
    nights = two.copy(tmp_path)
    before = two.reports[1]
    parts = {}
    for benchmark, (n, k, _) in WORLD.night(100, True).items():
        size = SIZES[benchmark] + 2  # two items that the run does not know
        attempts, successes, null = (np.zeros((104, size)) for _ in range(3))
        attempts[:100, : size - 2], successes[:100, : size - 2] = n, k
        attempts[100, :20], successes[100, :12] = 1.0, 1.0
        attempts[101, [0, 1, 2, size - 1]], successes[101, 1] = 1.0, 1.0
        attempts[102, [size - 2, size - 1]] = 1.0
        if benchmark == "y":
            attempts[101] = successes[101] = 0.0
            null[103, 5] = 1.0
        parts[benchmark] = Matrix(attempts, successes, null)
    store(nights.warehouse, parts)
    heard = Heard()
    options = RunOptions(items_from=before.run_id, only_new=True)
    report = rescore(nights.warehouse.spark, nights.warehouse, CONFIG, days(2), heard, options)
    told = {e["scale"]: e for e in heard.of("frozen")}
    assert {s: (e["scored"], e["kept"], e["unknown_answers"]) for s, e in told.items()} == {
        "overall": (2, 100, 5), "x": (2, 100, 3), "y": (1, 100, 2),
    }  # fmt: skip
    assert any("5 answers to items" in warning for warning in report.warnings)
    same = [c for c in SPECS["abilities"].column_names if c not in ("run_id", "scored_on") and "rank" not in c]
    for scale in ("overall", "x", "y"):
        old, new = nights.abilities(before, scale), nights.abilities(report, scale)
        assert {m: tuple(r[c] for c in same) for m, r in old.items()} == {
            m: tuple(r[c] for c in same) for m, r in new.items() if m in old
        }
        ranked = sorted((r for r in new.values() if r["ability"] is not None), key=lambda r: -r["ability"])
        assert [r["rank"] for r in ranked] == sorted(r["rank"] for r in ranked)
        assert len(ranked) == 100 + told[scale]["scored"]
        assert all(r["rank_shift"] == r["accuracy_rank"] - r["rank"] for r in ranked)
    overall = nights.abilities(report)
    assert (overall[name(102)]["status"], overall[name(102)]["n_items"]) == ("no_responses", 0)
    assert overall[name(103)]["ability"] is None
    few = nights.abilities(report, "x")[name(101)]
    assert (few["n_items"], few["status"], few["component"]) == (3, "few_items", 1)

    row = nights.scales(before)["overall"]
    shift, stretch = row["gauge_shift"], row["gauge_stretch"]
    ridge = 0.25 * row["n_items"] / row["n_models"]
    sample = quantiles(np.array([shift + stretch * r["ability"] for r in nights.abilities(before).values()]))
    known = {(r["benchmark"], r["item_id"]): r for r in nights.rows("item_parameters", before, scale="overall")}
    for model in (100, 101):
        answers = [
            (known[benchmark, f"item {j + 1:05d}"], part.successes[model, j])
            for benchmark, part in parts.items()
            for j in np.flatnonzero(part.attempts[model][: SIZES[benchmark]])
        ]
        y = np.array([score for _, score in answers])
        a, b, n = (np.array([r[c] for r, _ in answers]) for c in ("discrimination", "easiness", "n_models"))
        a, b = a / stretch, b - shift * a / stretch  # in the gauge of the fit, in which the penalty holds
        variance = tuple(np.where(a > 0, v, 0.0) for v in item_variance(a, b, n, sample, (0.25, 0.1)))

        def gradient(t: float, a: Any = a, b: Any = b, y: Any = y, variance: Any = variance) -> float:
            p = 1 / (1 + np.exp(-(a * t + b)))
            own = pull((p * (1 - p))[:, None], np.array([t]), variance).sum()
            return float((p - y) @ a - own + ridge * t)

        t = float(brentq(gradient, -30, 30))
        p = 1 / (1 + np.exp(-(a * t + b)))
        found = overall[name(model)]
        assert found["ability"] == pytest.approx((t - shift) / stretch, abs=1e-3 * found["ability_se"])
        expected = 1 / np.sqrt((p * (1 - p)) @ (a * a) + ridge) / stretch
        assert found["ability_se"] == pytest.approx(expected, rel=1e-3)


def test_items_from_no_run(two: Nights, tmp_path: Path) -> None:
    nights = two.copy(tmp_path)
    before = [tuple(r) for r in nights.warehouse.read("runs").collect()]
    with pytest.raises(InputError, match="--items-from nobody: there is no such run") as caught:
        nights.run(2, items_from="nobody")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert [tuple(r) for r in nights.warehouse.read("runs").collect()] == before


def test_off_standardises_every_night_and_reads_nothing() -> None:
    n, k, _ = WORLD.night(60, False)["x"]
    fits = fit_blocks(blocks_of(n, k), {"b": frozenset("b")}, 60)
    scales = Scales({"b": frozenset("b"), "overall": frozenset("b")}, {"b": "b", "overall": "b"})
    nothing: Any = None
    off = LinkingConfig(method="off")
    rescored = RescoreConfig()
    heard = Heard()
    links, complaints = link_scales(
        nothing, "run", DAY, fits, scales, nothing, nothing, off, rescored, 1.0, heard.event
    )
    assert complaints == []
    assert set(links) == {"b", "overall"}
    for link in links.values():
        shown = on_published_scale(fits["b"], rescored, link.gauge)
        ok = shown.status == "ok"
        assert shown.ability[ok].mean() == pytest.approx(0.0, abs=1e-9)
        assert shown.ability[ok].std() == pytest.approx(1.0, abs=1e-9)
        assert (link.slope, link.intercept) == (1.0, 0.0)
        assert (link.reference_run_id, link.n_anchors) == (None, None)
