"""Drawing the responses of a simulated leaderboard, one rectangle at a time.

The random number of a cell is a hash of (seed, model, item, attempt): a tile is the same however the matrix is cut,
a larger leaderboard extends a smaller one, and nothing larger than a tile is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

REGULAR, UNINFORMATIVE, DUPLICATE, MISKEYED = range(4)
ITEM_KINDS = ("regular", "uninformative", "duplicate", "miskeyed")  # names of the four constants above

TILE_CELLS = 1 << 15  # cells drawn at once: their 64-bit temporaries stay in the cache


class Items(NamedTuple):
    """Items, sorted by benchmark.

    Attributes
    ----------
    a, b
        Discrimination ≥ 0 and easiness (n_items,). A duplicate has its source's values.
    benchmark
        Number of the benchmark (n_items,), 0 … n_benchmarks − 1, ascending.
    kind
        REGULAR, UNINFORMATIVE (a is exactly 0), DUPLICATE or MISKEYED (n_items,).
    source
        The item whose responses this one shows (n_items,): itself unless it is a duplicate.
    """

    a: FloatArray
    b: FloatArray
    benchmark: NDArray[np.intp]
    kind: NDArray[np.int8]
    source: NDArray[np.intp]


@dataclass(frozen=True)
class World:
    """Everything that is true of a simulated leaderboard.

    Attributes
    ----------
    theta
        Ability (n_models,).
    items
        The items.
    sigma
        Temperature, > 0.
    seed
        Seed of the responses.
    forced
        1 for a model that solves everything, −1 for one that solves nothing, otherwise 0 (n_models,).
    absence
        Probability that a response is missing (n_models, n_benchmarks, 2), float32; the last axis is the answer that
        would have been seen: wrong, correct; it has length 1 where that plays no part. None: complete.
    anchor
        Items that are never missing unless their benchmark was not run (n_items,).
    run
        Whether a model was run on a benchmark at all (n_models, n_benchmarks).
    """

    theta: FloatArray
    items: Items
    sigma: float
    seed: int
    forced: NDArray[np.int8]
    absence: NDArray[np.float32] | None
    anchor: BoolArray
    run: BoolArray

    @property
    def n_models(self) -> int:
        """Number of models."""
        return len(self.theta)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.items.a)


class Tile(NamedTuple):
    """A rectangle of responses, items × models: whether there is one, and whether it is correct (False if missing)."""

    attempted: BoolArray
    correct: BoolArray


class PackedBlock(NamedTuple):
    """A range of items × all models as bits along the models, least significant first.

    Attributes
    ----------
    attempted, solved
        uint8 (items in the range, ⌈n_models / 8⌉); bits past the last model are 0.
    """

    attempted: NDArray[np.uint8]
    solved: NDArray[np.uint8]


def draw_tile(world: World, models: slice, items: slice | NDArray[np.intp], attempt: int = 0) -> Tile:
    """Draw the responses of some models to some items.

    Parameters
    ----------
    world
        The truth.
    models
        Contiguous range of models.
    items
        Range, or numbers, of items.
    attempt
        Which of the repeated attempts. Whether a cell is missing is decided with attempt 0, for all of them.

    Returns
    -------
    Tile
        Booleans (items, models). Equal to the same cells of any other tile.
    """
    item = np.arange(world.n_items)[items]
    low, high, _ = models.indices(world.n_models)
    attempted = np.empty((len(item), max(0, high - low)), dtype=np.bool_)
    correct = np.empty_like(attempted)
    step = max(1, TILE_CELLS // max(1, high - low))
    first_keys, keys = _keys(world.seed, low, high, 0), _keys(world.seed, low, high, attempt)
    for first in range(0, len(item), step):
        part = slice(first, first + step)
        _draw_first(world, slice(low, high), item[part], first_keys, attempted[part], correct[part])
        if attempt:
            _draw_answers(
                world, slice(low, high), item[part], _hash(keys, world.items.source[item[part]]), correct[part]
            )
            correct[part] &= attempted[part]
    return Tile(attempted, correct)


def iterate_tiles(world: World, models_per_tile: int) -> Iterator[tuple[slice, Tile]]:
    """Yield (range of models, their responses to all items) in order: memory is models_per_tile × n_items."""
    for first in range(0, world.n_models, models_per_tile):
        models = slice(first, min(first + models_per_tile, world.n_models))
        yield models, draw_tile(world, models, slice(None))


def draw_block(world: World, items: slice) -> PackedBlock:
    """Draw a range of items × all models as packed bits, holding about 33,000 unpacked cells or one item at a time."""
    low, high, _ = items.indices(world.n_items)
    width = (world.n_models + 7) // 8
    attempted = np.empty((max(0, high - low), width), dtype=np.uint8)
    solved = np.empty_like(attempted)
    step = max(1, TILE_CELLS // max(1, world.n_models))
    for first in range(low, high, step):
        last = min(first + step, high)
        tile = draw_tile(world, slice(None), slice(first, last))
        attempted[first - low : last - low] = np.packbits(tile.attempted, axis=1, bitorder="little")
        solved[first - low : last - low] = np.packbits(tile.correct, axis=1, bitorder="little")
    return PackedBlock(attempted, solved)


def draw_counts(world: World, attempts: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draw the matrix as counts (n_models, n_items): attempts (0 where missing) and successes; at most 255 attempts."""
    if not 1 <= attempts <= 255:
        raise ValueError(f"attempts must be in 1..255, got {attempts}")
    first = draw_tile(world, slice(None), slice(None))
    successes = first.correct.astype(np.uint8)
    for attempt in range(1, attempts):
        successes += draw_tile(world, slice(None), slice(None), attempt).correct
    return np.ascontiguousarray(first.attempted.T) * np.uint8(attempts), np.ascontiguousarray(successes.T)


