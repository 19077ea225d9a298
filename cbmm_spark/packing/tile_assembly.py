"""Building tiles out of what Spark delivers: words of 64 items, single cells, and tiles that are stored already.

Packing reads `responses` model by model. A *word* holds what one model did on 64 consecutive items of one item block:
two 64-bit integers, bit i for the (64 w + i)-th item. A tile holds bits along the models, so words are transposed here.

A tile is the same bytes whichever way it was made: from all its responses, from a stored tile of which some models'
columns are read anew, or from several narrower tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.packing.tile_codec import (
    BITS,
    SPARSE_BITS,
    Packed,
    bit_planes,
    cell_list,
    decode,
    encode_bits,
    encode_cells,
)

WORD_ITEMS = 64
"""Items of a word."""

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Attempted and solved, each of shape (n_items, ceil(n_models / 8)), bit 0 first."""

CellArrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Item, model (both zero-based in the tile), attempts and successes of each cell."""


@dataclass(frozen=True)
class Frame:
    """Where a tile lies and how it is encoded.

    Attributes
    ----------
    model_start
        model_index of the first model.
    n_models
        Width in models.
    sparse_below
        Observed share below which a sparse encoding is used.
    """

    model_start: int
    n_models: int
    sparse_below: float


Built = tuple[int, Packed]
"""Number of items, which ends with the last item answered, and the cells."""


def planes_of_words(
    model: NDArray[np.int64],
    word: NDArray[np.int64],
    attempted: NDArray[np.int64],
    solved: NDArray[np.int64],
    n_models: int,
) -> Planes:
    """Transpose words into bit planes along the models.

    Parameters
    ----------
    model, word
        Zero-based column and number of each word; each pair at most once.
    attempted, solved
        The 64 bits of each word.
    n_models
        Width of the tile.

    Returns
    -------
    tuple
        Attempted and solved planes, of 64 x (largest word + 1) rows.
    """
    n_words = int(word.max()) + 1 if word.size else 0
    planes = []
    for bits in (attempted, solved):
        grid = np.zeros((n_words, n_models), dtype="<i8")
        grid[word, model] = bits
        plane = np.empty((n_words * WORD_ITEMS, (n_models + 7) // 8), dtype=np.uint8)
        for number, row in enumerate(grid):  # a word of all models at a time: 64 bytes a model
            along_items = np.unpackbits(row.view(np.uint8).reshape(n_models, 8), axis=1, bitorder="little")
            rows = slice(number * WORD_ITEMS, (number + 1) * WORD_ITEMS)
            plane[rows] = np.packbits(along_items.T, axis=1, bitorder="little")
        planes.append(plane)
    return planes[0], planes[1]


def tile_of_planes(planes: Planes, stored: Sequence[Mapping[str, Any]], anew: NDArray[np.int64], frame: Frame) -> (
    Built | None
):  # fmt: skip
    """Build a tile from planes of the models read anew, and from stored tiles for all others.

    Parameters
    ----------
    planes
        What the models `anew` did; no bit of another model is set.
    stored
        Tiles of the same items that lie within the frame (rows of `response_blocks`), not overlapping.
    anew
        Zero-based columns of which nothing stored counts.
    frame
        The tile to be built.

    Returns
    -------
    tuple or None
        None where no cell is observed.
    """
    if any(tile["encoding"] not in (BITS, SPARSE_BITS) for tile in stored):
        return tile_of_cells(_cells_of_planes(planes, frame.n_models), stored, anew, frame)
    height = max([planes[0].shape[0], *(int(tile["n_items"]) for tile in stored)])
    width = (frame.n_models + 7) // 8
    keep = np.ones(frame.n_models, dtype=bool)
    keep[anew] = False
    mask = np.packbits(keep, bitorder="little")
    attempted, solved = np.zeros((2, height, width), dtype=np.uint8)
    for tile in stored:
        offset = int(tile["model_start"]) - frame.model_start
        parts = bit_planes(_decoded(tile))
        for target, part in zip((attempted, solved), parts, strict=True):
            _place(target[: part.shape[0]], part, offset)
    for target, part in zip((attempted, solved), planes, strict=True):
        target &= mask
        target[: part.shape[0]] |= part
    answered = np.flatnonzero((attempted | solved).any(axis=1))
    if not answered.size:
        return None
    n_items = int(answered[-1]) + 1
    return n_items, encode_bits(attempted[:n_items], solved[:n_items], frame.n_models, frame.sparse_below)


def tile_of_cells(cells: CellArrays, stored: Sequence[Mapping[str, Any]], anew: NDArray[np.int64], frame: Frame) -> (
    Built | None
):  # fmt: skip
    """Build a tile from single cells of the models read anew, and from stored tiles for all others.

    Parameters and result are those of `tile_of_planes`, with cells instead of planes.
    """
    keep = np.ones(frame.n_models, dtype=bool)
    keep[anew] = False
    parts = [cells]
    for tile in stored:
        item, model, n, k = cell_list(_decoded(tile))
        column = model + (int(tile["model_start"]) - frame.model_start)
        kept = keep[column]
        parts.append((item[kept], column[kept], n[kept], k[kept]))
    item, model, n, k = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not item.size:
        return None
    n_items = int(item.max()) + 1
    return n_items, encode_cells(item, model, n, k, n_items, frame.n_models, frame.sparse_below)


def _decoded(tile: Mapping[str, Any]) -> Any:
    return decode(tile["encoding"], tile["attempted"], tile["solved"], int(tile["n_items"]), int(tile["n_models"]))


def _place(target: NDArray[np.uint8], part: NDArray[np.uint8], offset: int) -> None:
    """Set the bits of a plane in a wider one, `offset` models to the right."""
    first, shift = divmod(offset, 8)
    width = part.shape[1]
    if not shift:
        target[:, first : first + width] |= part
        return
    target[:, first : first + width] |= part << shift
    over = target[:, first + 1 : first + 1 + width]  # the last byte has no bits to hand on where the target ends
    over |= part[:, : over.shape[1]] >> (8 - shift)


def _cells_of_planes(planes: Planes, n_models: int) -> CellArrays:
    attempted, solved = (np.unpackbits(plane, axis=1, bitorder="little", count=n_models) for plane in planes)
    item, model = np.nonzero(attempted)
    return item, model, np.ones(item.size, dtype=np.int64), solved[item, model].astype(np.float64)


__all__ = ["WORD_ITEMS", "Frame", "planes_of_words", "tile_of_cells", "tile_of_planes"]
