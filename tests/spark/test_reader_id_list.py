"""Ids under headers: what is listed, what is not, and what cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.errors import InputError
from cbmm_spark.readers.id_list import status_of
from tests.spark.reader_samples import defaults_of, read_with, rows_of

ALL = ["a__b-1", "a__b-2", "i 3", "error-4", "v:5"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Failed instances (2):", "unresolved"), ("# not resolved", "unresolved"), ("UNRESOLVED:", "unresolved"),
        ("Failures", "unresolved"), ("Resolved IDs:", "resolved"), ("passed:", "resolved"), ("3 errors:", "error"),
        ("Timed out:", "timeout"), ("empty patches:", "empty"), ("Incomplete:", "incomplete"), ("Details:", None),
        ("impassable:", None),
    ],
)  # fmt: skip
def test_a_header_tells_a_status_by_whole_words(header: str, status: str | None) -> None:
    assert status_of(header) == status


@pytest.fixture
def items(tmp_path: Path) -> str:
    path = tmp_path / "all.txt"
    path.write_text("\n".join(ALL))
    return str(path)


def test_only_failures_after_a_header_line(spark: SparkSession, tmp_path: Path, items: str) -> None:
    """Case R6."""
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "20250805_Org X.txt").write_text("Failed (3):\r\n- a__b-1\r\n\r\n  error-4  \r\n* gone-9\r\n")
    (folder / "m2.txt").write_text("# Resolved\nv:5\nErrors:\ni 3\nNotes:\na__b-2\n")
    raw, name, reason = read_with(spark, folder, benchmark="b", items=items)
    assert name == "id-list"
    assert "says" in reason
    rows = rows_of(raw.frame, "model_id", "item_id", "score_raw", "problem", "position")
    assert rows == sorted([
        ("20250805_Org X", "a__b-1", "unresolved", None, 1), ("20250805_Org X", "error-4", "unresolved", None, 3),
        ("20250805_Org X", "gone-9", "unresolved", "unknown_item", 4),
        ("20250805_Org X", "a__b-2", "resolved", None, None),
        ("20250805_Org X", "i 3", "resolved", None, None), ("20250805_Org X", "v:5", "resolved", None, None),
        ("m2", "v:5", "resolved", None, 1), ("m2", "i 3", "error", None, 3), ("m2", "a__b-2", "?", "malformed_row", 5),
        ("m2", "a__b-1", "unresolved", None, None), ("m2", "error-4", "unresolved", None, None),
    ], key=repr)  # fmt: skip
    counted = defaults_of(raw)
    assert counted["not listed in a file that lists what was not solved: resolved"] == 3
    assert counted["not listed in a file that lists what was solved: unresolved"] == 2


def test_without_all_items_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("Failed:\na\n")
    with pytest.raises(InputError, match="give the list of all items with --items FILE"):
        read_with(spark, path)
