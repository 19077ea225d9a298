"""Parts of tables with equal keys."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.tables.arrow_groups import groups

rows = st.lists(st.tuples(st.sampled_from(["a", "b", "ä"]), st.sampled_from(["x", "y"])), max_size=12)


@given(rows, st.integers(1, 5))
def test_every_row_is_in_the_part_of_its_keys(pairs, chunk):
    pairs = sorted(pairs)
    parts = [pairs[i : i + chunk] for i in range(0, len(pairs), chunk)] or [[]]
    schema = pa.schema([("s", pa.string()), ("t", pa.string()), ("i", pa.int64())])
    number = iter(range(len(pairs)))
    tables = [
        pa.Table.from_pylist([{"s": s, "t": t, "i": next(number)} for s, t in part], schema=schema) for part in parts
    ]
    table = pa.concat_tables(tables)
    found = list(groups(table, "s", "t"))
    assert [key for key, _ in found] == sorted(set(pairs))
    for (s, t), part in found:
        assert set(part["s"].to_pylist()) == {s}
        assert set(part["t"].to_pylist()) == {t}
    assert [i for _, part in found for i in part["i"].to_pylist()] == list(range(len(pairs)))
    assert [key for key, _ in groups(table, "s")] == [(s,) for s in sorted({s for s, _ in pairs})]
