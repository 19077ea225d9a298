"""Spark: 90 simulated nights of a growing leaderboard through `nightly`, and the same responses in one go at the end.

300 to 1,200 models, 5,000 items in five benchmarks; every night ten new and stronger models, corrections of an earlier
night's results now and then, one renamed benchmark, one bad upload, the upkeep once a week.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.common import report
from benchmarks.spark_common import session
from cbmm_spark.config.schema import Config, IngestConfig, NightlyConfig, SourceConfig
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.job import ingest
from cbmm_spark.night.night import STEPS, Night, NightReport
from cbmm_spark.packing.job import pack
from cbmm_spark.rescoring.job import rescore
from cbmm_spark.runs.publish import last_published
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.upkeep.maintain import maintain

NIGHTS = 90
FIRST_MODELS, NEW_MODELS = 300, 10
BENCHMARKS, ITEMS = 5, 5_000
FIRST_DAY = dt.date(2026, 1, 1)
EVERY_CORRECTION, EVERY_UPKEEP = 9, 7
RENAMED, BAD = 40, 60
OLD_NAME, NEW_NAME = "benchmark_3", "Benchmark 3 (v2)"
CONFIG = Config(ingest=IngestConfig(benchmarks={NEW_NAME: OLD_NAME}))
SHOWN = 10


def run(nights: int = NIGHTS) -> None:
    """Print and write the figures for so many nights."""
    with session(memory="3g") as spark, tempfile.TemporaryDirectory(prefix="cbmm-bench-") as folder:
        root = Path(folder)
        world = _World(FIRST_MODELS + NEW_MODELS * nights)
        warehouse = Warehouse(spark, str(root / "warehouse"))
        rows = [_night(spark, warehouse, world, root, number) for number in range(nights + 1)]
        shown = [row for row in rows if row["night"] % max(1, nights // SHOWN) == 0 or row["what"] != "new models"]
        report("nights", f"Spark, two cores: {nights} nights, seconds by step", shown, _trends(rows))
        report("nights_full", "The same responses in one go, and the last night's results beside it",
               [_in_one_go(spark, warehouse, root, rows)])  # fmt: skip


class _World:
    """Who answers what: later models are stronger, and easiness and discrimination differ between items."""

    def __init__(self, models: int) -> None:
        rng = np.random.default_rng(20260511)
        self.theta = rng.standard_normal(models) + np.linspace(0.0, 1.0, models)
        self.a = np.exp(0.4 * rng.standard_normal(ITEMS))
        self.b = 1.2 * rng.standard_normal(ITEMS)
        self.solved = rng.random((models, ITEMS)) < 1.0 / (1.0 + np.exp(-(np.outer(self.theta, self.a) + self.b)))

    def table(self, models: np.ndarray, items: np.ndarray, day: dt.date, renamed: bool) -> pa.Table:
        """Rows of some models at some items."""
        model, item = np.repeat(models, items.size), np.tile(items, models.size)
        called = [f"benchmark_{number}" for number in range(BENCHMARKS)]
        names = np.array([NEW_NAME if renamed and name == OLD_NAME else name for name in called])
        return pa.table(
            {
                "model": np.char.add("maker/model-", model.astype(str)),
                "benchmark": names[item % BENCHMARKS],
                "item": np.char.add("question-", item.astype(str)),
                "correct": self.solved[model, item].astype(np.int32),
                "date": pa.array([dt.datetime.combine(day, dt.time(), dt.UTC)] * model.size),
            }
        )


def _night(spark: SparkSession, warehouse: Warehouse, world: _World, root: Path, number: int) -> dict[str, Any]:
    """Upload, run the night, and return what it cost."""
    day = FIRST_DAY + dt.timedelta(days=number)
    last = FIRST_MODELS + NEW_MODELS * number
    models = np.arange(0 if number == 0 else last - NEW_MODELS, last)
    what = "new models"
    uploads = {"new": world.table(models, np.arange(ITEMS), day, number >= RENAMED)}
    if number and number % EVERY_CORRECTION == 0:
        old = np.arange(max(0, last - 4 * NEW_MODELS), last - 3 * NEW_MODELS)
        items = np.arange(number, ITEMS, 100)
        world.solved[np.ix_(old, items)] ^= True
        uploads["corrected"] = world.table(old, items, day, number >= RENAMED)
        what = f"+ {old.size * items.size} corrections"
    if number == RENAMED:
        what = "benchmark renamed"
    sources = [SourceConfig(name=name, input=_written(table, root, number, name)) for name, table in uploads.items()]
    if number == BAD:
        what = "bad upload"
        bad = root / "bad.csv"
        bad.write_text("model,benchmark,item,correct\n" + "m,benchmark_0,q,maybe\n" * 1000)
        sources.append(SourceConfig(name="bad", input=str(bad)))
    settings = NightlyConfig(on_source_error="continue", sources=tuple(sources))
    config = dataclasses.replace(CONFIG, nightly=settings)
    began = time.perf_counter()
    done = Night(spark, warehouse, config, day, STEPS, Progress("json", io.StringIO())).run()
    seconds = time.perf_counter() - began
    _check(done, number)
    assert done.run is not None
    steps = {step.step: step.seconds for step in done.steps}
    laps = done.run.seconds
    upkeep = _maintain(spark, warehouse, config) if number % EVERY_UPKEEP == EVERY_UPKEEP - 1 else None
    files = {name: (warehouse.size(name) or {"files": 0})["files"] for name in SPECS}
    print(f"night {number}, {what}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return {
        "night": number,
        "what": what,
        "models": last,
        "all s": seconds,
        "ingest": steps["ingest"],
        "pack": laps["pack"],
        "fit": laps["fit"],
        "write, publish": sum(laps.values()) - laps["pack"] - laps["fit"],
        "iterations": done.run.scales["overall"]["iterations"],
        "maintain": upkeep,
        "files": sum(files.values()),
        "most files": "{1} {0}".format(*max(files.items(), key=lambda item: item[1])),
    }


def _maintain(spark: SparkSession, warehouse: Warehouse, config: Config) -> float:
    """Do the weekly upkeep: small files are put together."""
    began = time.perf_counter()
    maintain(spark, warehouse, config, ("retention", "optimize"), Progress("json", io.StringIO()))
    return time.perf_counter() - began


def _written(table: pa.Table, root: Path, number: int, name: str) -> str:
    path = root / "uploads" / f"{number:03}-{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)
    return str(path)


def _check(done: NightReport, number: int) -> None:
    """See that a night ended as it should: a bad upload is told, and does not keep the others from being scored."""
    if number == BAD:
        assert isinstance(done.error, InputError), done.error
    elif done.error is not None:
        raise done.error
    assert done.run_id is not None


def _trends(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the first and the last third, of nights with new models only."""
    plain = [row for row in rows[1:] if row["what"] == "new models"]
    third = max(1, len(plain) // 3)
    found = {}
    for name in ("all s", "ingest", "pack", "fit", "write, publish", "files"):
        early, late = (float(np.median([row[name] for row in part])) for part in (plain[:third], plain[-third:]))
        found[f"{name}, first and last third"] = f"{early:.4g} {late:.4g}"
    return found


def _in_one_go(spark: SparkSession, warehouse: Warehouse, root: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole = Warehouse(spark, str(root / "whole"))
    began = time.perf_counter()
    ingest(spark, whole, CONFIG, str(root / "uploads"))
    ingested = time.perf_counter()
    pack(spark, whole, CONFIG)
    packed = time.perf_counter()
    day = FIRST_DAY + dt.timedelta(days=len(rows) - 1)
    rescore(spark, whole, CONFIG, day, Progress("json", io.StringIO()))
    done = time.perf_counter()
    mine, theirs = (_abilities(each, day) for each in (warehouse, whole))
    assert mine.keys() == theirs.keys()
    one, other, error = (
        np.array(column)
        for column in zip(*((mine[name][0], theirs[name][0], mine[name][1]) for name in mine), strict=True)
    )
    slope, shift = np.polyfit(other, one, 1)  # each has its own scale: that of its first night
    plain = [row for row in rows[1:] if row["what"] == "new models"][-max(1, len(rows) // 3) :]
    night = float(np.median([row["ingest"] + row["pack"] for row in plain]))
    return {
        "responses equal": _same_responses(warehouse, whole),
        "ability, largest difference in SE": float(np.abs((slope * other + shift - one) / error).max()),
        "ingest s": ingested - began,
        "pack s": packed - ingested,
        "rescore s": done - packed,
        "a night's ingest and pack s": night,
        "share of all": night / (packed - began),
    }


def _abilities(warehouse: Warehouse, day: dt.date) -> dict[str, tuple[float, float]]:
    run = last_published(warehouse)
    assert run is not None
    assert run.scored_on == day
    rows = warehouse.read("latest_abilities").where("scale = 'overall' AND status = 'ok'")
    return {row["model_id"]: (row["ability"], row["ability_se"])
            for row in rows.select("model_id", "ability", "ability_se").collect()}  # fmt: skip


def _same_responses(one: Warehouse, other: Warehouse) -> bool:
    columns = ("model_id", "benchmark", "item_id", "attempt", "score", "evaluated_at")
    first, second = (each.read("responses").select(*columns) for each in (one, other))
    return first.count() == second.count() and first.exceptAll(second).isEmpty()
