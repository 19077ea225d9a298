"""Positions of rows: parts of files numbered on the way, good and bad rows of text counted together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.readers import arrow_csv
from cbmm_spark.readers.files import number_batches

PARTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=8,
    unique_by=lambda part: part[:2],
)  # fmt: skip


@given(parts=PARTS, size=st.integers(1, 12))
def test_each_part_is_numbered_from_0_however_batches_cut_it(parts: list[tuple[str, int, int]], size: int) -> None:
    rows = [(source, start, at) for source, start, n in parts for at in range(n)]
    table = pa.table(
        {"source": [row[0] for row in rows], "start": [row[1] for row in rows], "x": list(range(len(rows)))}
    )
    batches = [pa.RecordBatch.from_pydict({name: [] for name in ("source", "start", "x")}), *table.to_batches(size)]
    found = pa.Table.from_batches(number_batches(iter(batches[1:]), "source", "start", "n"))
    assert found.column("n").to_pylist() == [row[2] for row in rows]
    assert found.drop_columns(["n"]).equals(table)
    assert not list(number_batches(iter(batches[:1]), "source", "start", "n"))


ROWS = st.lists(st.sampled_from(["good", '"quoted\nline"', "bad"]), min_size=1, max_size=30)


@given(rows=ROWS)
def test_good_and_bad_rows_of_text_are_counted_together(rows: list[str]) -> None:
    lines = [f"{kind}{at}" if kind == "bad" else f"{kind},{at}" for at, kind in enumerate(rows)]
    text = "one,two\n" + "\n".join(lines) + "\n"
    blocks = list(arrow_csv.blocks(pa.py_buffer(text.encode()), ",", 2))
    good = [(int(n), cell) for block in blocks if not block.malformed
            for n, cell in zip(block.positions, block.columns[1].to_pylist(), strict=True)]  # fmt: skip
    bad = [(int(n), line) for block in blocks if block.malformed
           for n, line in zip(block.positions, block.malformed, strict=True)]  # fmt: skip
    assert good == [(at, str(at)) for at, kind in enumerate(rows) if kind != "bad"]
    assert bad == [(at, f"bad{at}") for at, kind in enumerate(rows) if kind == "bad"]


def test_bad_rows_before_between_and_after_good_ones() -> None:
    assert arrow_csv._positions(0, 3, np.array([0, 1, 3, 6])).tolist() == [2, 4, 5]
    assert arrow_csv._positions(3, 1, np.array([0, 1, 3, 6])).tolist() == [7]
