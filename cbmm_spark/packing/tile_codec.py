"""The packed tile: encode, decode, invariants, Arrow schemas. The only code that knows the bytes.

A *tile* is a row of `response_blocks`: the items of one item block of one benchmark (rows) against a run of
consecutive model numbers (columns). Item block g of a benchmark holds the items numbered g*B+1 ... (g+1)*B, where B
is `pack.items_per_block`.

Encodings (all integers little-endian, rows item by item):

=============  ================================================  =========================================
encoding       attempted                                         solved
=============  ================================================  =========================================
bits           bit plane, 8 models a byte, bit 0 first;          bit plane of the same shape
               empty where every cell was attempted once
counts         uint16 attempts per cell                          uint16 successes per cell
scores         uint16 attempts per cell                          float64 successes per cell
sparse_bits    int64 start of each item's cells (n_items + 1),   uint8 success (0 or 1) per cell
               then int32 column of each cell
sparse_scores  as sparse_bits                                    uint16 attempts, then float64 successes
=============  ================================================  =========================================

Example, three items and eight models, model 3 did not run item 2: attempted rows ``ff fb ff``, solved for instance
``81 03 00``: six bytes for 24 cells (zero-based item 1 lacks bit 2). Two bits a cell whatever the data, half of that
where complete; sparse encodings cost 5 or 14 bytes an observed cell and are used below `pack.sparse_below`.

An *item block* is all tiles of the same items joined along the models, columns without any response left out; it has
the same encodings plus `models`, the position (model number - 1, int32) of each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cbmm_spark.kernels.cells import BitCells, Block, Cells, CountCells, SparseCells, Workspace, count_bits

MAX_ATTEMPTS = 65_535

BITS, COUNTS, SCORES, SPARSE_BITS, SPARSE_SCORES = "bits", "counts", "scores", "sparse_bits", "sparse_scores"

ITEM_BLOCK_SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("item_block", pa.int32(), nullable=False),
        pa.field("item_start", pa.int32(), nullable=False),
        pa.field("n_items", pa.int32(), nullable=False),
        pa.field("models", pa.binary(), nullable=False),
        pa.field("encoding", pa.string(), nullable=False),
        pa.field("attempted", pa.binary(), nullable=False),
        pa.field("solved", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Packed:
    """The three columns that hold a tile's cells, and how many responses they are."""

    encoding: str
    attempted: bytes
    solved: bytes
    n_responses: int


# ------------------------------------------------------------------------------------------------ encode
def encode_bits(attempted: NDArray[np.uint8], solved: NDArray[np.uint8], n_models: int, sparse_below: float) -> Packed:
    """Encode two bit planes of shape (n_items, ceil(n_models / 8)).

    Raises
    ------
    ValueError
        If a cell is solved but not attempted, or bits beyond the last model are set.
    """
    if (solved & ~attempted).any():
        raise ValueError("a cell is solved but not attempted")
    spare = attempted.shape[1] * 8 - n_models
    if spare and (attempted[:, -1] >> (8 - spare)).any():
        raise ValueError("bits beyond the last model are set")
    n_responses = int(count_bits(attempted).sum())
    cells = attempted.shape[0] * n_models
    if n_responses < sparse_below * cells:
        mask = np.unpackbits(attempted, axis=1, bitorder="little", count=n_models).view(bool)
        item, model = np.nonzero(mask)
        values = np.unpackbits(solved, axis=1, bitorder="little", count=n_models)[item, model]
        return Packed(SPARSE_BITS, _csr_bytes(item, model, attempted.shape[0]), values.tobytes(), n_responses)
    complete = n_responses == cells
    return Packed(BITS, b"" if complete else attempted.tobytes(), solved.tobytes(), n_responses)


