"""Logs of Inspect AI: epochs are attempts, letters are scores, errors are missing unless configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from cbmm_spark.config.schema import STATUS
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame
from tests.spark.reader_samples import Read, defaults_of, rows_with

NAME = "2025-03-03T12-00-00+00-00_my-task_AbCdEfGhIjKlMnOpQrStUv.json"


def sample(id: Any, epoch: int = 1, **scores: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": '{"id": 99, "scores": {"x": {"value": "C"}}}\n' * 5}]
    told = {name: {"value": value, "answer": "A", "explanation": "é"} for name, value in scores.items()}
    return {"id": id, "epoch": epoch, "input": "q", "target": "a", "messages": messages, "output": {}, "scores": told,
            "metadata": {"id": 5}, "events": [{"event": "x", "epoch": 7}], "model_usage": {}}  # fmt: skip


def log(samples: list[Any] | None, **told: Any) -> dict[str, Any]:
    eval = {"run_id": "r", "created": "2025-03-03T13:00:00.123456+01:00", "task": "my task", "task_version": 2,
            "model": "openai/gpt-4o", "dataset": {}, "config": {}, "model_args": {}}  # fmt: skip
    more = {} if samples is None else {"samples": samples}
    return {"version": 2, "status": "success", "eval": {**eval, **told}, "results": {"scores": []}, **more}


def write(path: Path, content: Any, indent: int | None = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, indent=indent, ensure_ascii=False)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def rows(raw: RawFrame, problem: str | None = None) -> list[Row]:
    return rows_with(raw, problem, "model_id", "item_id", "attempt")


def scores(raw: RawFrame) -> dict[str, str | None]:
    return {row["item_id"]: row["score_raw"] for row in rows(raw)}


def test_a_folder_of_logs(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "räum a+b 100%25 [x]"
    write(folder / NAME, log([sample(1, 1, match="C"), sample(1, 2, match="I"), sample("s ü", match="C")]))
    other = log([sample(1, match=0.25)], model="hf/Org/X", model_args={"revision": "b", "device": "cpu"})
    write(folder / f"2{NAME}".replace("22025", "2025").replace("my-task", "other: 1"), other, None)
    raw, format, reason = read(tmp_path)
    assert format == "inspect"
    assert "Inspect" in reason
    assert raw.frame.columns[: len(RAW_COLUMNS)] == list(RAW_COLUMNS)
    found = [(row["model_id"], row["benchmark"], row["item_id"], row["attempt"], row["score_raw"]) for row in rows(raw)]
    assert found == [
        ("hf/Org/X@b", "my task@2", "1", "1", "0.25"),
        ("openai/gpt-4o", "my task@2", "1", "1", "1"),
        ("openai/gpt-4o", "my task@2", "1", "2", "0"),
        ("openai/gpt-4o", "my task@2", "s ü", "1", "1"),
    ]
    assert rows(raw)[1]["evaluated_at_raw"].isoformat() == "2025-03-03T12:00:00.123456"
    assert [row["position"] for row in rows(raw)] == [0, 0, 1, 2]
    assert "messages" not in rows(raw)[0]["raw"]
    assert defaults_of(raw) == {"the only scorer of a sample taken": 4}
    assert {row["benchmark"] for row in rows(read(tmp_path, version="ignore")[0])} == {"my task"}


VALUES: list[tuple[Any, str | None]] = [
    *(("C", "1"), ("I", "0"), ("P", "0.5"), ("N", "0"), ("c", "1"), (1, "1"), (0.5, "0.5"), (True, "true")),
    *((None, None), ("", ""), ("maybe", "maybe"), ("1.0", "1.0"), (50, "50"), ("timeout", "0.0"), ("resolved", "1.0")),
    *(("incomplete", ""), ([1, 0], "[1,0]"), ({"a": 1}, '{"a":1}')),
]


def test_every_kind_of_value(read: Read, tmp_path: Path) -> None:
    write(tmp_path / NAME, log([sample(at, s=value) for at, (value, _) in enumerate(VALUES)]))
    raw, _, _ = read(tmp_path)
    assert [scores(raw)[str(at)] for at in range(len(VALUES))] == [score for _, score in VALUES]
    assert defaults_of(raw)["no answer (N) counted as 0"] == 1
    raw, _, _ = read(tmp_path, status={**STATUS, "n": "missing", "p": 0.0})
    assert [scores(raw)["2"], scores(raw)["3"]] == ["0.0", ""]
    assert "no answer (N) counted as 0" not in defaults_of(raw)


def test_errors_are_missing_unless_configured(read: Read, tmp_path: Path) -> None:
    failed = {**sample("e"), "error": {"message": "boom"}}
    late = {**sample("l", s="C"), "error": {"message": "boom"}}
    invalid = {**sample("v", s="C"), "invalidation": {"reason": "contaminated"}}
    write(tmp_path / NAME, log([failed, late, invalid, sample("u"), sample("c", s="C")]))
    raw, _, _ = read(tmp_path)
    assert scores(raw) == {"e": None, "l": None, "v": None, "u": None, "c": "1"}
    assert defaults_of(raw) == {
        "the only scorer of a sample taken": 1, "error counted as missing": 2,
        "invalidated sample counted as missing": 1, "sample without scores counted as missing": 1,
    }  # fmt: skip
    raw, _, _ = read(tmp_path, status={**STATUS, "error": 0.0})
    assert scores(raw) == {"e": "0.0", "l": "0.0", "v": None, "u": None, "c": "1"}


def test_of_several_scorers_a_declared_one_counts(read: Read, tmp_path: Path) -> None:
    write(tmp_path / NAME, log([sample(0, a="C", b="I"), sample(1, exact_match="I", b="C")]))
    raw, _, _ = read(tmp_path)
    assert scores(raw) == {"1": "0"}
    assert [row["item_id"] for row in rows(raw, "unknown_metric")] == ["0"]
    assert defaults_of(raw) == {'metric exact_match taken by ingest.metrics."*"': 1}
    raw, _, _ = read(tmp_path, metrics={"my task": ("b",)})
    assert scores(raw) == {"0": "0", "1": "1"}
    assert defaults_of(raw) == {}


def test_bad_records_and_other_files(read: Read, tmp_path: Path) -> None:
    write(tmp_path / NAME, log([sample(0, s="C"), "text", 17, None, [1], sample(5, s="I")]))
    write(tmp_path / NAME.replace("my-task", "none"), log(None))
    write(tmp_path / NAME.replace("my-task", "cut"), json.dumps(log([sample(0, s="C")]))[:-20])
    write(tmp_path / "summary.json", {"accuracy": 1.0})
    raw, _, _ = read(tmp_path)
    assert scores(raw) == {"0": "1", "5": "0"}
    assert sorted((row["position"] is None, row["position"]) for row in rows(raw, "malformed_row")) == [
        (False, 1), (False, 2), (False, 3), (False, 4), (True, None),
    ]  # fmt: skip
    assert len(rows(raw, "no_result")) == 2


def test_dates(read: Read, tmp_path: Path) -> None:
    for at, created in enumerate(["10132025", "2025-10-13T00:00:00Z", "2025-10-13", ""]):
        write(tmp_path / f"{NAME[:-5]}{at}.json", log([sample(at, s="C")], created=created))
    raw, _, _ = read(tmp_path)
    assert {row["item_id"]: str(row["evaluated_at_raw"]) for row in rows(raw)} == {
        "1": "2025-10-13 00:00:00", "2": "2025-10-13 00:00:00", "3": "None"}  # fmt: skip
    assert [row["item_id"] for row in rows(raw, "unreadable_date")] == ["0"]


def test_what_is_refused(read: Read, tmp_path: Path) -> None:
    write(tmp_path / "a" / NAME, log([sample(0, s="C")]))
    for told in ({"model": "x"}, {"benchmark": "x"}):
        with pytest.raises(InputError, match="leave out --"):
            read(tmp_path / "a", given=told)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "log.eval").write_bytes(b"PK\x03\x04" + b"\x00" * 50)
    with pytest.raises(InputError, match="inspect log convert --to json") as refused:
        read(tmp_path / "b")
    assert "\n" not in str(refused.value)


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=150)


@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True), model=NAMES)
def test_any_name_is_read_back_unchanged(read: Read, tmp_path: Path, names: list[str], model: str) -> None:
    ids = list(dict.fromkeys(["007", "1.0", "null", "two\nlines", " padded ", *names]))
    write(tmp_path / NAME, log([sample(name, s="C") for name in ids], model=model))
    found = rows(read(tmp_path)[0])
    assert {row["item_id"] for row in found} == set(ids)
    assert {row["model_id"] for row in found} == {model}
