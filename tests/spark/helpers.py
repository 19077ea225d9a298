"""Responses as arrays, put into the tables as ingest would leave them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.packing.tile_codec import cell_list, decode, encode_cells
from cbmm_spark.tables import SPECS, Warehouse

DAY = dt.date(2026, 5, 11)
BLOCK_COLUMNS = [c for c in SPECS["response_blocks"].column_names if c != "responses_version"]


class Matrix(NamedTuple):
    """One benchmark: attempts and successes (models × items), and where a row has no verdict."""

    attempts: np.ndarray
    successes: np.ndarray
    null: np.ndarray | None = None


def long_table(parts: Mapping[str, Matrix], dates: Sequence[dt.date] | None = None) -> pa.Table:
    """One row an attempt; `dates` holds the day each model was evaluated. Fractions are spread over the attempts."""
    tables = []
    for benchmark, part in parts.items():
        model, item = np.nonzero(part.attempts)
        n, k = part.attempts[model, item].astype(int), part.successes[model, item]
        row = np.repeat(np.arange(n.size), n)
        attempt = np.arange(row.size) - np.repeat(np.cumsum(n) - n, n)
        score = np.clip(k[row] - attempt, 0.0, 1.0)  # whole successes first, the fraction last
        columns = [model[row], item[row], attempt, score]
        absent = np.zeros(row.size, bool)
        if part.null is not None:
            null_model, null_item = np.nonzero(part.null)
            zeros = np.zeros(null_model.size)
            columns = [np.concatenate(c) for c in zip(columns, (null_model, null_item, zeros, zeros), strict=True)]
            absent = np.concatenate([absent, np.ones(null_model.size, bool)])
        days = [DAY.isoformat() if dates is None else dates[i].isoformat() for i in range(part.attempts.shape[0])]
        tables.append(
            pa.table(
                {
                    "benchmark": pa.array([benchmark] * absent.size, pa.string()),
                    "model_index": pa.array(columns[0].astype(np.int32) + 1),
                    "item_index": pa.array(columns[1].astype(np.int32) + 1),
                    "attempt": pa.array(columns[2].astype(np.int32)),
                    "score": pa.array(columns[3].astype(np.float64), mask=absent),
                    "day": pa.array(np.array(days, dtype=object)[columns[0].astype(int)].tolist(), pa.string()),
                }
            )
        )
    return pa.concat_tables(tables)


def responses_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Rows of `responses`."""
    frame = spark.createDataFrame(table).withColumns(
        {
            "model_id": F.format_string("model %05d", "model_index"),
            "item_id": F.format_string("item %05d", "item_index"),
            "evaluated_at": F.to_timestamp("day"),
            "source": F.lit("test"),
            "ingested_at": F.lit(dt.datetime(2026, 5, 11, tzinfo=dt.UTC)),
            "benchmark_bucket": F.expr("pmod(xxhash64(benchmark), 64)").cast("int"),
        }
    )
    return frame.select(*[F.col(f.name).cast(f.dataType) for f in SPECS["responses"].schema.fields])


def store(warehouse: Warehouse, parts: Mapping[str, Matrix], **options: Any) -> None:
    """Write `responses`, `models` and `items`; what was there is replaced. `shuffled` permutes the rows."""
    shuffled = options.pop("shuffled", None)
    table = long_table(parts, **options)
    if shuffled is not None:
        table = table.take(np.random.default_rng(shuffled).permutation(table.num_rows))
    warehouse.ensure("responses", "models", "items")
    responses = responses_of(warehouse.spark, table)
    warehouse.overwrite(responses, "responses")
    for name, key in (("models", ["model_id", "model_index"]), ("items", ["benchmark", "item_id", "item_index"])):
        times = [F.min("evaluated_at").alias("first_evaluated_at"), F.max("evaluated_at").alias("last_evaluated_at")]
        rows = responses.groupBy(*key).agg(*times)
        fields = SPECS[name].schema.fields
        full = [(F.col(f.name) if f.name in rows.columns else F.lit(None)).cast(f.dataType) for f in fields]
        named = [column.alias(f.name) for column, f in zip(full, fields, strict=True)]
        warehouse.overwrite(rows.select(*named).coalesce(1), name)


