"""Cells: what the layouts say about themselves, and the rectangles they hand out."""

from __future__ import annotations

import numpy as np
import pytest

from cbmm_spark.kernels.cells import Workspace, count_bits
from cbmm_spark.packing.tile_codec import cell_list, decode
from tests.kernels.layouts import LAYOUTS, cells_of, dense_of, drawn


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n_models", [1, 7, 8, 9, 33])
def test_summaries_are_those_of_the_cells(layout, n_models):
    n, k = drawn(n_models, 11, seed=n_models, observed=0.7)
    cells = cells_of(n, k, layout)
    assert (cells.n_items, cells.n_models) == (11, n_models)
    np.testing.assert_array_equal(cells.attempts, n.sum(axis=0))
    np.testing.assert_array_equal(cells.successes, k.sum(axis=0))
    np.testing.assert_array_equal(cells.observers, (n > 0).sum(axis=0))
    assert cells.is_binary
    for found, meant in zip(dense_of(cells), (n.T, k.T), strict=True):
        np.testing.assert_array_equal(found, meant)


@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
def test_attempt_counts(layout):
    n, k = drawn(13, 5, seed=0, observed=0.6, attempts=4, fractional=layout != "counts")
    cells = cells_of(n, k, layout)
    assert not cells.is_binary
    assert not cells.is_complete
    np.testing.assert_allclose(cells.successes, k.sum(axis=0), rtol=1e-14)
    np.testing.assert_array_equal(cells.attempts, n.sum(axis=0))
    np.testing.assert_array_equal(cells.observers, (n > 0).sum(axis=0))


@pytest.mark.parametrize("layout", ["bits", "counts", "scores"])
@pytest.mark.parametrize("complete", [True, False])
def test_pieces_are_rectangles_of_the_whole(layout, complete):
    n, k = drawn(45, 9, seed=1, observed=1.0 if complete else 0.5)
    cells, memory = cells_of(n, k, layout), Workspace(1)
    assert cells.is_complete == complete
    for items in (slice(0, 9), slice(4, 5), slice(7, 9)):
        for models in (slice(0, 45), slice(0, 8), slice(8, 45), slice(16, 17), slice(40, 45)):
            successes = cells.successes_of(items, models, memory)
            assert successes.dtype == np.float32
            np.testing.assert_array_equal(successes, k.T[items, models])
            np.testing.assert_array_equal(cells.attempts_of(items, models, memory), n.T[items, models])
            np.testing.assert_array_equal(cells.missing_of(items, models, memory), n.T[items, models] == 0)


def test_one_missing_or_repeated_cell_is_not_complete():
    n, k = np.ones((9, 4)), np.ones((9, 4))
    for value in (0.0, 2.0):
        n[8, 3] = value
        assert not cells_of(n, np.minimum(k, n), "counts").is_complete
    n[8, 3], k[8, 3] = 0.0, 0.0
    assert not cells_of(n, k, "bits").is_complete


def test_bits_are_counted_and_read_from_the_lowest():
    plane = np.array([[0x81, 0x03], [0xFF, 0x00]], dtype=np.uint8)
    assert count_bits(plane).tolist() == [4.0, 8.0]
    item, model, *_ = cell_list(decode("bits", plane.tobytes(), plane.tobytes(), 2, 10))
    assert model[item == 0].tolist() == [0, 7, 8, 9]


@pytest.mark.parametrize("observed", [1.0, 0.99, 0.95, 0.8])
@pytest.mark.parametrize("shape", [(45, 9), (33, 300), (2051, 140)], ids=str)
def test_few_missing_cells_are_listed(shape, observed):
    n, k = drawn(*shape, seed=2, observed=observed)
    cells = cells_of(n, k * n, "bits")
    share = 1.0 - n.mean()
    assert (cells.missing_list is not None) == (0.0 < share <= 1 / 12)
    if cells.missing_list is not None:
        np.testing.assert_array_equal(cells.missing_list.toarray(), 1.0 - n.T)
    assert cells_of(n, k * n, "counts").missing_list is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("observed", [1.0, 0.6])
def test_taking_items_is_taking_rows(layout, observed):
    n, k = drawn(45, 30, seed=3, observed=observed)
    n[:, 4] = 0.0
    rows = np.array([29, 4, 0, 17])
    part, meant = cells_of(n, k * n, layout).take(rows), cells_of(n[:, rows], (k * n)[:, rows], layout)
    assert (part.n_items, part.n_models, part.is_binary) == (4, 45, meant.is_binary)
    for name in ("attempts", "successes", "observers"):
        np.testing.assert_array_equal(getattr(part, name), getattr(meant, name))
    for found, wanted in zip(dense_of(part), dense_of(meant), strict=True):
        np.testing.assert_array_equal(found, wanted)
