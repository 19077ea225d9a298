"""Duplicates and stored values: what becomes of each key, against a plain definition row by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbmm_spark.responses.reconcile import (
    BECAME,
    Answers,
    Attempts,
    Duplicates,
    compare,
    decide,
    place_of,
    sorted_by_place,
    together,
)
from cbmm_spark.responses.rules import NO_DATE

Row = tuple[int, int, float | None, int | None, int]
"""Item, attempt, score, date, source."""


def answers(rows: list[Row]) -> Answers:
    item, attempt, score, date, source = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Answers(
        place=place_of(np.array(item, dtype=np.int64), np.array(attempt, dtype=np.int64)),
        score=np.array([math.nan if value is None else value for value in score], dtype=np.float64),
        date=np.array([NO_DATE if value is None else value for value in date], dtype=np.int64),
        source=np.array(source, dtype=np.int64),
        rows=np.ones(len(rows), dtype=np.int64),
    )


def as_rows(found: Answers) -> dict[tuple[int, int], tuple[float | None, int | None, int, int]]:
    return {
        (int(item), int(attempt)): (
            None if math.isnan(score) else float(score),
            None if date == NO_DATE else int(date),
            int(source),
            int(rows),
        )
        for item, attempt, score, date, source, rows in zip(
            found.item, found.attempt, found.score, found.date, found.source, found.rows, strict=True
        )
    }


def plainly(rows: list[Row], rule: Duplicates) -> tuple[dict[Any, Any], set[Any]]:
    """The rule for duplicates, one key at a time: what is decided, and what is open."""
    decided, undecided = {}, set()
    for key in {row[:2] for row in rows}:
        mine = [row for row in rows if row[:2] == key]
        deciding = mine
        if len({row[2] for row in mine}) > 1:
            if rule == "error":
                undecided.add(key)
                continue
            dates = [row[3] for row in mine if row[3] is not None]
            when = None if not dates else max(dates) if rule == "latest" else min(dates)
            deciding = [row for row in mine if row[3] == when]
            if len({row[2] for row in deciding}) > 1:
                undecided.add(key)
                continue
        dates = [row[3] for row in deciding if row[3] is not None]
        source = min(row[4] for row in deciding)
        decided[key] = (deciding[0][2], min(dates) if dates else None, source, len(mine))
    return decided, undecided


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from([0.0, 1.0, 0.5, None]),
        st.sampled_from([None, 10, 20, 30]),
        st.integers(-3, 3),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=300)
@given(ROWS, st.sampled_from(["latest", "first", "error"]), st.randoms())
def test_each_key_is_decided_as_the_rule_says_whatever_the_order(rows: list[Row], rule: Duplicates, dice: Any) -> None:
    expected, is_open = plainly(rows, rule)
    for _ in range(2):
        cut = dice.randrange(len(rows) + 1)
        pieces = [answers(part) for part in (rows[:cut], rows[cut:]) if part]
        found = decide(together(pieces), rule)
        assert as_rows(found.answers) == expected
        assert set(as_rows(found.undecided)) == is_open
        assert found.answers.rows.sum() + found.undecided.rows.sum() == len(rows)
        assert (np.diff(found.answers.place) > 0).all()
        dice.shuffle(rows)


@settings(max_examples=200)
@given(ROWS, st.sampled_from(["latest", "first"]))
def test_one_attempt_counts_and_the_others_are_counted(rows: list[Row], rule: Attempts) -> None:
    every = decide(answers(rows), "latest").answers
    found = decide(answers(rows), "latest", rule)
    kept = as_rows(found.answers)
    expected: dict[int, tuple[Any, ...]] = {}
    for (item, _), value in sorted(as_rows(every).items(), reverse=rule == "first"):
        expected[item] = value
    assert {item: value for (item, _), value in kept.items()} == expected
    assert {attempt for _, attempt in kept} <= {1}
    assert found.other_attempts == every.rows.sum() - found.answers.rows.sum()


def test_several_attempts_are_named_under_error() -> None:
    found = decide(answers([(1, 1, 1.0, None, 0), (1, 2, 1.0, None, 0), (2, 5, 0.0, None, 0)]), "latest", "error")
    assert (found.several >> 31).tolist() == [1, 1]
    assert not decide(answers([(1, 1, 1.0, None, 0)]), "latest", "error").several.size


@pytest.mark.parametrize(
    ("rule", "new", "old", "became", "date"),
    [
        ("latest", (1.0, 20), None, "new", 20),
        ("latest", (1.0, 20), (1.0, 20), "unchanged", 20),
        ("latest", (1.0, 20), (1.0, 10), "unchanged", 20),
        ("latest", (1.0, 10), (1.0, 20), "redated", 10),
        ("latest", (1.0, 10), (1.0, None), "redated", 10),
        ("latest", (1.0, None), (1.0, 10), "unchanged", None),
        ("latest", (None, 10), (None, 10), "unchanged", 10),
        ("latest", (1.0, 20), (0.0, 10), "corrected", 20),
        ("latest", (1.0, 10), (0.0, 20), "superseded", 10),
        ("latest", (1.0, None), (0.0, 20), "corrected", 20),
        ("latest", (None, 20), (1.0, 20), "corrected", 20),
        ("latest", (1.0, 20), (None, None), "corrected", 20),
        ("first", (1.0, 20), (0.0, 10), "superseded", 20),
        ("first", (1.0, 10), (0.0, 20), "corrected", 10),
        ("first", (1.0, None), (0.0, 20), "superseded", None),
        ("first", (1.0, 20), (0.0, None), "superseded", 20),
        ("error", (1.0, 10), (0.0, 20), "superseded", 10),
    ],
)
def test_what_becomes_of_a_key(rule: Duplicates, new: Any, old: Any, became: str, date: int | None) -> None:
    """Among other stored keys, before and after it."""
    others = [(0, 0, 1.0, 1, 0), (9, 9, 1.0, 1, 0)]
    stored = sorted_by_place(answers([*others, *([(4, 1, *old, 0)] if old else [])]))
    found = compare(answers([(4, 1, *new, 7)]), stored, rule)
    assert [BECAME[code] for code in found.became] == [became]
    assert (None if found.answers.date[0] == NO_DATE else found.answers.date[0]) == date


def test_without_anything_stored_all_is_new() -> None:
    rows = answers([(1, 1, 1.0, None, 0), (2, 1, None, 5, 0)])
    for stored in (None, answers([])):
        assert compare(rows, stored, "latest").became.tolist() == [0, 0]
