"""The names of a batch, each once, and the hashes that stand for them.

A response is three names, and names are long. While rows are shuffled, made unique and compared, 64-bit hashes stand
for them: fixed width, so that Spark neither copies text nor sorts by it. The names come back when rows are written.

Two names with one hash would become one model, item or file. That has a probability of about 3e-8 for a million names,
and is looked for every time: with another salt the hashes are others.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.spark.scoped import persisted

HASHES = ("model_hash", "item_hash")
"""With the attempt, what identifies a response of a batch."""


@dataclass(frozen=True)
class Names:
    """What a batch is about; all frames are persisted.

    Attributes
    ----------
    salt
        Of the hashes.
    models
        model_id, model_hash.
    items
        benchmark, item_id, item_hash, and content_low and content_high: the smallest and largest hash of its contents,
        null where the source does not tell contents.
    pairs
        benchmark, model_id, answered, of every model and benchmark that have a valid row in common: how many of these
        rows have a verdict.
    sources
        source, source_hash, rows.
    n_models, n_items
        Number of rows of `models` and `items`.
    attempts
        The lowest and the highest number of an attempt.
    has_content
        Whether any content is told.
    n_rows
        Rows of the input, acceptable or not: those of all its files.
    """

    salt: int
    models: DataFrame
    items: DataFrame
    pairs: DataFrame
    sources: DataFrame
    n_models: int
    n_items: int
    attempts: tuple[int, int]
    has_content: bool
    n_rows: int

    def hashed(self, rows: DataFrame) -> DataFrame:
        """Add the hashes of its names to a frame of rows."""
        return rows.withColumns(
            {
                "model_hash": _hash(self.salt, "model_id"),
                "item_hash": _hash(self.salt, "benchmark", "item_id"),
                "source_hash": _hash(self.salt, "source"),
            }
        )

    def named(self, rows: DataFrame) -> DataFrame:
        """Give a few hashed rows their names back."""
        return rows.join(self.models, "model_hash").join(self.items.select("item_hash", "benchmark", "item_id"),
                                                         "item_hash")  # fmt: skip


def make_names(valid: DataFrame, sources: DataFrame, held: ExitStack) -> Names:
    """Find every name of a batch and hashes that tell them apart.

    Parameters
    ----------
    valid
        Acceptable rows: benchmark, model_id, item_id, attempt, score, content (long or null). Read twice, without a
        shuffle of rows.
    sources
        source, rows.
    held
        What is persisted is released with it.
    """
    attempts = (F.min("attempt").alias("low"), F.max("attempt").alias("high"), F.count("score").alias("answered"))
    contents = (F.min("content").alias("content_low"), F.max("content").alias("content_high"))
    pairs = held.enter_context(persisted(valid.groupBy("benchmark", "model_id").agg(*attempts)))
    items = held.enter_context(persisted(valid.groupBy("benchmark", "item_id").agg(*contents)))
    models = held.enter_context(persisted(pairs.select("model_id").distinct()))
    for salt in itertools.count():
        found = _looked_over(salt, models, items, pairs, sources)
        if not found["doubles"]:
            break
    return Names(
        salt=salt,
        models=models.withColumn("model_hash", _hash(salt, "model_id")),
        items=items.withColumn("item_hash", _hash(salt, "benchmark", "item_id")),
        pairs=pairs,
        sources=sources.withColumn("source_hash", _hash(salt, "source")),
        n_models=found["models"],
        n_items=found["items"],
        attempts=(found["lowest"] or 0, found["highest"] or 0),
        has_content=bool(found["contents"]),
        n_rows=found["rows"] or 0,
    )


def _looked_over(salt: int, models: DataFrame, items: DataFrame, pairs: DataFrame, sources: DataFrame) -> Row:
    """How much there is of everything, and how many models, items or files share a hash with another; in one query."""
    per_table = [
        models.agg(F.count("*").alias("models"), _doubles(salt, "model_id")),
        items.agg(
            F.count("*").alias("items"), F.count("content_low").alias("contents"),
            _doubles(salt, "benchmark", "item_id"),
        ),
        sources.agg(F.sum("rows").alias("rows"), _doubles(salt, "source")),
        pairs.agg(F.min("low").alias("lowest"), F.max("high").alias("highest")),
    ]  # fmt: skip
    together = reduce(lambda above, below: above.unionByName(below, allowMissingColumns=True), per_table)
    row = together.agg(
        *(F.max(name).alias(name) for name in together.columns if name != "doubles"), F.sum("doubles").alias("doubles")
    ).head()
    assert row is not None
    return row


def _doubles(salt: int, *names: str) -> Column:
    return (F.count("*") - F.count_distinct(_hash(salt, *names))).alias("doubles")


def _hash(salt: int, *names: str) -> Column:
    return F.xxhash64(*([F.lit(salt)] if salt else []), *names)
