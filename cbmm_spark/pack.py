"""Packing responses into blocks: by Spark SQL where a cell holds one whole answer, by arrays where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.blocks import BITMAP_MODELS, MAX_ATTEMPTS, encode_bits, encode_cells
from cbmm_spark.config import Config, PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.tables import SPECS, Warehouse, recorded

BITMAP_BYTES = BITMAP_MODELS // 8
TOO_MANY = f"more than {MAX_ATTEMPTS} attempts"
TILE = ("benchmark", "benchmark_bucket", "item_block", "model_block")


@dataclass(frozen=True)
class PackReport:
    """What packing did.

    Attributes
    ----------
    responses_version
        Version of `responses` that is packed now.
    repacked
        False where the blocks were current already.
    tiles, responses
        Number of tiles and of observed cells in them (0 where nothing was repacked).
    """

    responses_version: int
    repacked: bool
    tiles: int = 0
    responses: int = 0


@recorded("pack")
def pack(spark: SparkSession, warehouse: Warehouse, config: Config) -> PackReport:
    """Bring `response_blocks` and `model_benchmarks` up to the current version of `responses`.

    Raises
    ------
    InputError
        There are no responses, or a model answered one item more often than a tile can count.
    """
    version = warehouse.version("responses")
    if _packed_version(warehouse, config.pack) == version:
        return PackReport(version, repacked=False)
    responses = warehouse.read("responses", version)
    if responses.isEmpty():
        raise InputError(f"{warehouse.location('responses')} is empty; run `cbmm-spark ingest --input …` first")
    warehouse.ensure("response_blocks", "model_benchmarks")
    note = {"responses_version": version, "items_per_block": config.pack.items_per_block}
    warehouse.overwrite(model_benchmarks(responses), "model_benchmarks", note)
    tiles = tiles_of(responses, n_models(warehouse), config.pack, version)
    try:
        warehouse.overwrite(tiles, "response_blocks", note)
    except PythonException as error:
        if TOO_MANY not in str(error):
            raise
        raise InputError(
            f"a model has {TOO_MANY} at one item; set another attempts policy or leave the source out"
        ) from error
    size = warehouse.read("response_blocks").agg(F.count("*"), F.coalesce(F.sum("n_responses"), F.lit(0))).first()
    assert size is not None
    return PackReport(version, True, int(size[0]), int(size[1]))


def _packed_version(warehouse: Warehouse, config: PackConfig) -> int | None:
    """Return the version of `responses` that is packed in blocks of the configured size; None where there is none."""
    if not (warehouse.exists("response_blocks") and warehouse.exists("model_benchmarks")):
        return None
    size = config.items_per_block
    fits = (F.col("item_start") == F.col("item_block") * size + 1) & (F.col("n_items") <= size)
    row = (
        warehouse.read("response_blocks")
        .agg(F.min("responses_version"), F.max("responses_version"), F.bool_and(fits))
        .first()
    )
    if row is None or row[0] is None or row[0] != row[1] or not row[2]:
        return None
    return int(row[0])


def n_models(warehouse: Warehouse) -> int:
    """Return the largest model number given so far."""
    row = warehouse.read("models").agg(F.max("model_index")).first()
    if row is None or row[0] is None:
        raise InputError(f"{warehouse.location('models')} is empty; run `cbmm-spark ingest --input …` first")
    return int(row[0])


def model_benchmarks(responses: DataFrame) -> DataFrame:
    """Return one row per model and benchmark: rows, rows without a verdict, first and last evaluation."""
    return responses.groupBy("model_index", "model_id", "benchmark").agg(
        F.count("*").alias("n_rows"),
        F.count_if(F.col("score").isNull()).alias("n_null"),
        F.min("evaluated_at").alias("first_evaluated_at"),
        F.max("evaluated_at").alias("last_evaluated_at"),
    )


def tiles_of(responses: DataFrame, models: int, config: PackConfig, version: int) -> DataFrame:
    """Return `response_blocks` rows for canonical responses.

    Benchmarks whose every cell holds one attempt with score 0 or 1 go through Spark's bitmap aggregates, the others
    through arrays of cells; both end in the encoding that `blocks` chooses.

    Parameters
    ----------
    responses
        Rows of `responses`.
    models
        Largest model number.
    config
        Items per block, threshold of sparse encodings.
    version
        Written to `responses_version`.
    """
    scored = responses.where(F.col("score").isNotNull())
    plain = _plain_benchmarks(scored)
    tiles = None
    for names, build in ((plain[0], _bit_tiles), (plain[1], _cell_tiles)):
        if names:
            part = build(scored.where(F.col("benchmark").isin(names)), models, config)
            tiles = part if tiles is None else tiles.unionByName(part)
    if tiles is None:
        raise InputError("no response has a verdict: every score is null, so there is nothing to fit")
    named = tiles.withColumn("responses_version", F.lit(version).cast("long"))
    return named.select(*[F.col(name) for name in SPECS["response_blocks"].column_names])


def _plain_benchmarks(scored: DataFrame) -> tuple[list[str], list[str]]:
    """Return the benchmarks with one whole answer a cell, and the others; both small."""
    kinds = (
        scored.groupBy("benchmark")
        .agg(
            (F.min("attempt") == F.max("attempt")).alias("single"),
            F.bool_and(F.col("score").isin(0.0, 1.0)).alias("whole"),
        )
        .orderBy("benchmark")
        .collect()
    )
    plain = [row["benchmark"] for row in kinds if row["single"] and row["whole"]]
    return plain, [row["benchmark"] for row in kinds if not (row["single"] and row["whole"])]


def _item_block(config: PackConfig) -> Column:
    return F.floor((F.col("item_index") - 1) / F.lit(config.items_per_block)).cast("int").alias("item_block")


def _model_block() -> Column:
    return (F.bitmap_bucket_number("model_index") - 1).cast("int").alias("model_block")


def _bit_tiles(scored: DataFrame, models: int, config: PackConfig) -> DataFrame:
    width = F.least(F.lit(models) - F.col("model_block") * BITMAP_MODELS, F.lit(BITMAP_MODELS))
    used = F.ceil(width / 8).cast("int")
    rows = (
        scored.groupBy("benchmark", "benchmark_bucket", "item_index", _model_block())
        .agg(
            F.bitmap_construct_agg(F.bitmap_bit_position("model_index")).alias("attempted"),
            F.expr("bitmap_construct_agg(bitmap_bit_position(model_index)) FILTER (WHERE score = 1)").alias("solved"),
        )
        .select(
            *("benchmark", "benchmark_bucket", "model_block", "item_index", _item_block(config)),
            F.substring("attempted", F.lit(1), used).alias("attempted"),
            F.substring("solved", F.lit(1), used).alias("solved"),
        )
    )
    return _grouped(rows, partial(_tile_of_bits, models=models, config=config))


def _cell_tiles(scored: DataFrame, models: int, config: PackConfig) -> DataFrame:
    rows = (
        scored.groupBy("benchmark", "benchmark_bucket", "item_index", "model_index")
        .agg(F.count("*").alias("n"), F.sum("score").alias("k"))
        .select(
            *("benchmark", "benchmark_bucket", "item_index", "model_index", "n", "k"),
            *(_model_block(), _item_block(config)),
        )
    )
    return _grouped(rows, partial(_tile_of_cells, models=models, config=config))


def _grouped(rows: DataFrame, build: Callable[[pa.Table], pa.Table]) -> DataFrame:
    def tile(table: pa.Table) -> pa.Table:
        return build(table)

    schema = ", ".join(
        f"{field.name} {field.dataType.simpleString()}"
        for field in SPECS["response_blocks"].schema.fields
        if field.name != "responses_version"
    )
    return rows.groupBy(*TILE).applyInArrow(tile, schema)


def _frame_of(table: pa.Table, models: int, config: PackConfig) -> dict[str, object]:
    """Return the columns of a tile that do not depend on its cells."""
    first = {name: table.column(name)[0].as_py() for name in TILE}
    start = first["item_block"] * config.items_per_block + 1
    model_start = first["model_block"] * BITMAP_MODELS + 1
    return {
        "benchmark": first["benchmark"],
        "benchmark_bucket": first["benchmark_bucket"],
        "item_block": first["item_block"],
        "item_start": start,
        "n_items": int(table.column("item_index").to_numpy().max()) - start + 1,
        "model_start": model_start,
        "n_models": min(models - model_start + 1, BITMAP_MODELS),
    }


def _tile_of_bits(table: pa.Table, models: int, config: PackConfig) -> pa.Table:
    frame = _frame_of(table, models, config)
    n_items, n_models = int(str(frame["n_items"])), int(str(frame["n_models"]))
    rows = table.column("item_index").to_numpy() - frame["item_start"]
    planes = [_plane(table.column(name), rows, n_items, (n_models + 7) // 8) for name in ("attempted", "solved")]
    packed = encode_bits(planes[0], planes[1], n_models, config.sparse_below)
    return _one_row(frame, packed.__dict__)


def _plane(column: pa.ChunkedArray, rows: np.ndarray, n_items: int, width: int) -> np.ndarray:
    """Lay the bitmaps of a column into a plane; a null bitmap is no bit at all."""
    values = column.to_pylist()
    plane = np.zeros((n_items, width), dtype=np.uint8)
    filled = [(row, value) for row, value in zip(rows, values, strict=True) if value]
    if filled:
        data = np.frombuffer(b"".join(value for _, value in filled), dtype=np.uint8).reshape(len(filled), width)
        plane[np.array([row for row, _ in filled])] = data
    return plane


def _tile_of_cells(table: pa.Table, models: int, config: PackConfig) -> pa.Table:
    frame = _frame_of(table, models, config)
    n = table.column("n").to_numpy().astype(np.int64)
    if n.max() > MAX_ATTEMPTS:
        raise ValueError(f"{TOO_MANY} at one item of {frame['benchmark']!r}")
    packed = encode_cells(
        (table.column("item_index").to_numpy() - frame["item_start"]).astype(np.int64),
        (table.column("model_index").to_numpy() - frame["model_start"]).astype(np.int64),
        n,
        np.minimum(table.column("k").to_numpy(), n),
        int(str(frame["n_items"])),
        int(str(frame["n_models"])),
        config.sparse_below,
    )
    return _one_row(frame, packed.__dict__)


def _one_row(*parts: dict[str, object]) -> pa.Table:
    row = {name: value for part in parts for name, value in part.items()}
    order = [name for name in SPECS["response_blocks"].column_names if name != "responses_version"]
    return pa.Table.from_pylist([{name: row[name] for name in order}], schema=_ARROW_TILE)


_ARROW_TILE = pa.schema(
    [
        ("benchmark", pa.string()),
        ("benchmark_bucket", pa.int32()),
        ("item_block", pa.int32()),
        ("item_start", pa.int32()),
        ("n_items", pa.int32()),
        ("model_start", pa.int32()),
        ("n_models", pa.int32()),
        ("encoding", pa.string()),
        ("n_responses", pa.int64()),
        ("attempted", pa.binary()),
        ("solved", pa.binary()),
    ]
)

__all__ = ["PackReport", "model_benchmarks", "n_models", "pack", "tiles_of"]
