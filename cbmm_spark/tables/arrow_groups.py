"""Parts of collected tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def groups(table: pa.Table, *keys: str) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Return the parts of a table with equal keys, without copying.

    Parameters
    ----------
    table
        Rows with equal keys stand together; none at all will do.
    keys
        Columns of texts without nulls.
    """
    if table.num_rows == 0:
        return
    columns = (table[key].combine_chunks() for key in keys)
    numbers = np.stack([column.dictionary_encode().indices.to_numpy() for column in columns])
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(numbers, axis=1) != 0).any(axis=0)])).tolist()
    for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
        yield tuple(table[key][start].as_py() for key in keys), table.slice(start, end - start)
