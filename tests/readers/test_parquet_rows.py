"""Long Parquet without Spark: names as text, parts by row groups, raw rows read again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cbmm_spark.config.schema import ColumnsConfig, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import ReadOptions
from cbmm_spark.readers.listing import list_files
from cbmm_spark.readers.local_sample import sample_of
from cbmm_spark.readers.parquet_rows import scan
from cbmm_spark.readers.rows import Rows


def rows_of(path: Path, options: ReadOptions | None = None) -> list[Rows]:
    found = scan(sample_of(list_files(str(path)), ColumnsConfig()), options or ReadOptions())
    return [rows for part in found.parts for rows in found.read(part)]


def test_row_groups_are_parts_and_raw_rows_are_those_of_their_place(tmp_path: Path) -> None:
    n = 1000
    table = pa.table({"model": [f"m{at % 7}" for at in range(n)], "item": pa.array(range(n)),
                      "score": [at % 2 == 0 for at in range(n)], "note": [{"a": at} for at in range(n)]})  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    batches = rows_of(tmp_path)
    assert sum(map(len, batches)) == n
    assert [rows.next_position for rows in batches] == [300, 600, 900, 1000]
    last = batches[-1]
    assert last.item_id.to_pylist() == [str(at) for at in range(900, 1000)]
    assert last.raw is not None
    told = [json.loads(text) for text in last.raw(pa.array([99, 0]).to_numpy())]
    assert [(row["item"], row["note"]["a"]) for row in told] == [(999, 999), (900, 900)]


def test_a_file_of_few_bytes_and_many_rows_is_cut(tmp_path: Path) -> None:
    n = 2_500_000
    same = pa.nulls(n, pa.string()).fill_null("a")
    pq.write_table(
        pa.table({"model": same, "item": same, "score": same}), tmp_path / "a.parquet", row_group_size=300_000
    )
    found = scan(sample_of(list_files(str(tmp_path)), ColumnsConfig()), ReadOptions())
    assert [(part.first, part.last) for part in found.parts] == [(0, 4), (4, 8), (8, 9)]
    assert sum(len(rows) for part in found.parts for rows in found.read(part)) == n


@pytest.mark.parametrize(("values", "texts"), [
    (pa.array([1.0, 1e10, 0.5, None]), ["1.0", "1.0E10", "0.5", None]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array(["a", None], pa.large_string()), ["a", None]),
    (pa.array(["b", "b"]).dictionary_encode(), ["b", "b"]),
    (pa.array([b"x", b"\xff"]), ["x", "\ufffd"]),
])  # fmt: skip
def test_names_of_any_type_are_text(tmp_path: Path, values: pa.Array, texts: list[str | None]) -> None:
    pq.write_table(pa.table({"model": values, "item": values, "score": [1.0] * len(values)}), tmp_path / "a.parquet")
    (rows,) = rows_of(tmp_path)
    assert rows.model_id.to_pylist() == texts


def test_folders_name_columns_and_files_may_lack_them(tmp_path: Path) -> None:
    for name in ("benchmark=007", "benchmark=a%2Fb"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"model": ["m"], "item": ["i"], "score": [1]}), tmp_path / name / "p.parquet")
    extra = pa.table({"model": ["m"], "item": ["j"], "score": [0], "attempt": [2]})
    pq.write_table(extra, tmp_path / "benchmark=007" / "q.parquet")
    found = [(rows.benchmark.to_pylist(), rows.attempt.to_pylist()) for rows in rows_of(tmp_path)]
    assert found == [(["007"], [None]), (["007"], [2]), (["a/b"], [None])]


def test_flags_decide_whatever_the_score(tmp_path: Path) -> None:
    table = pa.table({"model": ["m"] * 5, "item": list("abcde"), "score": [1, 1, 0, 1, 1],
                      "no answer": [True, False, True, False, False],
                      "cheated": ["false", "true", "true", None, "who knows"]})  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    rules = IngestConfig(flags={"no answer": "missing", "cheated": "wrong", "absent": "wrong"})
    (rows,) = rows_of(tmp_path, ReadOptions(rules))
    assert rows.score.to_pylist() == [None, 0, 0, 1, 1]
    assert rows.problem is not None
    assert rows.problem.to_pylist() == [None] * 4 + ["unreadable_score"]


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("model,item\n" * 9)
    with pytest.raises(InputError, match="not Parquet"):
        rows_of(tmp_path)
    pq.write_table(pa.table({"model": [["m"]], "item": ["i"], "score": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="array<string>, which cannot be a model"):
        rows_of(tmp_path)
    pq.write_table(pa.table({"model": ["m"], "item": ["i"], "score": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"model": ["m"], "item": ["i"], "score": ["1"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="different types: score"):
        rows_of(tmp_path)
