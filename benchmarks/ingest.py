"""Spark on two cores: ingest of long rows beside a plain shuffle of them, a night of 1 % after it, lm-eval files."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from benchmarks.common import report
from benchmarks.spark_common import last_query, session, spent
from cbmm_spark.config.schema import Config
from cbmm_spark.ingest.job import IngestReport, ingest
from cbmm_spark.packing.job import pack
from cbmm_spark.tables import Warehouse

ROWS = 100_000_000
ITEMS = 10_000
MODELS_PER_FILE = 250
STEPS = ("look at", "read", "check", "compare and commit", "quarantine", "report")
"""Of an ingest, as Spark's pages name them."""


def run(rows: int = ROWS) -> None:
    """Print and write the figures for so many rows."""
    found: list[dict[str, Any]] = []
    with session(memory="4g") as spark, tempfile.TemporaryDirectory(prefix="cbmm-bench-") as folder:
        root = Path(folder)
        _warm(spark, root)
        _long_rows(spark, rows, root / "long")
        found += _parquet(spark, rows, root)
        found += _lm_eval(spark, root, files=200)
    report("ingest", "Spark, two cores: ingest", found)


def _warm(spark: SparkSession, root: Path) -> None:
    """Compile what an ingest runs, on a few rows."""
    _long_rows(spark, 100_000, root / "warm")
    _ingest(spark, root / "warm", root / "warm_warehouse")


