"""The text table of the top of a ranking: order, alignment, names of every kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from cbmm_spark.console.ranking_table import printable, shorten, top_table


def row(model_id: str, rank: int | None = 1, **changes: Any) -> dict[str, Any]:
    values = {
        "model_id": model_id,
        "rank": rank,
        "rank_lower": None,
        "rank_upper": None,
        "ability": 1.2345,
        "ability_se": 0.1,
        "ability_lower": 1.0385,
        "ability_upper": 1.4305,
        "accuracy": 0.9123,
        "accuracy_rank": 4,
        "rank_shift": 3,
        "status": "ok",
    }
    return values | changes


def test_every_value_stands_under_its_title() -> None:
    text = top_table([row("model-a")], {"model-a": 1.5})
    title, line, values = text.splitlines()
    assert set(line) == {"-", " "}
    expected = {
        "rank": "1",
        "ability interval": "1.038 to 1.431",
        "model": "model-a",
        "ability ± SE": "1.234 ± 0.100",
        "accuracy": "91.23%",
        "acc. rank": "4",
        "shift": "+3",
        "true ability": "1.500",
    }
    start = 0
    for name, dashes in zip(expected, line.split("  "), strict=True):
        end = start + len(dashes)
        assert title[start:end].strip() == name
        assert values[start:end].strip() == expected[name]
        start = end + 2


def test_rank_intervals_are_shown_where_they_are_known() -> None:
    text = top_table([row("a", 1, rank_lower=1, rank_upper=2), row("b", 2, rank_lower=1, rank_upper=12)])
    assert "rank interval" in text
    assert "ability interval" not in text
    assert "1 to 12" in text


def test_one_missing_rank_interval_turns_the_column_into_abilities_for_all() -> None:
    text = top_table([row("a", 1, rank_lower=1, rank_upper=2), row("b", 2)])
    assert "ability interval" in text
    assert text.count("1.038 to 1.431") == 2


def test_order_is_by_rank_and_models_without_a_rank_come_last() -> None:
    nothing = dict.fromkeys(
        ["ability", "ability_se", "ability_lower", "ability_upper", "accuracy", "accuracy_rank", "rank_shift"]
    )
    lines = top_table([row("none", None, status="no_responses", **nothing), row("b", 2), row("a", 1)]).splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["1", "2", "-"]
    assert "no_responses" in lines[2]


def test_status_is_shown_only_where_there_is_something_to_say() -> None:
    assert "status" not in top_table([row("a")])
    assert "all_correct" in top_table([row("a"), row("b", 2, status="all_correct")])


def test_no_rows() -> None:
    assert top_table([]) == "no model has a result"


def test_truth_of_an_unknown_model_is_missing_not_zero() -> None:
    assert top_table([row("a")], {}).splitlines()[-1].split()[-1] == "-"


def test_a_long_name_keeps_both_ends_and_fits_the_width() -> None:
    name = "organisation/" + "x" * 200 + "@revision-7"
    lines = top_table([row(name), row("short", 2)], width=100).splitlines()
    assert max(wcswidth(line) for line in lines) == 100
    assert "organ" in lines[2]
    assert "…" in lines[2]
    assert "revision-7" in lines[2]
    assert "…" not in lines[3]


def test_wide_characters_and_emoji_do_not_move_the_columns() -> None:
    names = ["模型日本語", "👩‍👩‍👧", "e\u0301te\u0301", "plain"]
    lines = top_table([row(name, i + 1) for i, name in enumerate(names)]).splitlines()
    assert len({wcswidth(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eabc", "\\u202eabc"),
        ("a\ud800", "a\\ud800"),
        ("é", "é"),
    ],
)
def test_invisible_characters_are_escaped(name: str, shown: str) -> None:
    assert printable(name) == shown
    text = top_table([row(name)])
    assert shown in text
    assert len(text.splitlines()) == 3
    text.encode("utf-8")


@given(st.text(), st.integers(min_value=1, max_value=60))
def test_any_name_fits_any_width(name: str, width: int) -> None:
    short = shorten(printable(name), width)
    assert wcswidth(short) <= width
    assert short == printable(name) or "…" in short


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True))
def test_any_names_make_aligned_lines(names: list[str]) -> None:
    lines = top_table([row(name, i + 1) for i, name in enumerate(names)]).splitlines()
    assert len(lines) == len(names) + 2
    assert len({wcswidth(line) for line in lines}) == 1
