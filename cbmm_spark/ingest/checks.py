"""What is looked for in a batch before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ChecksConfig, Strictness
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.batch import Batch, without_benchmarks
from cbmm_spark.tables import Warehouse

_SHOWN = 3


@dataclass(frozen=True)
class Coverage:
    """How much of a benchmark the models of a batch answered: shares of the items that any of them has.

    A row without a verdict is no answer (case R7: what ended in an error is missing, and coverage shows it).
    """

    benchmark: str
    models: int
    items: int
    lowest: float
    lowest_model: str
    mean: float

    def line(self) -> str:
        """For a person."""
        models = f"{self.models:,} model{'s' * (self.models != 1)} x {self.items:,} items of {self.benchmark!r}"
        if self.lowest == 1.0:
            return f"{models}, all answered"
        return f"{models}, {self.mean:.1%} answered on average, least by {self.lowest_model!r}: {self.lowest:.1%}"


@dataclass(frozen=True)
class Checked:
    """What the checks leave of a batch.

    Attributes
    ----------
    batch
        What may be stored.
    warnings
        What a person should look at, in sentences.
    stopped
        Why some benchmarks are not in `batch` any more; empty where all are.
    """

    batch: Batch
    warnings: tuple[str, ...]
    stopped: str


def check_batch(warehouse: Warehouse, batch: Batch, checks: ChecksConfig, whole: bool) -> Checked:
    """Look a batch over.

    Parameters
    ----------
    warehouse
        What is stored already.
    batch
        What is to be stored.
    checks
        How strict to be. A benchmark of which an item has two contents is left out where content is "fail": answers to
        them must not be mixed (case R9).
    whole
        Take all benchmarks or none.

    Raises
    ------
    InputError
        A check set to "fail" found something, and nothing is left or all was asked for; nothing was written.
    """
    warnings, stopped = [], ""
    told = [] if checks.content == "ignore" else _two_contents(warehouse, batch)
    sentences = [sentence for sentence, _ in told]
    if told and checks.content == "fail":
        stopped = "; ".join(sentences)
        names = sorted({name for _, benchmarks in told for name in benchmarks})
        if whole or batch.names.pairs.where(~F.col("benchmark").isin(names)).isEmpty():
            raise _refused(batch.path, stopped, "content")
        batch = without_benchmarks(batch, names)
    else:
        warnings += sentences
    steps: Sequence[tuple[Strictness, str, Callable[[Warehouse, Batch], list[str]]]] = (
        (checks.names, "names", _names_alike),
        (checks.vanished, "vanished", _vanished),
    )
    for strictness, name, look in steps:
        if strictness == "ignore":
            continue
        found = look(warehouse, batch)
        if found and strictness == "fail":
            raise _refused(batch.path, found[0], name)
        warnings += found
    return Checked(batch, tuple(warnings), stopped)


def _refused(path: str, why: str, check: str, written: str = "nothing was written") -> InputError:
    return InputError(f'{path}: {why}; {written} (ingest.checks.{check} = "warn" lets it pass)')


def stopped_by_content(path: str, why: str) -> InputError:
    """Return the complaint about an input of which some benchmarks were left out."""
    return _refused(path, why, "content", "nothing of these benchmarks was written, the others were")


def coverage(batch: Batch) -> list[Coverage]:
    """Return the coverage of every benchmark of a batch, by name."""
    items = batch.names.items.groupBy("benchmark").agg(F.count("*").alias("all_items"))
    share = F.col("items") / F.col("all_items")
    rows = (
        _answered(batch)
        .join(F.broadcast(items), "benchmark")
        .groupBy("benchmark")
        .agg(
            F.count("*").alias("models"),
            F.first("all_items").alias("items"),
            F.min(F.struct(share.alias("share"), "model_id")).alias("lowest"),
            F.avg(share).alias("mean"),
        )
        .orderBy("benchmark")
        .collect()
    )
    return [
        Coverage(r["benchmark"], r["models"], r["items"], r["lowest"]["share"], r["lowest"]["model_id"], r["mean"])
        for r in rows
    ]


def _answered(batch: Batch) -> DataFrame:
    """How many items of a benchmark each model answered: benchmark, model_id, items.

    Where no row repeats another and there is one attempt, these are the rows that were counted when the names were
    found; else they are counted once more.
    """
    names, counts = batch.names, batch.counts
    is_plain = names.attempts[0] == names.attempts[1] and counts.rows == counts.keys and batch.undecidable is None
    if is_plain:
        return names.pairs.select("benchmark", "model_id", F.col("answered").alias("items"))
    cells = batch.accepted.where(F.col("score").isNotNull()).select("model_hash", "item_hash").distinct()
    named = cells.join(names.models, "model_hash").join(names.items.select("item_hash", "benchmark"), "item_hash")
    counted = named.groupBy("benchmark", "model_id").agg(F.count("*").alias("items"))
    pairs = names.pairs.select("benchmark", "model_id").join(counted, ["benchmark", "model_id"], "left")
    return pairs.withColumn("items", F.coalesce("items", F.lit(0)))  # a model may have no verdict at all


# ------------------------------------------------------------------------------------------------ contents
def _two_contents(warehouse: Warehouse, batch: Batch) -> list[tuple[str, list[str]]]:
    """Items with two contents, within the batch or between it and what is stored: in words, and their benchmarks."""
    if not batch.names.has_content:
        return []
    found = batch.names.items.select("benchmark", "item_id", F.col("content_low").alias("low"),
                                     F.col("content_high").alias("high"))  # fmt: skip
    told = [_contents_sentence(found.where(F.col("low") != F.col("high")), "for one model than for another")]
    if warehouse.exists("items"):
        stored = warehouse.read("items").where(F.col("content_hash").isNotNull())
        joined = found.join(stored.select("benchmark", "item_id", "content_hash"), ["benchmark", "item_id"])
        told.append(_contents_sentence(joined.where(F.hex("low") != F.col("content_hash")), "than the stored one"))
    return [(sentence, benchmarks) for sentence, benchmarks in told if benchmarks]


def _contents_sentence(items: DataFrame, where: str) -> tuple[str, list[str]]:
    benchmarks = items.groupBy("benchmark").agg(F.count("*").alias("items"), F.min("item_id").alias("item_id"))
    rows = benchmarks.orderBy("benchmark").collect()  # one a benchmark
    if not rows:
        return "", []
    shown = ", ".join(f"{r['items']} of {r['benchmark']!r} (such as {r['item_id']!r})" for r in rows[:_SHOWN])
    sentence = (
        f"items have another content {where}: {shown}{_and_more(rows)}; give the versions of the benchmark names of "
        "their own ([ingest.benchmarks], if need be an ingest and a mapping for each)"
    )
    return sentence, [r["benchmark"] for r in rows]


# ------------------------------------------------------------------------------------------------ names
def _names_alike(warehouse: Warehouse, batch: Batch) -> list[str]:
    """Names that differ by case or white space only (case R8)."""
    benchmarks = batch.names.pairs.select(F.col("benchmark").alias("name")).distinct()
    new, everything = [], []
    for kind, table, column, names in (
        ("model", "models", "model_id", batch.names.models.select(F.col("model_id").alias("name"))),
        ("benchmark", "items", "benchmark", benchmarks),
    ):
        new.append(names.select(F.lit(kind).alias("kind"), "name"))
        everything.append(new[-1])
        if warehouse.exists(table):
            everything.append(warehouse.read(table).select(F.lit(kind).alias("kind"), F.col(column).alias("name")))
    folded = _folded(F.col("name")).alias("folded")
    mine = reduce(DataFrame.unionByName, new).select("kind", folded).distinct()
    rows = (
        reduce(DataFrame.unionByName, everything)
        .groupBy("kind", folded)
        .agg(F.sort_array(F.collect_set("name")).alias("n"))
        .where(F.size("n") > 1)
        .join(mine, ["kind", "folded"], "left_semi")
        .orderBy(F.desc("kind"), "folded")
        .collect()
    )
    told = []
    for kind in ("model", "benchmark"):
        alike = [row["n"] for row in rows if row["kind"] == kind]
        if alike:
            shown = "; ".join(" and ".join(map(repr, names[:_SHOWN])) for names in alike[:_SHOWN])
            told.append(
                f"{kind}s whose names differ only by case or spaces are kept apart: {shown}{_and_more(alike)}; "
                f"[ingest.{kind}s] makes them one"
            )
    return told


def _folded(name: Column) -> Column:
    return F.regexp_replace(F.lower(name), r"\s+", "")


# ------------------------------------------------------------------------------------------------ vanished
def _vanished(warehouse: Warehouse, batch: Batch) -> list[str]:
    """Models and items that the same files had when they were last ingested, and lack now (case R14)."""
    if not warehouse.exists("responses"):
        return []
    buckets = list(batch.counts.buckets)
    stored = warehouse.read("responses").where(F.col("benchmark_bucket").isin(buckets))
    stored = stored.join(F.broadcast(batch.names.sources.select("source")), "source", "left_semi")
    before, now = _models_and_items(stored), _names_of(batch)
    benchmarks = batch.names.pairs.select("benchmark").distinct()
    gone = before.join(F.broadcast(benchmarks), "benchmark", "left_semi").join(now, now.columns, "left_anti")
    rows = (
        gone.groupBy("kind", "benchmark")
        .agg(F.count("*").alias("n"), F.min("name").alias("one"))
        .orderBy(F.desc("kind"), "benchmark")
        .collect()
    )
    told = []
    for kind in ("models", "items"):
        mine = [row for row in rows if row["kind"] == kind]
        if mine:
            shown = ", ".join(f"{r['n']} of {r['benchmark']!r} (such as {r['one']!r})" for r in mine[:_SHOWN])
            told.append(
                f"{kind} that these files had before are not in them any more and stay stored: {shown}{_and_more(mine)}"
            )
    return told


def _models_and_items(responses: DataFrame) -> DataFrame:
    """Each model and each item of each benchmark once, in one pass: benchmark, kind, name."""
    pairs = [F.struct(F.lit(kind).alias("kind"), F.col(key).alias("name"))
             for kind, key in (("models", "model_id"), ("items", "item_id"))]  # fmt: skip
    each = responses.select("benchmark", F.explode(F.array(*pairs)).alias("each"))
    return each.select("benchmark", "each.*").distinct()


def _names_of(batch: Batch) -> DataFrame:
    """The same of a batch, whose names are known."""
    models = batch.names.pairs.select("benchmark", F.lit("models").alias("kind"), F.col("model_id").alias("name"))
    items = batch.names.items.select("benchmark", F.lit("items").alias("kind"), F.col("item_id").alias("name"))
    return models.unionByName(items)


def _and_more(rows: Sequence[object]) -> str:
    return f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
