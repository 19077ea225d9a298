"""From `responses` to tiles, in Spark: one pass of hash aggregates, one small shuffle, arrays for each tile.

Where every cell holds one whole answer, the rows of one model on 64 consecutive items become a *word* of two 64-bit
integers before anything is shuffled (bit_or is an aggregate of fixed width, so Spark hashes and never sorts; and
`responses` is written model by model, so that the rows of a word follow each other). Other benchmarks become cells
(attempts, successes). `tile_assembly` makes a tile of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.packing.model_blocks import ModelBlock, cut
from cbmm_spark.packing.tile_assembly import WORD_ITEMS, Frame, planes_of_words, tile_of_cells, tile_of_planes
from cbmm_spark.packing.tile_codec import MAX_ATTEMPTS, Packed
from cbmm_spark.tables import SPECS

TILE = ("benchmark", "benchmark_bucket", "item_block", "model_start")
"""What tells tiles apart; the bucket belongs to the benchmark."""

COLUMN = ("benchmark", "benchmark_bucket", "item_block", "model_index")
"""A column of a tile: one model on the items of one block. The unit in which changes are read anew."""

Kinds = tuple[list[str], list[str]]
"""Benchmarks packed as words, and as cells."""

TOO_MANY = f"more than {MAX_ATTEMPTS} attempts"

_WHOLE = 2.0**26
_REST = 2.0**63


@dataclass(frozen=True)
class Layout:
    """Where a cell goes.

    Attributes
    ----------
    blocks
        Model blocks, ordered; every model number lies in one.
    config
        Items per block, threshold of sparse encodings.
    """

    blocks: Sequence[ModelBlock]
    config: PackConfig

    def item_block(self) -> Column:
        """The number of the item block, from `item_index`."""
        size = F.lit(self.config.items_per_block)
        return F.floor((F.col("item_index") - 1) / size).cast("int")

    def model_start(self, of: str = "model_index") -> Column:
        """The first model of the block that a model lies in."""
        first, *others = self.blocks
        start = F.lit(first.start)
        for block in others:
            start = F.when(F.col(of) >= block.start, F.lit(block.start)).otherwise(start)
        return start.cast("int")

    def frames(self) -> dict[int, Frame]:
        """The frame of a tile by its first model."""
        return {block.start: Frame(block.start, block.width, self.config.sparse_below) for block in self.blocks}


def tiles_of(
    responses: DataFrame,
    models: int,
    config: PackConfig,
    version: int,
    blocks: Sequence[ModelBlock] | None = None,
    kinds: Kinds | None = None,
) -> DataFrame:
    """Return `response_blocks` rows for canonical responses.

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
    blocks
        Model blocks that hold every model; as wide as they may be if not given.
    kinds
        Of the benchmarks of `responses`, where they are known (`benchmark_kinds`); else the rows are read once more.

    Raises
    ------
    InputError
        No response has a verdict.
    """
    layout = Layout(cut(models) if blocks is None else blocks, config)
    scored = responses.where(F.col("score").isNotNull())
    plain, other = _kinds_of(scored) if kinds is None else kinds
    if not (plain or other):
        raise InputError("no response has a verdict: every score is null, so there is nothing to fit")
    parts = []
    for names, kind in ((plain, _WORDS), (other, _CELLS)):
        if names:
            rows = kind.rows(_of_benchmarks(scored, names, bool(plain and other)), layout)
            placed = rows.withColumn("model_start", layout.model_start())
            parts.append(_Builder(layout, kind).over(placed))
    return _finished(parts, version)


def patched_tiles(
    responses: DataFrame, changed: DataFrame, stored: DataFrame, layout: Layout, version: int
) -> DataFrame:
    """Return the rows that replace stored tiles, and new ones.

    Parameters
    ----------
    responses
        Rows of `responses`, at least all of the changed columns.
    changed
        `COLUMN`, distinct: the columns of which nothing stored counts.
    stored
        Rows of `response_blocks`: every tile that changed columns lie in, and every tile to be joined with others.
    layout
        The model blocks that tiles shall have.
    version
        Written to `responses_version`.
    """
    scored = responses.where(F.col("score").isNotNull())
    _, other = _kinds_of(scored)
    of_other = F.col("benchmark").isin(other) if other else F.lit(False)
    parts = []
    for kind, mine in ((_WORDS, ~of_other), (_CELLS, of_other)):
        if kind is _CELLS and not other:
            continue
        rows = kind.rows(scored.where(mine) if other else scored, layout).join(changed, list(COLUMN), "left_semi")
        emptied = changed.where(mine).withColumns({name: F.lit(None).cast(t) for name, t in kind.values.items()})
        fresh = rows.unionByName(emptied.select(*rows.columns)).withColumn("model_start", layout.model_start())
        old = stored.where(mine).select(*_STORED, layout.model_start("stored_start").alias("model_start"))
        parts.append(_Builder(layout, kind).over_both(fresh, old))
    return _finished(parts, version)


def kind_columns() -> tuple[Column, ...]:
    """Aggregates of responses that decide how their benchmark is packed; rows without a verdict do not count."""
    attempt = F.when(F.col("score").isNotNull(), F.col("attempt"))
    return (
        F.min(attempt).alias("lowest_attempt"),
        F.max(attempt).alias("highest_attempt"),
        F.bool_and(F.col("score").isin(0.0, 1.0)).alias("is_whole"),
    )


def benchmark_kinds(counted: DataFrame) -> Kinds:
    """Tell the benchmarks with one whole answer a cell from the others.

    Parameters
    ----------
    counted
        benchmark and `kind_columns`, any number of rows a benchmark.

    Returns
    -------
    tuple
        The former and the latter, both ordered and small. A benchmark without a verdict is in neither.
    """
    single = F.min("lowest_attempt") == F.max("highest_attempt")
    kinds = (
        counted.groupBy("benchmark")
        .agg(single.alias("is_single"), F.bool_and("is_whole").alias("is_whole"))
        .where(F.col("is_whole").isNotNull())
        .orderBy("benchmark")
        .collect()
    )
    plain = [row["benchmark"] for row in kinds if row["is_single"] and row["is_whole"]]
    return plain, [row["benchmark"] for row in kinds if not (row["is_single"] and row["is_whole"])]


def _kinds_of(responses: DataFrame) -> Kinds:
    return benchmark_kinds(responses.groupBy("benchmark").agg(*kind_columns()))


def _of_benchmarks(scored: DataFrame, names: list[str], there_are_others: bool) -> DataFrame:
    return scored.where(F.col("benchmark").isin(names)) if there_are_others else scored


def _finished(parts: list[DataFrame], version: int) -> DataFrame:
    tiles = parts[0]
    for part in parts[1:]:
        tiles = tiles.unionByName(part)
    named = tiles.withColumn("responses_version", F.lit(version).cast("long"))
    return named.select(*[F.col(name) for name in SPECS["response_blocks"].column_names])


# ------------------------------------------------------------------------------------------------ rows of a tile
@dataclass(frozen=True)
class _Kind:
    """Words or cells: how rows are made in Spark, and a tile from them."""

    rows: Callable[[DataFrame, Layout], DataFrame]
    values: dict[str, str]
    tile: Callable[[pa.Table, Sequence[dict[str, Any]], np.ndarray, Frame], tuple[int, Packed] | None]


def _word_rows(scored: DataFrame, layout: Layout) -> DataFrame:
    within = f"((item_index - 1) % {layout.config.items_per_block})"
    bit = f"shiftleft(1L, {within} & {WORD_ITEMS - 1})"
    return scored.groupBy(
        *("benchmark", "benchmark_bucket", "model_index"),
        layout.item_block().alias("item_block"),
        F.expr(f"shiftright({within}, {WORD_ITEMS.bit_length() - 1})").alias("word"),
    ).agg(F.expr(f"bit_or({bit})").alias("attempted"), F.expr(f"bit_or(if(score = 1, {bit}, 0L))").alias("solved"))


def _cell_rows(scored: DataFrame, layout: Layout) -> DataFrame:
    """Attempts and successes of every cell.

    A sum of doubles depends on their order, which a shuffle does not keep, and tiles shall be the same bytes every
    time. So scores are cut into multiples of 2^-26 and, of the rest, of 2^-63: up to 65,535 of either add up exactly.
    """
    whole = F.floor(F.col("score") * _WHOLE) / _WHOLE
    rest = F.floor((F.col("score") - whole) * _REST) / _REST
    successes = F.when(F.col("n") == 1, F.col("only")).otherwise(F.col("whole") + F.col("rest"))
    return (
        scored.groupBy("benchmark", "benchmark_bucket", "model_index", "item_index")
        .agg(
            F.count("*").cast("int").alias("n"),
            F.max("score").alias("only"),
            F.sum(whole).alias("whole"),
            F.sum(rest).alias("rest"),
        )
        .select(
            *("benchmark", "benchmark_bucket", "model_index", layout.item_block().alias("item_block")),
            *("item_index", "n", F.least(successes, F.col("n")).alias("k")),
        )
    )


def _tile_of_words(
    table: pa.Table, stored: Sequence[dict[str, Any]], anew: np.ndarray, frame: Frame
) -> tuple[int, Packed] | None:
    model = _numbers(table, "model_index") - frame.model_start
    columns = [_numbers(table, name) for name in ("word", "attempted", "solved")]
    planes = planes_of_words(model, columns[0], columns[1], columns[2], frame.n_models)
    return tile_of_planes(planes, stored, anew, frame)


def _tile_of_cells(
    table: pa.Table, stored: Sequence[dict[str, Any]], anew: np.ndarray, frame: Frame
) -> tuple[int, Packed] | None:
    n = _numbers(table, "n")
    if n.size and n.max() > MAX_ATTEMPTS:
        raise ValueError(f"{TOO_MANY} at one item of {table.column('benchmark')[0].as_py()!r}")
    item = _numbers(table, "item_index") - table.column("item_start")[0].as_py() if n.size else n
    cells = item, _numbers(table, "model_index") - frame.model_start, n, table.column("k").to_numpy()
    return tile_of_cells(cells, stored, anew, frame)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy().astype(np.int64)


_WORDS = _Kind(_word_rows, {"word": "int", "attempted": "long", "solved": "long"}, _tile_of_words)
_CELLS = _Kind(_cell_rows, {"item_index": "int", "n": "int", "k": "double"}, _tile_of_cells)


# ------------------------------------------------------------------------------------------------ tiles
class _Builder:
    """Makes the row of a tile from what was grouped for it; runs on the executors."""

    def __init__(self, layout: Layout, kind: _Kind) -> None:
        self._frames = layout.frames()
        self._items_per_block = layout.config.items_per_block
        self._values = tuple(kind.values)
        self._tile = kind.tile

    def over(self, rows: DataFrame) -> DataFrame:
        """Return the tiles of rows, of which nothing is stored."""

        def tile(table: pa.Table) -> pa.Table:
            return self._built(table, [], np.empty(0, dtype=np.int64), _first(table))

        return rows.groupBy(*TILE).applyInArrow(tile, _DDL)

    def over_both(self, fresh: DataFrame, stored: DataFrame) -> DataFrame:
        """Return the tiles of changed columns and stored tiles; a column without a value holds nothing any more."""

        def tile(left: pa.Table, right: pa.Table) -> pa.Table:
            return self._patched(left, right)

        return fresh.groupBy(*TILE).cogroup(stored.groupBy(*TILE)).applyInArrow(tile, _DDL)

    def _patched(self, fresh: pa.Table, stored: pa.Table) -> pa.Table:
        key = _first(fresh if fresh.num_rows else stored)
        tiles = sorted(
            ({**tile, "model_start": tile["stored_start"]} for tile in stored.to_pylist()),
            key=lambda tile: int(tile["model_start"]),
        )
        anew = np.unique(_numbers(fresh, "model_index")) - key["model_start"]
        filled = fresh.filter(pc.is_valid(fresh.column(self._values[0])))
        return self._built(filled, tiles, anew, key)

    def _built(
        self, table: pa.Table, stored: Sequence[dict[str, Any]], anew: np.ndarray, key: dict[str, Any]
    ) -> pa.Table:
        frame = self._frames[key["model_start"]]
        item_start = key["item_block"] * self._items_per_block + 1
        start = pa.array(np.full(table.num_rows, item_start, dtype=np.int32))
        built = self._tile(table.append_column("item_start", start), stored, anew, frame)
        if built is None:
            return _ARROW_TILE.empty_table()
        n_items, packed = built
        row = {**key, "item_start": item_start, "n_items": n_items, "n_models": frame.n_models, **packed.__dict__}
        return pa.Table.from_pylist([{name: row[name] for name in _ARROW_TILE.names}], schema=_ARROW_TILE)


def _first(table: pa.Table) -> dict[str, Any]:
    return {name: table.column(name)[0].as_py() for name in TILE}


_STORED = (
    *("benchmark", "benchmark_bucket", "item_block", "stored_start", "n_items", "n_models"),
    *("encoding", "attempted", "solved"),
)

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

_DDL = ", ".join(
    f"{field.name} {field.dataType.simpleString()}"
    for field in SPECS["response_blocks"].schema.fields
    if field.name != "responses_version"
)

__all__ = ["COLUMN", "TILE", "TOO_MANY", "Layout", "benchmark_kinds", "kind_columns", "patched_tiles", "tiles_of"]
