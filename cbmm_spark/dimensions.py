"""Dense numbers of models and items: given once, from 1, never changed.

New keys are numbered in the binary order of the key, after the highest number there is, so the order of input rows
cannot matter.

Two ingests at once cannot give one number to two keys. The MERGE that inserts new keys joins on the *number*, not on
the key: if the number was given to another key since it was computed, the MERGE fails and is computed again; if it was
given to the same key, nothing is left to insert. And Delta refuses the commit if another MERGE has added rows since
this one took its snapshot, because a MERGE reads what it writes to (https://docs.delta.io/concurrency-control).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delta.exceptions.base import ConcurrentWriteException
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from cbmm_spark.readers.files import session_settings
from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.warehouse import commit_note

_TAKEN = "cbmm-spark: the number was given to another key"


@dataclass(frozen=True)
class Dimension:
    """A table of keys and their numbers.

    Attributes
    ----------
    table
        Its name.
    key
        The columns that identify a row.
    number
        The column of the dense number.
    within
        The part of the key within which numbers are dense.
    """

    table: str
    key: tuple[str, ...]
    number: str
    within: tuple[str, ...] = ()


MODELS = Dimension("models", ("model_id",), "model_index")
ITEMS = Dimension("items", ("benchmark", "item_id"), "item_index", ("benchmark",))


def register(warehouse: Warehouse, dimension: Dimension, rows: DataFrame, metadata: Mapping[str, Any]) -> None:
    """Give numbers to the keys that have none, and widen the dates of those that have one.

    Parameters
    ----------
    warehouse
        Where the dimension table is; it must exist.
    dimension
        `MODELS` or `ITEMS`.
    rows
        Any frame with the key columns (not null) and evaluated_at.
    metadata
        Said about the commit. There is no commit if nothing is new.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    dates = (F.min("evaluated_at").alias("first_date"), F.max("evaluated_at").alias("last_date"))
    keys = rows.groupBy(*dimension.key).agg(*dates).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with_commit_retry(lambda: _merge(warehouse, dimension, keys, metadata), warehouse.location(dimension.table))
    finally:
        keys.unpersist()


def _merge(warehouse: Warehouse, dimension: Dimension, keys: DataFrame, metadata: Mapping[str, Any]) -> None:
    changes = _changes(warehouse.read(dimension.table), dimension, keys).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if not changes.isEmpty():
            _commit(warehouse, dimension, changes, metadata)
    finally:
        changes.unpersist()


def _changes(stored: DataFrame, dimension: Dimension, keys: DataFrame) -> DataFrame:
    """New keys with their numbers, and known keys whose dates widen."""
    number = dimension.number
    known = stored.select(*dimension.key, number, "first_evaluated_at", "last_evaluated_at")
    joined = keys.join(known, list(dimension.key), "left")
    earlier = F.col("first_date") < F.coalesce("first_evaluated_at", F.lit("9999-12-31").cast("timestamp"))
    later = F.col("last_date") > F.coalesce("last_evaluated_at", F.lit("0001-01-01").cast("timestamp"))
    widened = joined.where(F.col(number).isNotNull() & (earlier | later))
    columns = (*dimension.key, number, "first_date", "last_date")
    return (
        _numbered(joined.where(F.col(number).isNull()), stored, dimension)
        .select(*columns)
        .union(widened.select(*columns))
    )


def _numbered(new: DataFrame, stored: DataFrame, dimension: Dimension) -> DataFrame:
    highest = stored.groupBy(*dimension.within).agg(F.max(dimension.number).alias("highest"))
    with_highest = (
        new.join(highest, list(dimension.within), "left") if dimension.within else new.crossJoin(F.broadcast(highest))
    )
    order = Window.partitionBy(*dimension.within).orderBy(*dimension.key)
    return with_highest.withColumn(dimension.number, F.row_number().over(order) + F.coalesce("highest", F.lit(0)))


def _commit(warehouse: Warehouse, dimension: Dimension, changes: DataFrame, metadata: Mapping[str, Any]) -> None:
    same_number = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in (*dimension.within, dimension.number)]
    same_key = [F.col(f"t.{name}") == F.col(f"s.{name}") for name in dimension.key]
    optional = [
        column.name for column in SPECS[dimension.table].columns
        if column.name not in (*dimension.key, dimension.number, "first_evaluated_at", "last_evaluated_at")
    ]  # fmt: skip
    inserted: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in (*dimension.key, dimension.number)}
    inserted |= {"first_evaluated_at": F.col("s.first_date"), "last_evaluated_at": F.col("s.last_date")}
    inserted |= {name: F.lit(None) for name in optional}
    merge = (
        warehouse.delta(dimension.table)
        .alias("t")
        .merge(changes.alias("s"), _all(same_number))
        .whenMatchedUpdate(
            _all(same_key),
            {
                "first_evaluated_at": F.least("t.first_evaluated_at", "s.first_date"),
                "last_evaluated_at": F.greatest("t.last_evaluated_at", "s.last_date"),
            },
        )
        .whenMatchedUpdate(set={"first_evaluated_at": F.raise_error(F.lit(_TAKEN)).cast("timestamp")})
        .whenNotMatchedInsert(values=inserted)
    )
    note = commit_note(metadata)
    with session_settings(warehouse.spark, spark__databricks__delta__commitInfo__userMetadata=note):
        try:
            merge.execute()
        except PySparkException as error:
            if _TAKEN in str(error):
                raise ConcurrentWriteException(_TAKEN) from None
            raise


def _all(conditions: list[Column]) -> Column:
    together = conditions[0]
    for condition in conditions[1:]:
        together = together & condition
    return together
