"""Small tables for a terminal."""

from __future__ import annotations

import datetime as dt

import pytest
from wcwidth import wcswidth

from cbmm_spark.console.text_table import duration, size, text_table


def test_numbers_to_the_right_texts_to_the_left_nothing_as_a_dash() -> None:
    rows = [("日本", 12_345, None, True), ("b", None, "x\ny", False)]
    assert text_table(("name", "n", "note", "good"), rows).splitlines() == [
        "name       n  note  good",
        "----  ------  ----  ----",
        "日本  12,345  -     yes",
        "b          -  x\\ny  no",
    ]


def test_columns_stay_aligned_whatever_is_in_them() -> None:
    rows = [(name, 1.23456, dt.datetime(2026, 5, 11, 3, 4)) for name in ("a", "é", "😀 emoji", "\x1b[31m", "")]
    lines = text_table(("name", "x", "when"), rows).splitlines()
    assert len({wcswidth(line) for line in lines[1:]}) == 1  # of the heads the last one ends earlier
    assert "2026-05-11 03:04" in lines[2]


def test_no_rows_are_heads_alone() -> None:
    assert text_table(("a", "bc"), []).splitlines() == ["a  bc", "-  --"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((None, None), (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (99_960, "100 kB")),
        *((999_600, "1 MB"), (5 * 10**9, "5 GB"), (3 * 10**18, "3000 PB")),
    ],
)
def test_sizes(number: int | None, text: str | None) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0.04, "0.0 s"), (59.4, "59.4 s"), (59.6, "1 min 0 s"), (3599.9, "1 h 0 min"), (7290, "2 h 1 min")],
)
def test_durations(seconds: float | None, text: str | None) -> None:
    assert duration(seconds) == text
