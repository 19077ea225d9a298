"""Dense numbers of models and items: given once, from 1, never changed.

New keys are numbered in the binary order of the key, after the highest number there is, so the order of input rows
cannot matter.

Two ingests at once cannot give one number to two keys, or two numbers to one key. The query that numbers new keys
reads the table it is appended to, and Delta evaluates it inside the transaction: on the transaction's own snapshot,
not on the one that was current when the frame was made. So it is no blind append, and Delta refuses the commit if a
rival has added rows since that snapshot (https://docs.delta.io/concurrency-control); it is then evaluated again. A
test lets a rival commit at each of the two moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.tables import SPECS, Warehouse, with_commit_retry

_ATTRIBUTES = ("content_hash",)
"""What a source may tell of a key besides its number; kept from when the key was first seen."""


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


def number_new(warehouse: Warehouse, dimension: Dimension, rows: DataFrame, metadata: Mapping[str, Any]) -> None:
    """Give numbers to the keys that have none, in one commit.

    Parameters
    ----------
    warehouse
        Where the dimension table is; it must exist.
    dimension
        `MODELS` or `ITEMS`.
    rows
        Each key once: its columns (not null), first_date and last_date, and where known content_hash. Keys that have a
        number already, maybe from a rival just now, are left alone.
    metadata
        Said about the commit.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    warehouse.append(_numbered(rows, warehouse.read(dimension.table), dimension), dimension.table, metadata)


def widen(warehouse: Warehouse, dimension: Dimension, rows: DataFrame, metadata: Mapping[str, Any]) -> None:
    """Let the dates of keys that have a number reach as far as those of some rows, in one commit.

    Parameters and errors are those of `number_new`; the rows are those whose dates reach beyond the stored ones.
    """
    same_key = " AND ".join(f"t.{name} = s.{name}" for name in dimension.key)
    dated = rows.select(*dimension.key, "first_date", "last_date")

    def commit() -> None:
        merge = warehouse.delta(dimension.table).alias("t").merge(dated.alias("s"), same_key)
        dates: dict[str, str | Column] = {
            "first_evaluated_at": F.least("t.first_evaluated_at", "s.first_date"),
            "last_evaluated_at": F.greatest("t.last_evaluated_at", "s.last_date"),
        }
        merge.whenMatchedUpdate(set=dates).execute()

    with warehouse.noted(metadata):
        with_commit_retry(commit, warehouse.location(dimension.table))


def _numbered(keys: DataFrame, stored: DataFrame, dimension: Dimension) -> DataFrame:
    """The rows of the keys that are not stored, for the append to evaluate: it reads what it is appended to."""
    new = keys.join(stored.select(*dimension.key), list(dimension.key), "left_anti")
    highest = stored.groupBy(*dimension.within).agg(F.max(dimension.number).alias("highest"))
    with_highest = new.join(highest, list(dimension.within), "left") if dimension.within else new.crossJoin(highest)
    order = Window.partitionBy(*dimension.within).orderBy(*dimension.key)
    number = F.row_number().over(order) + F.coalesce("highest", F.lit(0))
    given: dict[str, Column] = {name: F.col(name) for name in dimension.key}
    given |= {dimension.number: number}
    given |= {"first_evaluated_at": F.col("first_date"), "last_evaluated_at": F.col("last_date")}
    given |= {name: F.col(name) for name in _ATTRIBUTES if name in keys.columns}
    return with_highest.select(
        *(
            given.get(field.name, F.lit(None).cast(field.dataType)).alias(field.name)
            for field in SPECS[dimension.table].schema.fields
        )
    )
