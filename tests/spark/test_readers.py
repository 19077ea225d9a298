"""Readers: every format gives the same raw frame, names and header taken literally, and bad input is one clear line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.cli.main import check_input
from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame, ReadOptions
from cbmm_spark.readers.registry import READERS, read_source
from tests.spark.reader_samples import defaults_of, validate

LONG = {"model": ["007", "m2"], "item": ["i1", "i,2"], "correct": [1, 0]}
Read = Callable[..., tuple[RawFrame, str, str]]


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def call(path: Path | str, format: str = "auto", **given: Any) -> tuple[RawFrame, str, str]:
        return read_source(spark, str(path), format, ReadOptions(**given))

    return call


def triples(raw: RawFrame) -> list[tuple[str | None, ...]]:
    rows = raw.frame.select("model_id", "item_id", F.col("score_raw").cast("string").alias("score")).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def csv_text(table: list[list[Any]], delimiter: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(table)
    return text.getvalue()


def long_table() -> list[list[Any]]:
    return [list(LONG), *map(list, zip(*LONG.values(), strict=True))]


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(csv_text(long_table()).encode()))


def write_delta(spark: SparkSession, path: Path) -> None:
    spark.createDataFrame(pd.DataFrame(LONG)).write.format("delta").save(str(path))


WRITERS: dict[str, tuple[str, Callable[[SparkSession, Path], object]]] = {
    "a.csv": ("csv", lambda _, path: path.write_text(csv_text(long_table()))),
    "a.csv.gz": ("csv", lambda _, path: write_gzip(path)),
    "bom.csv": ("csv", lambda _, path: path.write_text(csv_text(long_table()), encoding="utf-8-sig")),
    "a.tsv": ("csv", lambda _, path: path.write_text(csv_text(long_table(), "\t"))),
    "semicolon.csv": ("csv", lambda _, path: path.write_text(csv_text(long_table(), ";"))),
    "a.parquet": ("parquet", lambda _, path: pd.DataFrame(LONG).to_parquet(path)),
    "a.jsonl": ("jsonl", lambda _, path: pd.DataFrame(LONG).to_json(path, orient="records", lines=True)),
    "no_suffix": ("csv", lambda _, path: path.write_text(csv_text(long_table()))),
    "harness|arc:25.csv": ("csv", lambda _, path: path.write_text(csv_text(long_table()))),
    "harness|arc:25.jsonl": ("jsonl", lambda _, path: pd.DataFrame(LONG).to_json(path, orient="records", lines=True)),
    "harness|arc:25.parquet": ("parquet", lambda _, path: pd.DataFrame(LONG).to_parquet(path)),
    "folder": ("delta", write_delta),
}


@pytest.mark.parametrize("name", WRITERS)
def test_long_formats_are_detected_and_agree(spark: SparkSession, read: Read, tmp_path: Path, name: str) -> None:
    format, write = WRITERS[name]
    write(spark, tmp_path / name)
    raw, detected, reason = read(tmp_path / name)
    assert detected == format
    assert reason
    assert raw.frame.columns == list(RAW_COLUMNS)
    assert triples(raw) == [("007", "i1", "1"), ("m2", "i,2", "0")]
    assert json.loads(raw.frame.where("model_id = '007'").head()["raw"])["model"] == "007"


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=150)
HARD = ["007", "1.0", "true", "null", "Org/X:1 (beta)#2+3@4%", 'say "hi", twice', "two\nlines", "cr\rlf\r\n",
        "😀 emoji", "'", "\\",
        '\\"', "a,b;c\td|e", "# no comment", "x" * 300, "A whole sentence. And another one?", "{}", "é", "e\u0301",
        "\u00a0nbsp\u00a0", " padded "]  # fmt: skip


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=40, unique=True))
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_any_name_is_read_back_unchanged(read: Read, tmp_path: Path, suffix: str, names: list[str]) -> None:
    # RFC 4180 has no way to tell a cell that is one bare line end from an empty line; everything else must survive.
    ids = list(dict.fromkeys([*HARD, *names]))
    path = tmp_path / f"names.{suffix}"
    table = pd.DataFrame({"model": ids, "item": ids[::-1], "correct": "1"})
    if suffix == "parquet":
        table.to_parquet(path)
    elif suffix == "jsonl":
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")), newline=""
        )
    else:
        text = csv_text([list(table.columns), *table.values.tolist()])
        path.write_text(text, encoding="utf-8", newline="")
    raw, _, _ = read(path, suffix)
    found = {(row["model_id"], row["item_id"]) for row in raw.frame.select("model_id", "item_id").collect()}
    assert found == set(zip(ids, ids[::-1], strict=True))


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize(("first", "format"), [("model", "wide-models"), ("item_id", "wide-items")])
def test_wide_tables_in_both_orientations(read: Read, tmp_path: Path, parquet: bool, first: str, format: str) -> None:
    across = ['c"1', "c,2", "c\n3", "007"]
    table = pd.DataFrame([["1", "0", "", "0.5"], ["0", "1", "NaN", "50"]], columns=across)
    table.insert(0, first, ["r1", "r,2"])
    path = tmp_path / ("wide.parquet" if parquet else "wide.csv")
    if parquet:
        table.to_parquet(path)
    else:
        path.write_text(csv_text([list(table.columns), *table.values.tolist()]), newline="")
    cells = [(row, column, table[column][at]) for at, row in enumerate(table[first]) for column in across]
    expected = cells if first == "model" else [(column, row, score) for row, column, score in cells]
    for asked in ("auto", "wide", format):
        raw, detected, reason = read(path, asked)
        assert detected == format
        assert reason == "given" or first in reason
    assert triples(raw) == sorted(expected, key=repr)


def test_wide_parquet_types_and_index(read: Read, tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1, 0], "b": [True, False], "c": [0.5, np.nan], "d": [Decimal("0.25"), None]})
    table.index = pd.Index(["m1", "m2"], name="model")
    table.to_parquet(tmp_path / "wide.parquet")  # pandas writes the index as the last column
    raw, detected, _ = read(tmp_path / "wide.parquet")
    assert detected == "wide-models"
    found = {(model, item): score for model, item, score in triples(raw)}
    assert [found["m1", item] for item in "abcd"] == ["1", "true", "0.5", "0.25"]
    assert [found["m2", item] for item in "ab"] == ["0", "false"]
    assert found["m2", "d"] is None
    assert found["m2", "c"] in (None, "nan")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_wide_table_of_tens_of_thousands_of_columns(read: Read, tmp_path: Path, suffix: str) -> None:
    models, items = 12, 41_871
    solved = (np.arange(models)[:, None] + np.arange(items)) % 3 == 0
    names = [f"item {index}" for index in range(items)]
    path = tmp_path / f"wide.{suffix}"
    if suffix == "parquet":
        columns = [pa.array([f"m{index}" for index in range(models)]), *map(pa.array, solved.T.astype(np.int8))]
        pq.write_table(pa.table(columns, names=["model", *names]), path)
    else:
        lines = [["model", *names], *([f"m{at}", *np.where(row, "1.0", "0.0")] for at, row in enumerate(solved))]
        text = csv_text(lines).encode()
        path.write_bytes(gzip.compress(text, 1) if suffix.endswith("gz") else text)
    raw, format, _ = read(path)
    assert format == "wide-models"
    solved_by = F.sum(F.col("score_raw").cast("double")).alias("solved")
    counted = raw.frame.groupBy("model_id").agg(F.count_distinct("item_id").alias("n"), solved_by).collect()
    assert {row["model_id"]: (row["n"], int(row["solved"])) for row in counted} == {
        f"m{at}": (items, int(row.sum())) for at, row in enumerate(solved)
    }


def test_ragged_lines_are_refused_not_shifted(read: Read, tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("model,item,correct\nm,i,1\nm,j\nm,k,1,9\n")
    (tmp_path / "wide.csv").write_text("model,i,j\nm1,1,0\nm2,1\nm3,1,0,1\n")
    (tmp_path / "long.jsonl").write_text('{"model":"m","item":"i","correct":1}\n{"model":\n[1]\n"x"\n')
    for name, expected in (("long.csv", 2), ("wide.csv", 2), ("long.jsonl", 3)):
        raw, _, _ = read(tmp_path / name)
        problems = raw.frame.where(F.col("problem") == "malformed_row").collect()
        assert len(problems) == expected, name
        assert all(json.loads(row["raw"])["row"] for row in problems)
    good = raw.frame.where(F.col("problem").isNull()).count()
    assert good == 1


def test_a_line_without_a_score_is_told_from_one_without_a_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """Numbers that are none and null are no verdict; a key that is missing, whatever else is there, is a fault."""
    scores = ["NaN", "null", '""', '"nan"', '"NaN"', "Infinity", "-Infinity", "1", "0", "true", '"maybe"']
    lines = [f'{{"model":"m","item":"i{at}","correct":{score}}}' for at, score in enumerate(scores)]
    lines += ['{"model":"m","item":"none"}', '{"model":"m","item":"other","acc":1,"Correct":1}']
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines) + "\n")
    rules = IngestConfig()
    raw, _, _ = read_source(spark, str(path), "jsonl", ReadOptions(rules))
    judged = {row["item_id"]: (row["score"], row["reason"]) for row in validate(raw.frame, rules).collect()}
    nothing, bad = (None, None), (None, "unreadable_score")
    expected = [nothing] * 5 + [(float("inf"), "score_out_of_range"), (float("-inf"), "score_out_of_range")]
    expected += [(1.0, None), (0.0, None), (1.0, None), bad]
    found = [judged.pop(f"i{at}") for at in range(len(scores))]
    assert [reason for _, reason in found] == [reason for _, reason in expected]
    assert [score for score, reason in found if reason is None] == [s for s, reason in expected if reason is None]
    assert {item: reason for item, (_, reason) in judged.items()} == dict.fromkeys(("none", "other"), "missing_score")


def test_parquet_text_types_and_folders(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    (folder / "benchmark=007").mkdir(parents=True)
    names = pa.array(["m1", "m1", "m2"]).dictionary_encode()
    table = pa.table({"model": names, "item": pa.array(["a", "b", "a"], pa.large_string()), "score": [0.5, None, 1.0]})
    pq.write_table(table, folder / "benchmark=007" / "p.parquet")
    raw, format, _ = read(folder)
    assert format == "parquet"
    rows = raw.frame.collect()
    assert {row["benchmark"] for row in rows} == {"007"}
    assert [row["position"] for row in sorted(rows, key=lambda row: row["position"])] == [0, 1, 2]
    assert triples(raw) == [("m1", "a", "0.5"), ("m1", "b", None), ("m2", "a", "1.0")]


def test_column_names_follow_the_configured_order(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "both.csv"
    path.write_text("Model,item_id,score,correct,run\nm,i,0.5,0,2\n")
    raw, _, _ = read(path)
    row = raw.frame.head()
    assert (row["model_id"], row["score_raw"], row["attempt"]) == ("m", "0", "2")
    assert any("correct was taken as score, score left out" in note for note in raw.notes)
    assert any("default_benchmark" in note for note in raw.defaults)
    named, _, _ = read(path, benchmark="b1")
    assert named.frame.head()["benchmark"] == "b1"
    assert not any("default_benchmark" in note for note in named.defaults)


def test_a_single_models_file_needs_its_name(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("item,correct\ni,1\n")
    raw, _, _ = read(path, model="Org/X@main")
    assert triples(raw) == [("Org/X@main", "i", "1")]
    with pytest.raises(InputError, match="--model NAME"):
        read(path)
    path.write_text("model,item,correct\nm,i,1\n")
    with pytest.raises(InputError, match="leave out --model"):
        read(path, model="m")


def fill(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


BAD: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "no pattern": (lambda folder: folder / "br[[]1[]", "auto", "pattern of file names that cannot be read.*write"),
    "a name taken as a pattern": (lambda folder: folder / "br[1].csv", "auto", r"exist; brackets.*write \\ before"),
    "missing": (lambda folder: folder / "nowhere.csv", "auto", "does not exist"),
    "empty": (lambda folder: fill(folder / "a.csv", ""), "auto", "is empty"),
    "empty folder": (empty_folder, "auto", "is empty"),
    "no columns": (lambda folder: fill(folder / "a.csv", "name,x\na,1\n"), "auto", "Its columns are: name, x"),
    "no item": (lambda folder: fill(folder / "a.csv", "model,correct\na,1\n"), "auto", r"item \(item or item_id\)"),
    "no score": (lambda folder: fill(folder / "a.jsonl", '{"model":"m","item":"i"}\n'), "auto", r"score \(correct"),
    "not Delta": (lambda folder: fill(folder / "a.csv", "model,item\n").parent, "delta", "is not a Delta table"),
    "not Parquet": (lambda folder: fill(folder / "a.parquet", "model,item\n" * 9), "auto", "not Parquet"),
    "text as Parquet": (lambda folder: fill(folder / "a.csv", "model,item,correct\n"), "parquet", "not Parquet"),
    "binary": (lambda folder: fill(folder / "a.bin", b"\x00\x01\x02" * 99), "auto", "binary"),
    "JSON list": (lambda folder: fill(folder / "a.json", '[{"model": "m"}]'), "jsonl", "one object a line"),
    "no header": (lambda folder: fill(folder / "a.csv", "m1,1.0,0.0\nm2,1.0,0.0\n"), "wide-models", "no header"),
    "no orientation": (lambda folder: fill(folder / "a.csv", ",i1,i2\nm1,1,0\n"), "auto", "wide-models"),
    "twice": (lambda folder: fill(folder / "a.csv", "model,item,correct,item\nm,i,1,j\n"), "auto", "two columns"),
    "not gzip": (lambda folder: fill(folder / "a.csv.gz", "model,item,correct\n"), "auto", "not gzip"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(read: Read, tmp_path: Path, case: str) -> None:
    make, format, message = BAD[case]
    path = make(tmp_path)
    with pytest.raises(InputError, match=message) as raised:
        read(path, format)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a[1].csv", "b{c,d}.csv", "e*?.csv", "f [x]{y}%20.csv"])
def test_a_name_that_looks_like_a_pattern_is_read_with_backslashes(read: Read, tmp_path: Path, name: str) -> None:
    fill(tmp_path / name, "model,item,correct\nm,i,1\n")
    fill(tmp_path / "a1.csv", "model,item,correct\nother,i,1\n")
    given = "".join(f"\\{sign}" if sign in "*?[]{}" else sign for sign in name)
    raw, *_ = read(f"{tmp_path}/{given}")
    assert [row["model_id"] for row in raw.frame.select("model_id").collect()] == ["m"]
    check_input(f"{tmp_path}/{given}")


def test_files_with_other_headers_are_refused_not_shifted(read: Read, tmp_path: Path) -> None:
    from cbmm_spark.readers.files import reading

    fill(tmp_path / "a.csv", "model,item,correct\nm,i,1\n")
    fill(tmp_path / "b.csv", "item,model,correct\ni,m,1\n")
    with pytest.raises(InputError, match="headers differ"), reading(str(tmp_path)):
        read(tmp_path)[0].frame.collect()


def test_the_registry(read: Read, tmp_path: Path) -> None:
    assert all(reader.name == name and reader.description for name, reader in READERS.items())
    with pytest.raises(ConfigError, match="use one of auto"):
        read(tmp_path, "xlsx")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_flags_decide_whatever_the_score(read: Read, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    table = pd.DataFrame({"model": "m", "item": list("abcde"), "score": [1, 1, 0, 1, 1],
                          "no answer": [True, False, True, False, False],
                          "cheated": ["false", "true", "true", None, "who knows"]})  # fmt: skip
    if suffix == "csv":
        table.to_csv(path, index=False)
    elif suffix == "parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, orient="records", lines=True)
    rules = IngestConfig(flags={"no answer": "missing", "cheated": "wrong", "absent": "wrong"})
    raw, _, _ = read(path, rules=rules)
    rows = raw.frame.select("item_id", F.col("score_raw").cast("int"), "problem").collect()
    assert sorted(map(tuple, rows), key=repr) == [
        ("a", None, None), ("b", 0, None), ("c", 0, None), ("d", 1, None), ("e", 1, "unreadable_score"),
    ]  # fmt: skip
    counts = defaults_of(raw)
    assert counts["no answer counted as no verdict (ingest.flags)"] == 2
    assert counts["cheated counted as wrong (ingest.flags)"] == 2
    assert (raw.notes == ("no column for absent of ingest.flags",)) == (suffix != "jsonl")