def standardised(values: FloatArray) -> FloatArray:
    """Shift and scale to mean 0 and standard deviation 1; values without spread become 0."""
    centred: FloatArray = values - values.mean()
    spread = float(centred.std())
    return centred / spread if spread > 0 else centred


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Return a generator of its own for each purpose, so that what is drawn for one never shifts another."""
    return np.random.default_rng([seed, *purpose.encode()])


def _draw_first(
    world: World,
    models: slice,
    item: NDArray[np.intp],
    keys: NDArray[np.uint64],
    attempted: BoolArray,
    correct: BoolArray,
) -> None:
    """Fill one tile of first attempts: 24 high bits of a cell's hash decide the answer, 24 low bits its presence."""
    source = world.items.source[item]
    cells = _hash(keys, source)
    _draw_answers(world, models, item, cells, correct)
    if world.absence is None:
        attempted[...] = True
        return
    copies = np.flatnonzero(source != item)  # a copy shows the same answers, but is missing on its own
    cells[copies] = _hash(keys, item[copies])
    np.greater_equal(_uniform(cells & np.uint64(0xFFFFFF)), _absence(world, models, item, correct), out=attempted)
    anchor = world.anchor[item]
    if anchor.any():
        attempted[anchor] = world.run[models][:, world.items.benchmark[item[anchor]]].T
    correct &= attempted


def _draw_answers(
    world: World, models: slice, item: NDArray[np.intp], cells: NDArray[np.uint64], correct: BoolArray
) -> None:
    a = (world.items.a[item] / world.sigma).astype(np.float32)[:, None]
    b = (world.items.b[item] / world.sigma).astype(np.float32)[:, None]
    odds = np.exp(np.minimum(-(a * world.theta[models].astype(np.float32) + b), np.float32(80.0)))
    odds += 1.0
    odds *= _uniform(cells >> np.uint64(40))
    np.less(odds, 1.0, out=correct)  # u < 1 / (1 + exp(−x))
    correct[world.items.kind[item] == MISKEYED] ^= True
    forced = world.forced[models]
    if forced.any():
        correct[:, forced == 1], correct[:, forced == -1] = True, False


def _absence(world: World, models: slice, item: NDArray[np.intp], correct: BoolArray) -> NDArray[np.float32]:
    """Probability that each cell is missing: broadcastable to (items, models)."""
    assert world.absence is not None
    bench = world.items.benchmark[item]
    if (bench == bench[:1]).all():  # the usual case, as items are sorted by benchmark: one row serves all items
        bench = bench[:1]
    table: NDArray[np.float32] = world.absence[models][:, bench].T  # (1 or 2, items or 1, models)
    if len(table) == 1:
        return table[0:1].reshape(table.shape[1:])
    return np.where(correct, table[1], table[0])


def _uniform(bits: NDArray[np.uint64]) -> NDArray[np.float32]:
    """24-bit integers as float32 in [0, 1): exact."""
    scaled: NDArray[np.float32] = bits.astype(np.float32)
    scaled *= np.float32(2.0**-24)
    return scaled


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _hash(keys: NDArray[np.uint64], item: NDArray[np.intp]) -> NDArray[np.uint64]:
    """64 random bits a cell (items, models): one step of SplitMix64 (Steele, Lea & Flood 2014) from the model's key."""
    state = (item.astype(np.uint64) + np.uint64(1))[:, None] * _GAMMA + keys
    return _mix(state)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64, in place."""
    scratch = state >> np.uint64(30)
    state ^= scratch
    state *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(state, np.uint64(27), out=scratch)
    state ^= scratch
    state *= np.uint64(0x94D049BB133111EB)
    np.right_shift(state, np.uint64(31), out=scratch)
    state ^= scratch
    return state


def _keys(seed: int, low: int, high: int, attempt: int) -> NDArray[np.uint64]:
    """One 64-bit key a model (high − low,), whatever else is drawn."""
    root = np.random.SeedSequence([seed, *b"cells", attempt]).generate_state(1, np.uint64)
    return _mix(np.arange(low + 1, high + 1, dtype=np.uint64) * _GAMMA + root)