def encode_cells(
    item: NDArray[np.int64], model: NDArray[np.int64], n: NDArray[np.int64], k: NDArray[np.float64],
    n_items: int, n_models: int, sparse_below: float,
) -> Packed:  # fmt: skip
    """Encode observed cells given one by one, in whichever encoding is exact and smallest.

    Parameters
    ----------
    item, model
        Zero-based row and column of each cell; each cell at most once.
    n, k
        Attempts (1 ... 65,535) and successes (0 <= k <= n) of each cell.
    n_items, n_models
        Shape of the tile.
    sparse_below
        Observed share below which a sparse encoding is used.

    Raises
    ------
    ValueError
        If a cell appears twice, or n or k is out of range.
    """
    if n.size and not (n.min() >= 1 and n.max() <= MAX_ATTEMPTS and (k >= 0).all() and (k <= n).all()):
        raise ValueError(f"attempts must be 1 to {MAX_ATTEMPTS} and successes between 0 and the attempts")
    order = np.lexsort((model, item))
    item, model, n, k = item[order], model[order], n[order], k[order]
    if ((np.diff(item) == 0) & (np.diff(model) == 0)).any():
        raise ValueError("a cell appears twice")
    whole = bool((k == np.floor(k)).all())
    single = bool((n == 1).all())
    size = int(item.size)
    if size < sparse_below * n_items * n_models:
        start = _csr_bytes(item, model, n_items)
        if single and whole:
            return Packed(SPARSE_BITS, start, k.astype(np.uint8).tobytes(), size)
        return Packed(SPARSE_SCORES, start, n.astype("<u2").tobytes() + k.astype("<f8").tobytes(), size)
    if single and whole:
        planes = np.zeros((2, n_items, n_models), dtype=np.uint8)
        planes[0, item, model] = 1
        planes[1, item, model] = k.astype(np.uint8)
        packed = np.packbits(planes, axis=2, bitorder="little")
        return encode_bits(packed[0], packed[1], n_models, sparse_below)
    attempts = np.zeros((n_items, n_models), dtype="<u2")
    attempts[item, model] = n
    if whole:
        counts = np.zeros((n_items, n_models), dtype="<u2")
        counts[item, model] = k
        return Packed(COUNTS, attempts.tobytes(), counts.tobytes(), size)
    scores = np.zeros((n_items, n_models), dtype="<f8")
    scores[item, model] = k
    return Packed(SCORES, attempts.tobytes(), scores.tobytes(), size)


def _csr_bytes(item: NDArray[np.int64], model: NDArray[np.int64], n_items: int) -> bytes:
    indptr = np.zeros(n_items + 1, dtype="<i8")
    np.cumsum(np.bincount(item, minlength=n_items), out=indptr[1:])
    return indptr.tobytes() + model.astype("<i4").tobytes()


# ------------------------------------------------------------------------------------------------ decode
def decode(encoding: str, attempted: bytes, solved: bytes, n_items: int, n_models: int) -> Cells:
    """Return the cells of a tile or item block, without copying bit planes.

    Raises
    ------
    ValueError
        If the encoding is unknown or the lengths do not fit the shape.
    """
    if encoding == BITS:
        width = (n_models + 7) // 8
        plane = np.frombuffer(attempted, dtype=np.uint8).reshape(n_items, width) if attempted else None
        return BitCells(plane, np.frombuffer(solved, dtype=np.uint8).reshape(n_items, width), n_models)
    if encoding in (COUNTS, SCORES):
        n = np.frombuffer(attempted, dtype="<u2").reshape(n_items, n_models)
        k = np.frombuffer(solved, dtype="<u2" if encoding == COUNTS else "<f8").reshape(n_items, n_models)
        return CountCells(n, k)
    if encoding in (SPARSE_BITS, SPARSE_SCORES):
        indptr = np.frombuffer(attempted, dtype="<i8", count=n_items + 1)
        indices = np.frombuffer(attempted, dtype="<i4", offset=8 * (n_items + 1))
        size = indices.size
        if encoding == SPARSE_BITS:
            return SparseCells(indptr, indices, np.ones(size), np.frombuffer(solved, np.uint8).astype(float), n_models)
        n = np.frombuffer(solved, dtype="<u2", count=size).astype(np.float64)
        return SparseCells(indptr, indices, n, np.frombuffer(solved, dtype="<f8", offset=2 * size).copy(), n_models)
    raise ValueError(f"unknown encoding {encoding!r}")