def tiles_in_memory(
    spark: SparkSession, parts: Mapping[str, Matrix], items_per_block: int = 16, sparse_below: float = 0.0
) -> DataFrame:
    """Rows of `response_blocks` without `responses_version`, encoded here and stored nowhere."""
    rows = []
    for benchmark, part in parts.items():
        for block, start in enumerate(range(0, part.attempts.shape[1], items_per_block)):
            n, k = (m[:, start : start + items_per_block].T for m in (part.attempts, part.successes))
            item, model = np.nonzero(n)
            packed = encode_cells(item, model, n[item, model].astype(int), k[item, model], *n.shape, sparse_below)
            row: dict[str, Any] = {
                "benchmark": benchmark, "benchmark_bucket": 0, "item_block": block, "item_start": start + 1,
                "n_items": n.shape[0], "model_start": 1, "n_models": n.shape[1], **packed.__dict__,
            }  # fmt: skip
            rows.append(tuple(row[name] for name in BLOCK_COLUMNS))
    schema = [f for f in SPECS["response_blocks"].schema.fields if f.name != "responses_version"]
    return spark.createDataFrame(rows, schema=type(SPECS["response_blocks"].schema)(schema))


def unpacked(tiles: Sequence[Any]) -> dict[tuple[str, int, int], tuple[int, float]]:
    """(benchmark, model, item), numbered from 1, to (attempts, successes), of collected tiles."""
    cells = {}
    for tile in tiles:
        decoded = decode(tile["encoding"], tile["attempted"], tile["solved"], tile["n_items"], tile["n_models"])
        for item, model, n, k in zip(*(column.tolist() for column in cell_list(decoded)), strict=True):
            key = (tile["benchmark"], model + tile["model_start"], item + tile["item_start"])
            assert key not in cells
            cells[key] = (n, k)
    return cells


def cells_of_parts(parts: Mapping[str, Matrix]) -> dict[tuple[str, int, int], tuple[int, float]]:
    """The same from matrices."""
    return {
        (name, model + 1, item + 1): (int(part.attempts[model, item]), float(part.successes[model, item]))
        for name, part in parts.items()
        for model, item in zip(*(index.tolist() for index in np.nonzero(part.attempts)), strict=True)
    }


def as_others_read(warehouse: Warehouse, name: str, *columns: str) -> list[dict[str, Any]]:
    """Columns of a table's rows, its files found by delta-rs and read by PyArrow: without a Spark job."""
    found: list[dict[str, Any]] = []
    for uri in DeltaTable(warehouse.location(name)).file_uris():
        found += pq.ParquetFile(uri.removeprefix("file://")).read(list(columns)).to_pylist()
    return found


def collected(warehouse: Warehouse, name: str) -> list[Any]:
    """All rows of a table, read by Spark once for each of its versions."""
    log = Path(warehouse.location(name)) / "_delta_log"
    key = (warehouse.location(name), max(int(path.stem) for path in log.glob("*.json")))
    if key not in _COLLECTED:
        _COLLECTED[key] = warehouse.read(name).collect()
    return list(_COLLECTED[key])


_COLLECTED: dict[tuple[str, int], list[Any]] = {}


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.iterations: list[tuple[Any, ...]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    def iteration(self, *values: Any) -> None:
        """Keep an iteration."""
        self.iterations.append(values)

    def event(self, name: str, **fields: Any) -> None:
        """Keep an event."""
        self.events.append((name, fields))

    def of(self, name: str) -> list[dict[str, Any]]:
        """Fields of the events of one name."""
        return [fields for found, fields in self.events if found == name]
