"""Bad input through the console command: code 2 or 3, one clear line, nothing written (the process: test_submit)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.commands import Run


def without_columns(folder: Path) -> Path:
    path = folder / "other.csv"
    path.write_text("name,question,verdict\nm,i,1\n", encoding="utf-8")
    return path


def not_parquet(folder: Path) -> Path:
    path = folder / "broken.parquet"
    path.write_bytes(b"PAR1 this is no Parquet file PAR1")
    return path


def only_a_header(folder: Path) -> Path:
    path = folder / "header.csv"
    path.write_text("model,item,correct\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("make", [without_columns, not_parquet, only_a_header])
def test_an_input_that_holds_no_responses_is_one_line_and_writes_nothing(
    here: Run, tmp_path: Path, make: object
) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    done = here("ingest", "--input", str(path), "--warehouse", str(tmp_path / "warehouse"))
    assert path.name in done.refused(3)
    assert done.out == ""
    assert not (tmp_path / "warehouse").exists()


def test_a_format_that_does_not_exist_is_refused_with_those_that_do(here: Run, history: Path, tmp_path: Path) -> None:
    done = here(
        "ingest", "--input", str(history / "history.parquet"), "--format", "xlsx", "--warehouse", str(tmp_path / "w")
    )
    assert "long" in done.refused(2)
    assert not (tmp_path / "w").exists()


def test_a_warehouse_whose_table_is_no_delta_table_is_refused(here: Run, tmp_path: Path) -> None:
    (tmp_path / "w" / "responses").mkdir(parents=True)
    (tmp_path / "w" / "responses" / "readme.txt").write_text("not a table", encoding="utf-8")
    before = sorted((tmp_path / "w").rglob("*"))
    assert "responses" in here("rescore", "--warehouse", str(tmp_path / "w")).refused(3)
    assert sorted((tmp_path / "w").rglob("*")) == before