def cell_list(cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return (item, model, n, k) of every observed cell, zero-based, ordered by item then model."""
    if isinstance(cells, SparseCells):
        return cells.item.astype(np.int64), cells.indices.astype(np.int64), cells.n.astype(np.int64), cells.k
    if isinstance(cells, CountCells):
        item, model = np.nonzero(cells.n_matrix)
        n, k = cells.n_matrix[item, model], cells.k_matrix[item, model]
        return item, model, n.astype(np.int64), k.astype(np.float64)
    shape = slice(0, cells.n_items), slice(0, cells.n_models)
    item, model = np.nonzero(cells.attempts_of(*shape, Workspace(0)))
    successes = cells.successes_of(*shape, Workspace(0))[item, model]
    return item, model, np.ones(item.size, dtype=np.int64), successes.astype(np.float64)


def bit_planes(cells: Cells) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return attempted and solved planes of cells decoded from `bits` or `sparse_bits`, eight models a byte."""
    if isinstance(cells, BitCells):
        return cells.attempted if cells.attempted is not None else _all_ones(cells), cells.solved
    if not isinstance(cells, SparseCells):
        raise ValueError("counts and scores have no bit planes")
    planes = np.zeros((2, cells.n_items, cells.n_models), dtype=np.uint8)
    planes[0, cells.item, cells.indices] = 1
    planes[1, cells.item, cells.indices] = cells.k
    packed = np.packbits(planes, axis=2, bitorder="little")
    return packed[0], packed[1]


def _all_ones(cells: BitCells) -> NDArray[np.uint8]:
    row = np.packbits(np.ones(cells.n_models, dtype=np.uint8), bitorder="little")
    return np.repeat(row[np.newaxis], cells.n_items, axis=0)


# ------------------------------------------------------------------------------------------------ join
def join_tiles(tiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the tiles of one item block along the models and drop columns without any response.

    Parameters
    ----------
    tiles
        Rows of `response_blocks` with the same benchmark and item block, ordered by model_start, not overlapping.

    Returns
    -------
    dict
        One row of `ITEM_BLOCK_SCHEMA`.
    """
    first = tiles[0]
    n_items = max(int(tile["n_items"]) for tile in tiles)  # a tile ends with the last item that its models answered
    end = 0
    for tile in tiles:
        if tile["model_start"] <= end or tile["item_start"] != first["item_start"]:
            raise ValueError(f"tiles of item block {first['item_block']} of {first['benchmark']!r} overlap or differ")
        end = tile["model_start"] + tile["n_models"] - 1
    encodings = {tile["encoding"] for tile in tiles}
    if BITS in encodings and encodings <= {BITS, SPARSE_BITS}:
        models, packed = _join_bits(tiles, n_items)
    else:
        models, packed = _join_cells(tiles, n_items)
    return {
        "benchmark": first["benchmark"],
        "item_block": first["item_block"],
        "item_start": first["item_start"],
        "n_items": n_items,
        "models": models.astype("<i4").tobytes(),
        "encoding": packed.encoding,
        "attempted": packed.attempted,
        "solved": packed.solved,
    }


def part_of_tile(tile: Mapping[str, Any], wanted: NDArray[np.int64]) -> dict[str, Any] | None:
    """Return the answers of some models in one tile as an item block; None where none of them answered anything.

    Parameters
    ----------
    tile
        Row of `response_blocks`.
    wanted
        Positions (model number - 1) of the models, increasing.

    Returns
    -------
    dict
        One row of `ITEM_BLOCK_SCHEMA`.
    """
    first, width = int(tile["model_start"]) - 1, int(tile["n_models"])
    mine = wanted[(wanted >= first) & (wanted < first + width)] - first
    if mine.size == 0:
        return None
    if mine.size < width:
        tile = {**tile, **_narrowed(tile, mine)}
    block = join_tiles([tile])
    if mine.size < width:
        columns = np.frombuffer(block["models"], dtype="<i4").astype(np.int64) - first
        block["models"] = (mine[columns] + first).astype("<i4").tobytes()
    return block if block["models"] else None


def _narrowed(tile: Mapping[str, Any], columns: NDArray[np.int64]) -> dict[str, Any]:
    """Return the fields of a tile that change when only some of its columns are kept."""
    n_items, width = int(tile["n_items"]), int(tile["n_models"])
    cells = decode(tile["encoding"], tile["attempted"], tile["solved"], n_items, width)
    if isinstance(cells, BitCells):
        span = slice(int(columns[0]) // 8, int(columns[-1]) // 8 + 1)  # only the bytes in between are unpacked
        kept = columns - 8 * span.start
        everything = np.full_like(cells.solved, 255) if cells.attempted is None else cells.attempted
        attempted, solved = (
            np.packbits(np.unpackbits(plane[:, span], axis=1, bitorder="little")[:, kept], axis=1, bitorder="little")
            for plane in (everything, cells.solved)
        )
        packed = encode_bits(attempted, solved, columns.size, 0.0)
    else:
        item, model, n, k = cell_list(cells)
        place = np.searchsorted(columns, model)
        mine = columns[np.minimum(place, columns.size - 1)] == model
        sparse = 1.0 if isinstance(cells, SparseCells) else 0.0
        packed = encode_cells(item[mine], place[mine], n[mine], k[mine], n_items, columns.size, sparse)
    return {
        "n_models": columns.size,
        "encoding": packed.encoding,
        "attempted": packed.attempted,
        "solved": packed.solved,
    }


def _join_bits(tiles: Sequence[Mapping[str, Any]], n_items: int) -> tuple[NDArray[np.int64], Packed]:
    models: list[NDArray[np.int64]] = []
    attempted: list[NDArray[np.uint8]] = []
    solved: list[NDArray[np.uint8]] = []
    for tile in tiles:
        width = int(tile["n_models"])
        cells = decode(tile["encoding"], tile["attempted"], tile["solved"], int(tile["n_items"]), width)
        planes = bit_planes(cells)
        seen = np.unpackbits(np.bitwise_or.reduce(planes[0], axis=0), bitorder="little", count=width).view(bool)
        models.append(np.flatnonzero(seen) + int(tile["model_start"]) - 1)
        if len(tiles) == 1 and seen.all():
            return models[0], Packed(BITS, tile["attempted"], tile["solved"], 0)
        missing = ((0, n_items - cells.n_items), (0, 0))
        for parts, plane in zip((attempted, solved), planes, strict=True):
            parts.append(np.pad(_columns(plane, width, seen), missing))
    joined = [np.packbits(np.concatenate(parts, axis=1), axis=1, bitorder="little") for parts in (attempted, solved)]
    numbers = np.concatenate(models)
    sparse = any(tile["encoding"] == SPARSE_BITS for tile in tiles)
    return numbers, encode_bits(joined[0], joined[1], numbers.size, 1.0 / 64.0 if sparse else 0.0)


def _columns(plane: NDArray[np.uint8], width: int, keep: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.unpackbits(plane, axis=1, bitorder="little", count=width)[:, keep]


def _join_cells(tiles: Sequence[Mapping[str, Any]], n_items: int) -> tuple[NDArray[np.int64], Packed]:
    parts = []
    sparse = any(str(tile["encoding"]).startswith("sparse") for tile in tiles)
    for tile in tiles:
        cells = decode(tile["encoding"], tile["attempted"], tile["solved"], tile["n_items"], tile["n_models"])
        item, model, n, k = cell_list(cells)
        parts.append((item, model + int(tile["model_start"]) - 1, n, k))
    item, model, n, k = (np.concatenate(column) for column in zip(*parts, strict=True))
    numbers, column = np.unique(model, return_inverse=True)
    return numbers, encode_cells(item, column, n, k, n_items, numbers.size, 1.0 / 64.0 if sparse else 0.0)


def read_block(row: Mapping[str, Any]) -> Block:
    """Return an item block row (`ITEM_BLOCK_SCHEMA`) as what the kernels work on."""
    models = np.frombuffer(row["models"], dtype="<i4").astype(np.int64)
    cells = decode(row["encoding"], row["attempted"], row["solved"], int(row["n_items"]), models.size)
    return Block(str(row["benchmark"]), cells, models, int(row["item_start"]))
