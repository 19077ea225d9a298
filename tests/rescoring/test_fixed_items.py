"""Chunks of models scored against fixed items, put together again: what did not arrive is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cbmm_spark.errors import CbmmError
from cbmm_spark.kernels.fixed_items import COUNTED, FrozenTask
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.rescoring.fixed_items import _RESULT_SCHEMA, _assembled

MODELS = np.arange(25)
CHUNKS = [slice(0, 10), slice(10, 20), slice(20, 25)]
TASKS = [FrozenTask(name, {}, MODELS, MODELS < 0, Ridge(0.1, 0.1, 0.1), np.zeros(3)) for name in ("all", "a")]


def table(keys: list[tuple[str, int]]) -> pa.Table:
    """Results in which every model has its number as its ability and counts."""
    rows = []
    for scale, number in keys:
        values = np.tile(MODELS[CHUNKS[number]].astype(float), COUNTED + 1 + 3)
        payload = np.concatenate([values, [1.0, number]]).astype("<f8").tobytes()
        rows.append({"scale": scale, "chunk": number, "source": 0, "payload": payload})
    return pa.Table.from_pylist(rows, schema=_RESULT_SCHEMA)


WHOLE = [(task.name, number) for task in TASKS for number in range(3)]


def test_chunks_stand_where_their_models_do() -> None:
    found = _assembled(TASKS, CHUNKS, table(WHOLE[::-1]))
    for task in TASKS:
        np.testing.assert_array_equal(found[task.name].theta, MODELS)
        assert (found[task.name].loss, found[task.name].passes) == (3.0, 2)


@pytest.mark.parametrize("lost", WHOLE)
def test_a_chunk_that_one_scale_lacks_is_named(lost: tuple[str, int]) -> None:
    span = CHUNKS[lost[1]]
    with pytest.raises(CbmmError, match=f"models {span.start + 1} to {span.stop} of scale {lost[0]} are missing"):
        _assembled(TASKS, CHUNKS, table([key for key in WHOLE if key != lost]))


def test_a_chunk_that_comes_twice_is_refused() -> None:
    with pytest.raises(CbmmError, match="came twice"):
        _assembled(TASKS, CHUNKS, table([*WHOLE, WHOLE[2]]))


def test_models_that_no_tile_holds_have_no_attempts() -> None:
    found = _assembled(TASKS, CHUNKS, table([key for key in WHOLE if key[1] != 1]))
    assert (found["a"].counts[:, CHUNKS[1]] == 0.0).all()
