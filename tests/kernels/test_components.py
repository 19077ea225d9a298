"""Connected models and items against scipy, in every layout and over several blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import connected_components

from cbmm_spark.kernels.components import block_groups, component_numbers, first_observers, join_labels, merge_labels
from cbmm_spark.kernels.counts import Counts, count_block
from cbmm_spark.kernels.in_process import count_scales, fit_blocks
from cbmm_spark.kernels.model import Penalty
from tests.kernels.layouts import LAYOUTS, blocks_of, cells_of, drawn

EVERY = pytest.mark.parametrize("layout", LAYOUTS)


@st.composite
def graphs(draw) -> np.ndarray:
    """Who answered what, models × items: thin enough for several components, with empty rows and columns."""
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    degree = draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0, 40.0]))
    return (rng.random(shape) < degree / max(shape)).astype(float)


def smallest_labels(n: np.ndarray) -> np.ndarray:
    """For every model the smallest model connected with it, by scipy on the whole bipartite graph."""
    edges = csr_array(n)
    graph = block_array([[None, edges], [edges.T, None]])
    label = connected_components(graph, directed=False)[1][: n.shape[0]]
    return np.array([np.flatnonzero(label == one)[0] for one in label])


def cells(n: np.ndarray, layout: str):
    return cells_of(n, np.zeros_like(n), layout)


# ------------------------------------------------------------------------------------- one block
@EVERY
@given(graphs())
@settings(max_examples=60, deadline=None)
def test_groups_of_a_block(layout, n):
    groups = block_groups(cells(n, layout))
    wanted = smallest_labels(n)
    seen = np.flatnonzero(n.any(axis=1))
    expected = {tuple(np.flatnonzero(wanted == one)) for one in np.unique(wanted[seen])}
    assert sorted(tuple(sorted(group)) for group in groups) == sorted(expected)


@EVERY
@given(graphs())
@settings(max_examples=60, deadline=None)
def test_first_observers(layout, n):
    wanted = np.where(n.any(axis=0), n.argmax(axis=0), -1)
    found = first_observers(cells(n, layout))
    assert found.dtype.kind == "i"
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("layout", ["counts", "scores", "sparse_scores"])
def test_several_attempts_are_one_edge(layout):
    n = np.kron(np.eye(3), np.ones((4, 2))) * 300.0
    groups = block_groups(cells(n, layout))
    assert sorted(group.tolist() for group in groups) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    np.testing.assert_array_equal(first_observers(cells(n, layout)), [0, 0, 4, 4, 8, 8])


@EVERY
def test_a_chain_is_one_group(layout):
    """Every item is shared by two neighbours only, in an order that needs many rounds to find out."""
    n = np.zeros((60, 59))
    order = np.random.default_rng(1).permutation(59)
    for item, model in enumerate(order):
        n[model : model + 2, item] = 1.0
    groups = block_groups(cells(n, layout))
    assert [group.size for group in groups] == [60]
    n[:, np.flatnonzero(order == 29)] = 0.0
    assert sorted(group.size for group in block_groups(cells(n, layout))) == [30, 30]


# ------------------------------------------------------------------------------------- several blocks
@EVERY
@given(graphs(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_counting_blocks_labels_all_models(layout, n, size):
    counts = Counts.zeros(n.shape[0])
    for block in blocks_of(n, np.zeros_like(n), layout, size):
        if block.models.size:
            count_block(block.cells, block.models, counts)
    np.testing.assert_array_equal(counts.labels, smallest_labels(n))
    assert counts.n_items == np.count_nonzero(n.any(axis=0))
    assert counts.cells == np.count_nonzero(n)


@given(graphs(), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_partitions_merge(n, size, n_partitions):
    blocks = [block for block in blocks_of(n, np.zeros_like(n), "bits", size) if block.models.size]
    parts = [Counts.zeros(n.shape[0]) for _ in range(n_partitions)]
    for number, block in enumerate(blocks):
        count_block(block.cells, block.models, parts[number % n_partitions])
    wanted = smallest_labels(n)
    np.testing.assert_array_equal(merge_labels([part.labels for part in parts]), wanted)
    for part in parts[1:]:
        parts[0].add(part)
    np.testing.assert_array_equal(parts[0].labels, wanted)


@given(graphs(), graphs())
@settings(max_examples=60, deadline=None)
def test_joining_groups_one_by_one(one, two):
    size = max(one.shape[0], two.shape[0])
    labels, whole = np.arange(size), np.zeros((size, one.shape[1] + two.shape[1]))
    models = np.arange(size)
    for n, place in ((one, slice(0, one.shape[1])), (two, slice(one.shape[1], None))):
        mine = models[size - n.shape[0] :]  # the columns of a block are not the positions of its models
        whole[mine, place] = n
        before = labels.copy()
        labels = join_labels(labels, mine, block_groups(cells(n, "bits")))
        assert (labels <= before).all()
    np.testing.assert_array_equal(labels, smallest_labels(whole))


def test_labels_are_not_changed_in_place():
    labels = np.arange(6)
    joined = join_labels(labels, np.array([1, 3, 5]), [np.array([0, 2])])
    np.testing.assert_array_equal(joined, [0, 1, 2, 3, 4, 1])
    np.testing.assert_array_equal(labels, np.arange(6))


# ------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([0, 0, 0], [1, 1, 1]),
        ([0, 1, 1, 1, 0], [2, 1, 1, 1, 2]),
        ([0, 1, 2, 1, 2], [3, 1, 2, 1, 2]),
        ([0, 0, 2, 2, 4], [1, 1, 2, 2, 3]),
        ([], []),
    ],
)
def test_components_are_numbered_by_size_then_position(labels, numbers):
    np.testing.assert_array_equal(component_numbers(np.array(labels, dtype=np.int64)), numbers)


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_numbers_are_dense_and_fall_in_size(n):
    labels = smallest_labels(n)
    numbers = component_numbers(labels)
    sizes = np.bincount(numbers)[1:]
    assert (sizes > 0).all()
    assert (np.diff(sizes) <= 0).all()
    pairs = set(zip(labels.tolist(), numbers.tolist(), strict=True))
    assert len(pairs) == np.unique(labels).size == sizes.size
    first = np.array([np.flatnonzero(numbers == one)[0] for one in range(1, sizes.size + 1)])
    assert (np.diff(first)[np.diff(sizes) == 0] > 0).all()


@EVERY
def test_two_groups_without_a_common_item_in_a_fit(layout):
    """The numbers are of the scale's own models: one that ran nothing is not a component."""
    n = np.zeros((43, 30))
    n[:14, :10], n[15:, 10:] = 1.0, 1.0  # 14 and 28 models, number 14 ran nothing
    k = drawn(43, 30, seed=3)[1] * n
    blocks = blocks_of(n, k, layout, 6)
    found = fit_blocks(blocks, {"s": frozenset("b")}, 43, Penalty())["s"]
    np.testing.assert_array_equal(found.components, [2] * 14 + [1] * 28)
    np.testing.assert_array_equal(
        count_scales(blocks, {"s": frozenset("b")}, 43)["s"].labels, [0] * 14 + [14] + [15] * 28
    )
