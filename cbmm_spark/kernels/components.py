"""Which models and items hang together: estimates of different connected components have no common scale.

Models and items form a bipartite graph with an edge for every observed cell. A component is named by the smallest
position of a model in it. Source: method.md section 8, "Connected components".
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cbmm_spark.kernels.cells import U8, BitCells, Cells, CountCells, SparseCells
from cbmm_spark.kernels.model import Index


def block_groups(cells: Cells) -> list[Index]:
    """Return the groups of columns (models) of one block that share items, directly or through others."""
    if cells.is_complete and cells.n_items:
        return [np.arange(cells.n_models)]
    if isinstance(cells, SparseCells):
        return _groups_of_edges(cells.item, cells.indices.astype(np.int64), cells.n_items, cells.n_models)
    plane = cells.attempted if isinstance(cells, BitCells) else _plane(cells)
    assert plane is not None
    return _groups_of_plane(plane, cells.n_models)


def _plane(cells: Cells) -> U8:
    assert isinstance(cells, CountCells)
    return np.packbits(cells.n_matrix > 0, axis=1, bitorder="little")


def _groups_of_plane(plane: U8, n_models: int) -> list[Index]:
    """Grow one group at a time: every item that touches the group adds its observers, until none does any more."""
    groups: list[Index] = []
    left = np.flatnonzero(plane.any(axis=1))
    while left.size:
        mask = plane[left[0]].copy()
        while True:
            touching = (plane[left] & mask).any(axis=1)
            grown = np.bitwise_or.reduce(plane[left[touching]], axis=0)
            if (grown == mask).all():
                break
            mask = grown
        groups.append(np.flatnonzero(np.unpackbits(mask, bitorder="little", count=n_models)))
        left = left[~touching]
    return groups


def _groups_of_edges(item: Index, model: Index, n_items: int, n_models: int) -> list[Index]:
    size = n_items + n_models
    graph = coo_array((np.ones(item.size, dtype=bool), (item, n_items + model)), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    seen = np.unique(model)
    order = np.argsort(label[n_items + seen], kind="stable")
    members = seen[order]
    return np.split(members, np.flatnonzero(np.diff(label[n_items + members])) + 1) if members.size else []


def first_observers(cells: Cells) -> Index:
    """Return a column that observed each item, -1 where none did, shape (n_items,)."""
    if isinstance(cells, SparseCells):
        seen = cells.observers > 0
        first = np.full(cells.n_items, -1, dtype=np.int64)
        first[seen] = cells.indices[cells.indptr[:-1][seen]]
        return first
    if isinstance(cells, BitCells) and cells.attempted is None:
        return np.zeros(cells.n_items, dtype=np.int64)
    plane = cells.attempted if isinstance(cells, BitCells) else _plane(cells)
    assert plane is not None
    byte = np.argmax(plane != 0, axis=1)
    value = plane[np.arange(plane.shape[0]), byte].astype(np.int64)
    lowest = np.log2(np.maximum(value & -value, 1)).astype(np.int64)
    return np.where(value > 0, 8 * byte + lowest, -1)


def join_labels(labels: Index, models: Index, groups: list[Index]) -> Index:
    """Return labels after some models of one block turned out to belong together.

    Parameters
    ----------
    labels
        For every model the smallest position of a model known to be connected with it, shape (M,).
    models
        Positions of the block's columns.
    groups
        From `block_groups`.
    """
    for group in groups:
        touched = np.unique(labels[models[group]])
        if touched.size > 1:
            labels = np.where(np.isin(labels, touched), touched[0], labels)
    return labels


def merge_labels(parts: list[Index]) -> Index:
    """Merge the labels that several partitions found over the same models."""
    size = parts[0].size
    models = np.concatenate([np.arange(size)] * len(parts))
    graph = coo_array((np.ones(models.size, dtype=bool), (models, np.concatenate(parts))), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    smallest = np.full(label.max(initial=-1) + 1, size)
    np.minimum.at(smallest, label, np.arange(size))
    return smallest[label]


def component_numbers(labels: Index) -> Index:
    """Number components from 1, the one with most models first, then the one with the smallest model position."""
    names, inverse, size = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((names, -size))
    number = np.empty(names.size, dtype=np.int64)
    number[order] = np.arange(1, names.size + 1)
    return number[inverse]
