"""The packed tile: every encoding gives back its cells; what is not a tile is refused; the bytes are pinned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmm_spark.packing.tile_codec import (
    MAX_ATTEMPTS,
    cell_list,
    decode,
    encode_bits,
    encode_cells,
    join_tiles,
    read_block,
)

ENCODINGS = ("bits", "counts", "scores", "sparse_bits", "sparse_scores")


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, str]:
    """Attempts and successes (items × models) of the kind that an encoding is for."""
    encoding = draw(st.sampled_from(ENCODINGS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    observed = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    most = 1 if encoding.endswith("bits") else draw(st.sampled_from([2, MAX_ATTEMPTS]))
    n = (rng.random(shape) < observed) * rng.integers(1, most + 1, shape)
    k = n * rng.choice([0.0, 1.0], shape)
    if "scores" in encoding:
        k = n * rng.random(shape)
    elif encoding == "counts":
        k = np.floor(n * rng.random(shape))
    return n, k, encoding


def encoded(n: np.ndarray, k: np.ndarray, sparse_below: float) -> Any:
    item, model = np.nonzero(n)
    order = np.random.default_rng(0).permutation(item.size)
    item, model = item[order], model[order]
    return encode_cells(item, model, n[item, model], k[item, model].astype(float), *n.shape, sparse_below)


def as_matrices(cells: Any) -> tuple[np.ndarray, np.ndarray]:
    n, k = np.zeros((cells.n_items, cells.n_models)), np.zeros((cells.n_items, cells.n_models))
    item, model, attempts, successes = cell_list(cells)
    assert (np.diff(item * cells.n_models + model) > 0).all()
    n[item, model], k[item, model] = attempts, successes
    return n, k


@given(matrices(), st.sampled_from([0.0, 1.1]))
@settings(max_examples=200, deadline=None)
def test_cells_come_back_as_they_went_in(matrix, sparse_below):
    n, k, _ = matrix
    packed = encoded(n, k, sparse_below)
    assert packed.encoding.startswith("sparse") == (sparse_below > 1)
    assert packed.n_responses == np.count_nonzero(n)
    cells = decode(packed.encoding, packed.attempted, packed.solved, *n.shape)
    for found, meant in zip(as_matrices(cells), (n, k), strict=True):
        np.testing.assert_array_equal(found, meant)
    np.testing.assert_array_equal(cells.attempts, n.sum(axis=1))
    np.testing.assert_array_equal(cells.observers, (n > 0).sum(axis=1))
    np.testing.assert_allclose(cells.successes, k.sum(axis=1), rtol=1e-12)


def test_the_smallest_exact_encoding_is_chosen():
    one, two, half = np.ones((4, 6), int), np.full((4, 6), 2), np.full((4, 6), 0.5)
    assert encoded(one, one, 0.0).encoding == "bits"
    assert encoded(two, one, 0.0).encoding == "counts"
    assert encoded(one, half, 0.0).encoding == "scores"
    few = np.zeros((40, 60), int)
    few[3, 5] = 1
    assert encoded(few, few, 1 / 64).encoding == "sparse_bits"
    assert encoded(2 * few, few, 1 / 64).encoding == "sparse_scores"
    assert encoded(few, few * 0.5, 1 / 64).encoding == "sparse_scores"
    assert encoded(few, few, 0.0).encoding == "bits"


@given(matrices(), st.sampled_from([0.0, 1.1]))
@settings(max_examples=80, deadline=None)
def test_planes_and_single_cells_give_the_same_tile(matrix, sparse_below):
    n, k, encoding = matrix
    n, k = (n > 0).astype(int), ((k > 0) & (n > 0)).astype(float)
    planes = (np.packbits(plane > 0, axis=1, bitorder="little") for plane in (n, k))
    assert encode_bits(*planes, n.shape[1], sparse_below) == encoded(n, k, sparse_below)
    assert encoding in ENCODINGS


# --------------------------------------------------------------------------------------------- the bytes
def test_the_example_of_the_documentation():
    """Three items, eight models, model 3 did not run item 2."""
    n = np.ones((3, 8), int)
    n[1, 2] = 0
    k = np.zeros((3, 8))
    k[0, [0, 7]], k[1, [0, 1]] = 1, 1
    packed = encoded(n, k, 0.0)
    assert (packed.encoding, packed.n_responses) == ("bits", 23)
    assert packed.attempted == bytes.fromhex("ff fb ff")
    assert packed.solved == bytes.fromhex("81 03 00")


def test_bytes_of_every_encoding():
    n, k = np.array([[1, 0, 1], [0, 1, 0]]), np.array([[1.0, 0, 0], [0, 1.0, 0]])
    assert encoded(np.ones((1, 9), int), np.ones((1, 9)), 0.0).attempted == b""
    assert encoded(np.ones((1, 9), int), np.ones((1, 9)), 0.0).solved == b"\xff\x01"
    sparse = encoded(n, k, 1.1)
    assert sparse.attempted == bytes.fromhex(
        "0000000000000000 0200000000000000 0300000000000000 00000000 02000000 01000000"
    )
    assert sparse.solved == b"\x01\x00\x01"
    counts = encoded(n * 258, k * 3, 0.0)
    assert counts.attempted == bytes.fromhex("0201 0000 0201 0000 0201 0000")
    assert counts.solved == bytes.fromhex("0300 0000 0000 0000 0300 0000")
    scores = encoded(n, k * 0.5, 0.0)
    assert scores.attempted == bytes.fromhex("0100 0000 0100 0000 0100 0000")
    assert scores.solved == np.array([0.5, 0, 0, 0, 0.5, 0]).astype("<f8").tobytes()
    sparse_scores = encoded(n, k * 0.5, 1.1)
    assert sparse_scores.attempted == sparse.attempted
    assert sparse_scores.solved == bytes.fromhex("0100 0100 0100") + np.array([0.5, 0, 0.5]).astype("<f8").tobytes()


# --------------------------------------------------------------------------------------------- refused
def test_solved_without_attempted_is_refused():
    with pytest.raises(ValueError, match="solved but not attempted"):
        encode_bits(np.array([[0b101]], np.uint8), np.array([[0b010]], np.uint8), 3, 0.0)


def test_bits_beyond_the_last_model_are_refused():
    with pytest.raises(ValueError, match="beyond the last model"):
        encode_bits(np.array([[0b1000]], np.uint8), np.array([[0]], np.uint8), 3, 0.0)


@pytest.mark.parametrize("sparse_below", [0.0, 1.1])
def test_a_cell_given_twice_is_refused(sparse_below):
    twice = np.array([1, 0, 1]), np.array([2, 0, 2]), np.ones(3, int), np.zeros(3)
    with pytest.raises(ValueError, match="twice"):
        encode_cells(*twice, 2, 3, sparse_below)


@pytest.mark.parametrize(("n", "k"), [(0, 0.0), (MAX_ATTEMPTS + 1, 0.0), (1, -0.1), (1, 1.5), (3, 3.0001)])
def test_counts_out_of_range_are_refused(n, k):
    with pytest.raises(ValueError, match="attempts must be"):
        encode_cells(np.zeros(1, int), np.zeros(1, int), np.array([n]), np.array([k]), 1, 1, 0.0)


@pytest.mark.parametrize("k", [np.nan, np.inf])
def test_a_score_that_is_no_number_is_refused(k):
    with pytest.raises(ValueError, match="attempts must be"):
        encode_cells(np.zeros(1, int), np.zeros(1, int), np.ones(1, int), np.array([k]), 1, 1, 0.0)


@pytest.mark.parametrize(
    ("encoding", "attempted", "solved"),
    [
        ("bits", b"\xff", b"\xff\xff\xff"),
        ("bits", b"", b"\xff\xff"),
        ("counts", b"\x00" * 11, b"\x00" * 12),
        ("scores", b"\x00" * 12, b"\x00" * 12),
        ("zip", b"", b""),
    ],
)
def test_bytes_that_do_not_fit_the_shape_are_refused(encoding, attempted, solved):
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy says it in its own words
        decode(encoding, attempted, solved, 3, 2)


# --------------------------------------------------------------------------------------------- join
def tile(n: np.ndarray, k: np.ndarray, model_start: int, sparse_below: float = 0.0) -> dict[str, Any]:
    packed = encoded(n, k, sparse_below)
    return {
        "benchmark": "b", "item_block": 2, "item_start": 33, "n_items": n.shape[0], "model_start": model_start,
        "n_models": n.shape[1], "encoding": packed.encoding, "attempted": packed.attempted, "solved": packed.solved,
    }  # fmt: skip


@given(st.lists(matrices(), min_size=1, max_size=4), st.lists(st.sampled_from([0.0, 1.1]), min_size=4, max_size=4))
@settings(max_examples=150, deadline=None)
def test_joined_tiles_hold_the_cells_of_all_and_no_empty_column(parts, sparse_below):
    """Tiles of any encodings, with gaps between their models, joined along the models."""
    n_items = min(n.shape[0] for n, _, _ in parts)
    start, tiles, n_all, k_all, numbers = 3, [], [], [], []
    for (n, k, _), below in zip(parts, sparse_below, strict=False):
        n, k = n[:n_items], k[:n_items]
        tiles.append(tile(n, k, start, below))
        n_all.append(n)
        k_all.append(k)
        numbers.append(np.arange(start - 1, start - 1 + n.shape[1]))
        start += n.shape[1] + 5
    n, k, models = np.concatenate(n_all, axis=1), np.concatenate(k_all, axis=1), np.concatenate(numbers)
    seen = n.any(axis=0)
    row = join_tiles(tiles)
    assert {key: row[key] for key in ("benchmark", "item_block", "item_start", "n_items")} == {
        "benchmark": "b", "item_block": 2, "item_start": 33, "n_items": n_items,
    }  # fmt: skip
    block = read_block(row)
    assert block.benchmark == "b"
    np.testing.assert_array_equal(block.models, models[seen])
    for found, meant in zip(as_matrices(block.cells), (n[:, seen], k[:, seen]), strict=True):
        np.testing.assert_array_equal(found, meant)


def test_joining_dense_and_sparse_tiles_takes_no_list_of_cells(monkeypatch):
    """A small night of few answers beside a full block: its cells must not be listed one by one."""
    few = np.zeros((64, 40), int)
    few[3, 5] = 1
    tiles = [tile(np.ones((64, 40), int), np.ones((64, 40)), 1), tile(few, few, 41, 1 / 64)]
    assert [t["encoding"] for t in tiles] == ["bits", "sparse_bits"]
    monkeypatch.setattr("cbmm_spark.packing.tile_codec.cell_list", None)
    row = join_tiles(tiles)
    assert row["encoding"] == "bits"
    np.testing.assert_array_equal(np.frombuffer(row["models"], "<i4"), [*range(40), 45])


def test_tiles_that_overlap_or_differ_are_refused():
    n, k = np.ones((3, 8), int), np.ones((3, 8))
    with pytest.raises(ValueError, match="overlap"):
        join_tiles([tile(n, k, 1), tile(n, k, 8)])
    with pytest.raises(ValueError, match="overlap"):
        join_tiles([tile(n, k, 9), tile(n, k, 1)])
    assert join_tiles([tile(n, k, 1), tile(n, k, 9)])["n_items"] == 3
