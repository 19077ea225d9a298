"""What `models` and `items` say of a batch's names: one reading of each, for numbers, contents and dates alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.ingest.bring_together import item_dates
from cbmm_spark.responses.batch import Batch
from cbmm_spark.responses.rules import NO_DATE
from cbmm_spark.tables import Warehouse

I64 = npt.NDArray[np.int64]

_BY_NAME = 1000  # up to so many names are asked for by name
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Known:
    """What is stored of a batch's models and items.

    Attributes
    ----------
    models
        Numbers of the models that have one.
    model_dates
        First and last date of these, in microseconds; `NO_DATE` where there is none.
    item_index
        By the number in the batch: the number of the item, 0 where it has none.
    first_dates, last_dates
        Likewise; `NO_DATE` where there is none.
    all_models, all_benchmarks
        Names of all stored models and benchmarks.
    content
        By the number in the batch: `items.content_hash`, where it is known.
    """

    models: Mapping[str, int]
    model_dates: Mapping[str, tuple[int, int]]
    item_index: npt.NDArray[np.int32]
    first_dates: I64
    last_dates: I64
    content: Mapping[int, str]
    all_models: Sequence[str]
    all_benchmarks: Sequence[str]

    def model_changes(self, pairs: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Models that need a number, and those whose dates become wider, of pairs with something to be written."""
        spans: dict[str, tuple[int, int]] = {}
        written = pairs.filter(pc.greater(pairs["n"], 0))
        columns = (written[name].to_pylist() for name in ("name", "first_date", "last_date"))
        for name, first, last in zip(*columns, strict=True):
            low, high = spans.get(name, (_LATEST, NO_DATE))
            spans[name] = (low, high) if first is None else (min(low, first), max(high, last))
        names = sorted(spans)
        first_dates = np.array([spans[name][0] for name in names], dtype=np.int64)
        last_dates = np.array([spans[name][1] for name in names], dtype=np.int64)
        stored = [self.model_dates.get(name, (NO_DATE, NO_DATE)) for name in names]
        is_new = np.array([name not in self.models for name in names], dtype=np.bool_)
        wider = _wider(first_dates, last_dates, *(np.array(each, dtype=np.int64) for each in _split(stored)))
        table = _table({"model_id": pa.array(names, pa.string())}, first_dates, last_dates)
        return table.filter(pa.array(is_new)), table.filter(pa.array(~is_new & wider))

    def item_changes(self, batch: Batch, dates: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Items that need a number, and those whose dates become wider, of rows of dates."""
        parts = [item_dates(row) for row in dates.to_pylist()]
        items, low, high = (np.concatenate([np.zeros(0, dtype=np.int64), *each]) for each in _split(parts, 3))
        names = batch.item_names()
        benchmarks = [benchmark for benchmark, each in batch.items.items() for _ in each.names]
        contents = contents_of(batch)
        keys = {
            "benchmark": pa.array([benchmarks[item] for item in items.tolist()], pa.string()),
            "item_id": pa.array([names[item] for item in items.tolist()], pa.string()),
            "content_hash": pa.array([contents.get(item) for item in items.tolist()], pa.string()),
        }
        is_new = self.item_index[items] == 0
        wider = _wider(low, high, self.first_dates[items], self.last_dates[items])
        table = _table(keys, low, high)
        return table.filter(pa.array(is_new)), table.filter(pa.array(~is_new & wider))

    def item_table(self, batch: Batch) -> pa.Table:
        """item_key (the number in the batch), benchmark, item_id, item_index of all items that have a number."""
        benchmarks = [benchmark for benchmark, each in batch.items.items() for _ in each.names]
        table = pa.table(
            {
                "item_key": pa.array(range(batch.n_items), pa.int32()),
                "benchmark": pa.array(benchmarks, pa.string()),
                "item_id": pa.array(batch.item_names(), pa.string()),
                "item_index": pa.array(self.item_index, pa.int32()),
            }
        )
        return table.filter(pa.array(self.item_index > 0))


def _split(rows: Sequence[tuple], width: int = 2) -> list[tuple]:
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _wider(first: I64, last: I64, stored_first: I64, stored_last: I64) -> npt.NDArray[np.bool_]:
    """Whether dates reach beyond the stored ones."""
    has_dates = last != NO_DATE
    earlier = (stored_first == NO_DATE) | (first < stored_first)
    return has_dates & (earlier | (last > stored_last))


def _table(keys: Mapping[str, pa.Array], first: I64, last: I64) -> pa.Table:
    return pa.table({**keys, "first_date": dated(np.where(first == _LATEST, NO_DATE, first)), "last_date": dated(last)})


def dated(microseconds: I64) -> pa.Array:
    """Microseconds as times in UTC; `NO_DATE` as null."""
    return pa.array(microseconds, mask=microseconds == NO_DATE).cast(pa.timestamp("us", "UTC"))


def contents_of(batch: Batch) -> dict[int, str]:
    """By the number in the batch, the hash of an item's content as `items.content_hash` has it."""
    found = {}
    for items in batch.items.values():
        for at in np.flatnonzero(items.has_content).tolist():
            found[items.first + at] = content_text(int(items.low[at]))
    return found


def content_text(hashed: int) -> str:
    """A signed 64-bit hash as hexadecimal digits, as Spark's `hex` writes it."""
    return f"{hashed & ((1 << 64) - 1):X}"


def known_names(warehouse: Warehouse, batch: Batch) -> Known:
    """Read what is stored of a batch's names."""
    models, model_dates, all_models = _known_models(warehouse, batch)
    no_dates = np.zeros(0, dtype=np.int64)
    known = Known(models, model_dates, np.zeros(0, dtype=np.int32), no_dates, no_dates, {}, all_models, ())
    return _with_items(warehouse, batch, known)


def read_again(warehouse: Warehouse, batch: Batch, known: Known, tables: Collection[str]) -> Known:
    """Read those of the two tables again that changed."""
    if "models" in tables:
        models, model_dates, all_models = _known_models(warehouse, batch)
        known = replace(known, models=models, model_dates=model_dates, all_models=all_models)
    return _with_items(warehouse, batch, known) if "items" in tables else known


def _with_items(warehouse: Warehouse, batch: Batch, known: Known) -> Known:
    item_index = np.zeros(batch.n_items, dtype=np.int32)
    first_dates, last_dates = np.full((2, batch.n_items), NO_DATE)
    content: dict[int, str] = {}
    benchmarks: set[str] = set()
    number_of = {
        (benchmark, name): items.first + at
        for benchmark, items in batch.items.items()
        for at, name in enumerate(items.names)
    }
    for benchmark, name, index, first, last, hashed in _stored_items(warehouse, batch):
        benchmarks.add(benchmark)
        item = number_of.get((benchmark, name))
        if item is not None:
            item_index[item], first_dates[item], last_dates[item] = index, first, last
            if hashed is not None:
                content[item] = hashed
    return replace(
        known,
        item_index=item_index,
        first_dates=first_dates,
        last_dates=last_dates,
        content=content,
        all_benchmarks=sorted(benchmarks),
    )


def _known_models(warehouse: Warehouse, batch: Batch) -> tuple[dict[str, int], dict[str, tuple[int, int]], list[str]]:
    if not warehouse.exists("models"):
        return {}, {}, []
    rows = warehouse.read("models").select(
        "model_id", "model_index", *(F.coalesce(F.unix_micros(name), F.lit(NO_DATE)).alias(name) for name in _DATES)
    )
    mine = set(batch.models)
    numbers, dates = {}, {}
    told = rows.toArrow()
    for name, index, first, last in zip(*(told[column].to_pylist() for column in told.column_names), strict=True):
        if name in mine:
            numbers[name], dates[name] = index, (first, last)
    return numbers, dates, told["model_id"].to_pylist()


_DATES = ("first_evaluated_at", "last_evaluated_at")


def _stored_items(warehouse: Warehouse, batch: Batch) -> Sequence[tuple]:
    """Rows of `items`: those of the batch's benchmarks, or of its items where these are few, and one a benchmark."""
    if not warehouse.exists("items") or not batch.items:
        return []
    mine = F.col("benchmark").isin(list(batch.items))
    names = set(batch.item_names())
    if len(names) <= _BY_NAME:
        mine &= F.col("item_id").isin(list(names))
    rows = warehouse.read("items").where(mine | (F.col("item_index") == 1))
    dates = (F.coalesce(F.unix_micros(name), F.lit(NO_DATE)).alias(name) for name in _DATES)
    told = rows.select("benchmark", "item_id", "item_index", *dates, "content_hash").toArrow()
    return list(zip(*(told[column].to_pylist() for column in told.column_names), strict=True))
