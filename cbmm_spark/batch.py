"""One input as a batch: validated, one row per key, counted.

The input is read twice: once for its files and number of rows (of Parquet that is metadata alone) and once to be
validated and shuffled by benchmark and model. It is read a third time only where rows were refused or contradict each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from cbmm_spark.config import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers import LEFT_OUT, RawFrame
from cbmm_spark.responses import KEY, MISSING, applied_defaults, one_row_per_key, resolve_conflicts, validate
from cbmm_spark.tables import BENCHMARK_BUCKETS

_HAS_CONTENT = "has content"


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory and on disk for a block."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


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
    accepted
        Key, score, evaluated_at, source, benchmark_bucket: persisted, keys unique and not null.
    models
        The model_id of these, distinct: persisted.
    judged
        `validate`'s frame, not persisted.
    keys
        The accepted rows as `one_row_per_key` gives them, with the contents of items.
    has_content
        Whether the format tells contents of items apart.
    sources
        The input's files.
    undecidable
        Keys whose rows contradict each other, or None.
    read
        Rows of the input.
    invalid
        Rows refused by themselves, without those of undecidable keys.
    left_out
        Records that are no responses by the source's design, by why (`readers.LEFT_OUT`).
    defaults
        What was assumed about how many rows.
    counts
        Of the accepted rows.
    """

    path: str
    accepted: DataFrame
    models: DataFrame
    judged: DataFrame
    keys: DataFrame
    has_content: bool
    sources: DataFrame
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
        What is persisted is released with it.

    Raises
    ------
    InputError
        There is no row, or rows contradict each other and the rule for duplicates is `error`.
    """
    raw = source.frame
    sources = held.enter_context(persisted(raw.groupBy("source").agg(F.count("*").alias("rows"))))
    total = sources.agg(
        F.sum("rows").alias("rows"), F.count("*").alias("files"), F.min("source").alias("source")
    ).head()
    if total is None or not total["rows"]:
        raise InputError(f"{path} holds no rows")
    conditions = {**source.defaults, **applied_defaults(raw, rules)}
    conditions |= {name: F.col("problem") == name for name in LEFT_OUT}
    conditions[_HAS_CONTENT] = F.col("content_hash").isNotNull()
    watched = Observation()
    counted = [F.count_if(condition).alias(f"c{number}") for number, condition in enumerate(conditions.values())]
    judged = validate(raw, rules)
    watched_rows = _valid(validate(raw.observe(watched, *counted), rules))
    keys = held.enter_context(persisted(one_row_per_key(watched_rows)))
    all_valid = _count(keys)
    seen = {name: int(watched.get[f"c{number}"]) for number, name in enumerate(conditions)}
    has_content = bool(seen.pop(_HAS_CONTENT))
    left_out = {name: count for name in LEFT_OUT if (count := seen.pop(name))}
    accepted, counts, undecidable = keys, all_valid, None
    if all_valid.disputed:
        accepted, undecidable = _resolve(keys, _valid(judged), rules, path, held)
        counts = _count(accepted)
    only_source = total["source"] if total["files"] == 1 else None
    responses = _as_responses(accepted, sources, only_source)
    return Batch(
        path=path,
        accepted=responses,
        models=held.enter_context(persisted(responses.select("model_id").distinct())),
        judged=judged,
        keys=accepted,
        has_content=has_content,
        sources=sources,
        undecidable=undecidable if counts.rows < all_valid.rows else None,
        read=total["rows"],
        invalid=total["rows"] - all_valid.rows - sum(left_out.values()),
        left_out=left_out,
        defaults={name: count for name, count in seen.items() if count},
        counts=counts,
    )


def _valid(judged: DataFrame) -> DataFrame:
    """The acceptable rows, with files and contents by hashes of fixed width."""
    content = F.when(F.col("content_hash").isNotNull(), F.xxhash64("content_hash"))
    acceptable = judged.where(F.col("reason").isNull())
    return acceptable.withColumns({"source_hash": F.xxhash64("source"), "content": content})


def agree() -> Column:
    """Whether all rows of a key have one score."""
    return F.col("lowest") == F.col("highest")


def _count(keys: DataFrame) -> Counts:
    row = keys.agg(
        F.coalesce(F.sum("n_rows"), F.lit(0)).alias("rows"),
        F.count("*").alias("keys"),
        F.count_if(~agree()).alias("disputed"),
        F.count_if(agree() & (F.col("lowest") == MISSING)).alias("missing"),
        F.collect_set(_bucket()).alias("buckets"),
    ).head()
    assert row is not None
    return Counts(row["rows"], row["keys"], row["disputed"], row["missing"], tuple(sorted(row["buckets"])))


def _bucket() -> Column:
    return F.pmod(F.xxhash64("benchmark"), F.lit(BENCHMARK_BUCKETS)).cast("int")


def _resolve(
    keys: DataFrame, valid: DataFrame, rules: IngestConfig, path: str, held: ExitStack
) -> tuple[DataFrame, DataFrame]:
    """The keys with one score, by the rule for duplicates where rows disagree, and the keys that stay undecided."""
    disputed = keys.where(~agree()).select(*KEY)
    if rules.duplicates == "error":
        first = disputed.orderBy(*KEY).head()
        assert first is not None
        example = name_key(first.asDict())
        raise InputError(f"{path} has rows of different scores for {example}; ingest.duplicates = error refuses that")
    rows = valid.join(disputed, list(KEY), "left_semi")
    decided = held.enter_context(persisted(resolve_conflicts(rows, rules.duplicates)))
    accepted = keys.where(agree()).unionByName(decided.where(agree()).select(*keys.columns))
    return accepted, decided.where(~agree()).select(*KEY)


def name_key(row: Mapping[str, object]) -> str:
    """A response's key in words."""
    return f"model {row['model_id']!r}, item {row['item_id']!r} of {row['benchmark']!r}, attempt {row['attempt']}"


def _as_responses(keys: DataFrame, sources: DataFrame, only_source: str | None) -> DataFrame:
    """The columns of a response. Files are known by a hash until here, so that the shuffle is narrow."""
    if only_source is not None:
        named = keys.withColumn("source", F.lit(only_source))
    else:
        names = sources.select("source", F.xxhash64("source").alias("source_hash"))
        named = keys.join(F.broadcast(names), "source_hash")
    score = F.when(F.col("lowest") != MISSING, F.col("lowest")).alias("score")
    return named.select(*KEY, score, "evaluated_at", "source", _bucket().alias("benchmark_bucket"))