def _long_rows(spark: SparkSession, rows: int, path: Path, first: int = 0) -> None:
    """Write rows of models x 10,000 items in five benchmarks, a date a model, with names as they are in the field.

    The row `first` is the first one: what was written before it belongs to other models.
    """
    number, model = F.col("id"), F.floor(F.col("id") / ITEMS).cast("int")
    files = max(2, rows // ITEMS // MODELS_PER_FILE)
    spark.range(first, first + rows, 1, files).select(
        F.concat(F.lit("organisation-"), model % 37, F.lit("/model-"), model, F.lit("-instruct")).alias("model"),
        F.concat(F.lit("benchmark_"), number % ITEMS % 5).alias("benchmark"),
        F.concat(F.lit("question-"), F.lpad((number % ITEMS).cast("string"), 6, "0")).alias("item"),
        (F.pmod(F.xxhash64("id"), F.lit(3)) > 0).cast("int").alias("correct"),
        F.date_add(F.lit("2025-01-01").cast("date"), model % 400).cast("timestamp").alias("date"),
    ).write.parquet(str(path))


def _ingest(spark: SparkSession, path: Path, warehouse: Path) -> tuple[float, IngestReport]:
    began = time.perf_counter()
    found = ingest(spark, Warehouse(spark, str(warehouse)), Config(), str(path))
    seconds = time.perf_counter() - began
    _told(f"ingest of {found.read:,} rows, {found.new:,} of them new", seconds)
    return seconds, found


def _told(what: str, seconds: float) -> None:
    """Say each figure when it is there: the rest takes many minutes."""
    print(f"{what}: {seconds:.1f} s", file=sys.stderr, flush=True)


def _parquet(spark: SparkSession, rows: int, root: Path) -> list[dict[str, Any]]:
    long = spark.read.parquet(str(root / "long"))
    shuffled = long.repartition(64, "model")
    timed = {
        "plain shuffle, thrown away": _seconds(lambda: shuffled.write.format("noop").mode("overwrite").save()),
        "plain shuffle, written as the columns of responses": _seconds(lambda: _as_table(shuffled, root / "plain")),
    }
    before = last_query(spark)
    timed["ingest into an empty warehouse"], first = _ingest(spark, root / "long", root / "warehouse")
    steps = spent(spark, before, STEPS)
    assert first.new == rows
    timed["packing it anew"] = _packed(spark, root / "warehouse", "anew")
    new = max(ITEMS, rows // 100 // ITEMS * ITEMS)
    _long_rows(spark, new, root / "night", first=rows)
    timed["a night of 1 % new models: ingest"], night = _ingest(spark, root / "night", root / "warehouse")
    assert night.new == new
    timed["a night of 1 % new models: packing"] = _packed(spark, root / "warehouse", "incremental")
    *_, anew, night_ingest, night_pack = timed.values()
    timed["the first one again, unchanged"], again = _ingest(spark, root / "long", root / "warehouse")
    assert again.unchanged == rows
    rebuilt = timed["ingest into an empty warehouse"] + anew
    ratio: dict[str, Any] = {
        "what": "a night of 1 % new models beside ingest and packing of all",
        "rows": new,
        "seconds": night_ingest + night_pack,
        "of a rebuild": (night_ingest + night_pack) / rebuilt,
    }
    floors = list(timed.values())[:2]
    within: list[dict[str, Any]] = [
        {"what": f"  of the first one: {step}, {queries} queries", "rows": rows, "seconds": seconds}
        for step, (queries, seconds) in steps.items()
    ]
    return [
        {
            "what": name,
            "rows": new if "night" in name else rows,
            "seconds": seconds,
            "M rows/s": (new if "night" in name else rows) / seconds / 1e6,
            "of the shuffle": None if "night" in name else seconds / floors[0],
            "of the written shuffle": None if "night" in name else seconds / floors[1],
            "of a rebuild": None,
            "MB/s": None,
        }
        for name, seconds in timed.items()
    ] + [ratio, *within]


def _packed(spark: SparkSession, warehouse: Path, mode: str) -> float:
    began = time.perf_counter()
    found = pack(spark, Warehouse(spark, str(warehouse)), Config())
    assert found.mode == mode, found
    seconds = time.perf_counter() - began
    _told(f"packed {mode}", seconds)
    return seconds


def _as_table(long: DataFrame, path: Path) -> None:
    """Write rows in as many columns as `responses` has, without any question asked."""
    long.select(
        F.col("model").alias("model_id"), "benchmark", F.col("item").alias("item_id"), F.lit(1).alias("attempt"),
        F.col("correct").cast("double").alias("score"), F.col("date").alias("evaluated_at"), F.lit("s").alias("source"),
        F.current_timestamp().alias("ingested_at"), F.hash("model").alias("model_index"),
        F.hash("item").alias("item_index"),
    ).write.parquet(str(path))  # fmt: skip


def _lm_eval(spark: SparkSession, root: Path, files: int) -> list[dict[str, Any]]:
    """Ingest about a gigabyte of sample files, prompts and outputs included."""
    folder = root / "samples"
    rng = np.random.default_rng(1)
    prompt = " ".join("".join(map(chr, rng.integers(97, 123, 7))) for _ in range(300))
    for number in range(files):
        model = folder / f"org__model-{number}"
        model.mkdir(parents=True)
        with open(model / "samples_task_2025-01-01T00-00-00.000000.jsonl", "w", encoding="utf-8") as out:
            for doc in range(1000):
                out.write(_sample(doc, prompt, float(rng.integers(2))) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
    seconds, found = _ingest(spark, folder, root / "samples_warehouse")
    assert found.new == files * 1000
    return [{"what": f"{files} lm-eval sample files, {size / 1e6:,.0f} MB", "rows": found.read, "seconds": seconds,
             "M rows/s": found.read / seconds / 1e6, "MB/s": size / 1e6 / seconds}]  # fmt: skip


def _sample(doc: int, prompt: str, correct: float) -> str:
    text = f"{doc} {prompt}"
    return json.dumps(
        {"doc_id": doc, "doc": {"question": text, "answer": "B"}, "target": "B", "resps": [[text[:400]]],
         "arguments": {"gen_args_0": {"arg_0": text}}, "filtered_resps": ["B"], "doc_hash": f"{doc:064x}",
         "prompt_hash": "0" * 64, "target_hash": "1" * 64, "filter": "none", "metrics": ["acc"], "acc": correct}
    )  # fmt: skip


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    _told("a shuffle", seconds)
    return seconds
