"""One input as a batch: validated, one row per key, counted.

A columnar input is read three times, each time only the columns that are needed: its files and numbers of rows (of
Parquet that is metadata alone), its names (`names`), and its rows, which are shuffled once, as numbers of fixed width.
Of any other input the few columns of a response are kept when it is read first, so that no text is parsed twice. It is
read once more only where rows were refused or contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.names import HASHES, Names, make_names
from cbmm_spark.ingest.rules import (
    HASHED_KEY,
    KEY,
    MISSING,
    applied_defaults,
    judge,
    one_row_per_key,
    resolve_conflicts,
    validate,
)
from cbmm_spark.readers.base import FIRST_ATTEMPT, LEFT_OUT, RawFrame
from cbmm_spark.spark.scoped import persisted, session_settings
from cbmm_spark.tables import BENCHMARK_BUCKETS

OTHER_ATTEMPT = "other_attempt"
"""Why rows are left out whose attempt is not the one that `ingest.attempts` takes."""

STOPPED = "stopped_benchmark"
"""Why rows are left out of whose benchmark an item has two contents."""

ROWS_A_TASK = 500_000
"""About how many rows of a batch one task holds."""

_NARROW = ("benchmark", "model_id", "item_id", "attempt", "score", "evaluated_at", "source", "is_accepted")


@dataclass(frozen=True)
class Counts:
    """What a frame of one row per key holds."""

    rows: int
    keys: int
    disputed: int
    missing: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """The validated input.

    Attributes
    ----------
    path
        The input.
    names
        Its models, items and files.
    accepted
        benchmark_bucket, model_hash, item_hash, attempt, score, evaluated_at, source_hash, n_rows: persisted, keys
        unique.
    judged
        `validate`'s frame, not persisted.
    undecidable
        Keys (with their names) whose rows contradict each other, or None.
    read
        Rows of the input.
    invalid
        Rows refused by themselves, without those of undecidable keys.
    left_out
        Records that are no responses by the source's design, by why (`readers.LEFT_OUT`), other attempts, and what is
        of a stopped benchmark.
    defaults
        What was assumed about how many rows.
    counts
        Of the accepted rows.
    """

    path: str
    names: Names
    accepted: DataFrame
    judged: DataFrame
    undecidable: DataFrame | None
    read: int
    invalid: int
    left_out: Mapping[str, int]
    defaults: Mapping[str, int]
    counts: Counts


def make_batch(source: RawFrame, rules: IngestConfig, path: str, held: ExitStack) -> Batch:
    """Validate, bring together and count.

    Parameters
    ----------
    source
        What a reader gave.
    rules
        `config.ingest`.
    path
        For messages.
    held
        What is persisted is released with it. Until then the session has as many shuffle partitions as the rows need.

    Raises
    ------
    InputError
        There is no row, or rows contradict each other and the rule for duplicates is `error`, or a model has several
        attempts at an item and the rule for attempts is `error`.
    """
    conditions = {**source.defaults, **applied_defaults(source.frame, rules)}
    conditions |= {name: F.col("problem") == name for name in LEFT_OUT}
    watched = Observation()
    counted = [F.count_if(condition).alias(f"c{number}") for number, condition in enumerate(conditions.values())]
    if not counted:
        counted = [F.count("*").alias("rows")]  # an observation of nothing is an error
    judged = validate(source.frame, rules)
    observed = _narrow(judge(source.frame.observe(watched, *counted), rules))
    if source.is_columnar:
        rows, listed = _narrow(judge(source.frame, rules)), source.frame
    else:
        rows = observed = listed = held.enter_context(persisted(observed))
    sources = held.enter_context(persisted(listed.groupBy("source").agg(F.count("*").alias("rows"))))
    names = make_names(_valid(rows), sources, held)
    if not names.n_rows:
        raise InputError(f"{path} holds no rows")
    spark = source.frame.sparkSession
    held.enter_context(session_settings(spark, _partitions(spark, names.n_rows)))
    keys = held.enter_context(persisted(one_row_per_key(_hashed(_valid(observed), names))))
    all_valid = _count(keys)
    # Spark forgets what it observed in a plan that turns out to be empty.
    told = watched.get if all_valid.rows else _asked(source.frame, counted)
    seen = {name: int(told[f"c{number}"]) for number, name in enumerate(conditions)}
    left_out = {name: count for name in LEFT_OUT if (count := seen.pop(name))}
    accepted, counts, undecidable = keys, all_valid, None
    if all_valid.disputed:
        accepted, undecided = _resolve(keys, _hashed(_valid(rows), names), names, rules, path, held)
        counts = _count(accepted)
        undecidable = names.named(undecided).select(*KEY) if counts.rows < all_valid.rows else None
    if rules.attempts != "all":
        decided_rows = counts.rows
        accepted = held.enter_context(persisted(_one_attempt(accepted, names, rules, path)))
        counts = _count(accepted)
        if counts.rows < decided_rows:
            left_out[OTHER_ATTEMPT] = decided_rows - counts.rows
    score = F.when(F.col("lowest") != MISSING, F.col("lowest")).alias("score")
    return Batch(
        path=path,
        names=names,
        accepted=accepted.select(*HASHED_KEY, score, "evaluated_at", "source_hash", "n_rows"),
        judged=judged,
        undecidable=undecidable,
        read=names.n_rows,
        invalid=names.n_rows - all_valid.rows - sum(left_out.get(name, 0) for name in LEFT_OUT),
        left_out=left_out,
        defaults={name: count for name, count in seen.items() if count},
        counts=counts,
    )


def _partitions(spark: SparkSession, rows: int) -> dict[str, str]:
    """As many shuffle partitions as keep a task's rows within its memory, and its table of keys within the caches.

    A session of few cores has few: 100 million rows would be 25 million a task, whose sorting needs gigabytes.
    """
    name = "spark.sql.shuffle.partitions"
    set_to = spark.conf.get(name)
    assert set_to is not None
    return {name: str(max(int(set_to), -(-rows // ROWS_A_TASK)))}


def without_benchmarks(batch: Batch, benchmarks: Sequence[str]) -> Batch:
    """Leave some benchmarks out of a batch; their rows are counted in `left_out`, refused ones stay refused."""
    names, mine = batch.names, F.col("benchmark").isin(list(benchmarks))
    gone = F.broadcast(names.items.where(mine).select("item_hash"))
    rest = batch.accepted.join(gone, "item_hash", "left_anti").select(*batch.accepted.columns)
    score = F.coalesce("score", F.lit(MISSING))
    counts = _count(rest.withColumns({"lowest": score, "highest": score}))
    return replace(
        batch,
        names=replace(names, items=names.items.where(~mine), pairs=names.pairs.where(~mine)),
        accepted=rest,
        counts=counts,
        left_out={**batch.left_out, STOPPED: batch.counts.rows - counts.rows},
    )


def _asked(raw: DataFrame, counted: Sequence[Column]) -> Mapping[str, int]:
    row = raw.agg(*counted).head()
    assert row is not None
    return row.asDict()


def _narrow(judged: DataFrame) -> DataFrame:
    """The columns of a response; contents of items by a hash of fixed width."""
    content = F.when(F.col("content_hash").isNotNull(), F.xxhash64("content_hash")).alias("content")
    return judged.select(*_NARROW, content)


def _valid(narrow: DataFrame) -> DataFrame:
    return narrow.where("is_accepted")


def _hashed(valid: DataFrame, names: Names) -> DataFrame:
    bucket = F.pmod(F.xxhash64("benchmark"), F.lit(BENCHMARK_BUCKETS)).cast("int")
    hashed = names.hashed(valid).withColumn("benchmark_bucket", bucket)
    return hashed.select(*HASHED_KEY, "score", "evaluated_at", "source_hash")


def agree() -> Column:
    """Whether all rows of a key have one score."""
    return F.col("lowest") == F.col("highest")


def _count(keys: DataFrame) -> Counts:
    row = keys.agg(
        F.coalesce(F.sum("n_rows"), F.lit(0)).alias("rows"),
        F.count("*").alias("keys"),
        F.count_if(~agree()).alias("disputed"),
        F.count_if(agree() & (F.col("lowest") == MISSING)).alias("missing"),
        F.collect_set("benchmark_bucket").alias("buckets"),
    ).head()
    assert row is not None
    return Counts(row["rows"], row["keys"], row["disputed"], row["missing"], tuple(sorted(row["buckets"])))


def _resolve(
    keys: DataFrame, valid: DataFrame, names: Names, rules: IngestConfig, path: str, held: ExitStack
) -> tuple[DataFrame, DataFrame]:
    """The keys with one score, by the rule for duplicates where rows disagree, and the keys that stay undecided."""
    disputed = keys.where(~agree()).select(*HASHED_KEY)
    if rules.duplicates == "error":
        example = first_key(disputed, names)
        raise InputError(f"{path} has rows of different scores for {example}; ingest.duplicates = error refuses that")
    rows = valid.join(disputed, list(HASHED_KEY), "left_semi")
    decided = held.enter_context(persisted(resolve_conflicts(rows, rules.duplicates)))
    accepted = keys.where(agree()).unionByName(decided.where(agree()).select(*keys.columns))
    return accepted, decided.where(~agree()).select(*HASHED_KEY)


def _one_attempt(keys: DataFrame, names: Names, rules: IngestConfig, path: str) -> DataFrame:
    """Of several attempts of a model at an item the one that counts, as the first attempt."""
    cell = ["benchmark_bucket", *HASHES]
    if names.attempts[0] != names.attempts[1]:
        if rules.attempts == "error":
            several = keys.groupBy(*cell).agg(F.count("*").alias("n"), F.max("attempt").alias("attempt")).where("n > 1")
            if not several.isEmpty():
                raise InputError(
                    f"{path} has several attempts up to {first_key(several, names)}; ingest.attempts = error refuses "
                    "that"
                )
        order = F.desc("attempt") if rules.attempts == "latest" else F.asc("attempt")
        ranked = keys.withColumn("_place", F.row_number().over(Window.partitionBy(*cell).orderBy(order)))
        keys = ranked.where(F.col("_place") == 1).drop("_place")
    return keys.withColumn("attempt", F.lit(FIRST_ATTEMPT))


def first_key(hashed: DataFrame, names: Names) -> str:
    """The first of some hashed keys, by name, in words."""
    row = names.named(hashed).orderBy(*KEY).head()
    assert row is not None
    return key_in_words(row)


def key_in_words(row: Row) -> str:
    """Name a response."""
    return f"model {row['model_id']!r}, item {row['item_id']!r} of {row['benchmark']!r}, attempt {row['attempt']}"
