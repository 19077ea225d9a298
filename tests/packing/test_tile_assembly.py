"""Tiles are the same bytes whether made from all answers, patched, or grown together from narrower ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmm_spark.packing.tile_assembly import WORD_ITEMS, Frame, planes_of_words, tile_of_cells, tile_of_planes
from cbmm_spark.packing.tile_codec import encode_cells

Matrices = tuple[np.ndarray, np.ndarray]
KINDS = ("bits", "counts", "scores")


def drawn(rng: np.random.Generator, n_items: int, n_models: int, kind: str, observed: float) -> Matrices:
    most = 1 if kind == "bits" else 5
    n = (rng.random((n_items, n_models)) < observed) * rng.integers(1, most + 1, (n_items, n_models))
    k = n * rng.choice([0.0, 1.0], n.shape) if kind != "scores" else n * rng.random(n.shape)
    return n, np.floor(k) if kind == "counts" else k


def whole(n: np.ndarray, k: np.ndarray, sparse_below: float) -> tuple[int, Any] | None:
    """The tile as a rebuild encodes it, straight from the cells."""
    item, model = np.nonzero(n)
    if not item.size:
        return None
    height = int(item.max()) + 1
    return height, encode_cells(
        item, model, n[item, model], k[item, model].astype(float), height, n.shape[1], sparse_below
    )


def stored(n: np.ndarray, k: np.ndarray, start: int, sparse_below: float) -> list[dict[str, Any]]:
    built = whole(n, k, sparse_below)
    if built is None:
        return []
    return [{"model_start": start, "n_models": n.shape[1], "n_items": built[0], **built[1].__dict__}]


def words_of(n: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, ...]:
    """Words as Spark delivers them, made bit by bit."""
    words: dict[tuple[int, int], list[int]] = {}
    for item, model in zip(*(index.tolist() for index in np.nonzero(n)), strict=True):
        word = words.setdefault((model, item // WORD_ITEMS), [0, 0])
        word[0] |= 1 << item % WORD_ITEMS
        word[1] |= int(k[item, model]) << item % WORD_ITEMS
    keys = np.array(sorted(words), dtype=np.int64).reshape(-1, 2)
    bits = np.array([words[tuple(key)] for key in keys.tolist()], dtype=np.uint64).reshape(-1, 2).view(np.int64)
    return keys[:, 0], keys[:, 1], bits[:, 0], bits[:, 1]


def fresh(n: np.ndarray, k: np.ndarray, anew: np.ndarray, tiles: list[dict[str, Any]], frame: Frame, bits: bool) -> Any:
    columns = np.zeros(n.shape[1], dtype=bool)
    columns[anew] = True
    if bits:
        planes = planes_of_words(*words_of(n * columns, k * columns), n.shape[1])
        return tile_of_planes(planes, tiles, anew, frame)
    item, model = np.nonzero(n * columns)
    cells = item, model, n[item, model].astype(np.int64), k[item, model].astype(float)
    return tile_of_cells(cells, tiles, anew, frame)


@given(
    seed=st.integers(0, 2**32 - 1), n_items=st.integers(1, 150), widths=st.lists(st.integers(1, 20), max_size=4),
    kinds=st.lists(st.sampled_from(KINDS), min_size=4, max_size=4), change=st.sampled_from(KINDS),
    observed=st.sampled_from([0.0, 0.02, 0.6, 1.0]), share=st.sampled_from([0.0, 0.3, 1.0]),
    sparse_below=st.sampled_from([0.0, 1 / 64, 0.5]), new=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=300)
def test_a_patched_tile_is_the_tile_made_anew(
    seed: int, n_items: int, widths: list[int], kinds: list[str], change: str, observed: float, share: float,
    sparse_below: float, new: int,
) -> None:  # fmt: skip
    """Narrow tiles of any kind, some columns of them answered anew, some models new at the right end."""
    rng = np.random.default_rng(seed)
    n_models, start = sum(widths) + new, 5
    if not n_models:
        return
    n, k = np.zeros((n_items, n_models), int), np.zeros((n_items, n_models))
    tiles, left = [], 0
    for width, kind in zip(widths, kinds, strict=False):
        part = slice(left, left + width)
        n[:, part], k[:, part] = drawn(rng, n_items, width, kind, observed)
        tiles += stored(n[:, part], k[:, part], start + left, sparse_below)
        left += width
    anew = np.flatnonzero(rng.random(n_models) < share)
    anew = np.union1d(anew, np.arange(left, n_models))
    n[:, anew], k[:, anew] = drawn(rng, n_items, anew.size, change, observed)
    frame = Frame(start, n_models, sparse_below)
    assert fresh(n, k, anew, tiles, frame, bits=change == "bits") == whole(n, k, sparse_below)


@given(st.integers(0, 2**32 - 1), st.integers(1, 200), st.integers(1, 70))
def test_words_become_planes(seed: int, n_items: int, n_models: int) -> None:
    n, k = drawn(np.random.default_rng(seed), n_items, n_models, "bits", 0.5)
    planes = planes_of_words(*words_of(n, k), n_models)
    for plane, matrix in zip(planes, (n, k), strict=True):
        bits = np.unpackbits(plane, axis=1, bitorder="little", count=n_models)
        assert not bits[n_items:].any()
        np.testing.assert_array_equal(bits[:n_items], matrix[: bits.shape[0]])


def test_a_tile_of_which_nothing_is_left_is_none() -> None:
    n, k = np.ones((3, 9), int), np.ones((3, 9))
    frame, none = Frame(1, 9, 0.0), np.zeros((3, 9), int)
    for bits in (True, False):
        assert fresh(none, none, np.arange(9), stored(n, k, 1, 0.0), frame, bits) is None


def test_the_last_items_of_a_tile_go_when_nobody_answers_them_any_more() -> None:
    n = np.zeros((100, 9), int)
    n[:3] = 1
    n[90, 4] = 1
    tiles = stored(n, n, 1, 0.0)
    n[90, 4] = 0
    for bits in (True, False):
        built = fresh(n, n, np.array([4]), tiles, Frame(1, 9, 0.0), bits)
        assert built == whole(n, n, 0.0)
        assert built[0] == 3


def test_solved_but_not_attempted_is_refused() -> None:
    one = np.array([0])
    planes = planes_of_words(one, one, np.array([0b01]), np.array([0b11]), 3)
    with pytest.raises(ValueError, match="solved but not attempted"):
        tile_of_planes(planes, [], one, Frame(1, 3, 0.0))
