"""Which sources of a night are read, and why the others are not."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from cbmm_spark.config.schema import IngestConfig, SourceConfig
from cbmm_spark.night import sources
from cbmm_spark.night.sources import (
    LastIngest,
    SourceContents,
    decide_source,
    fingerprint,
    ingest_options,
    last_of_each,
    source_key,
)

SOURCE = SourceConfig("harness", "/in", format="lm-eval", benchmark="b")
RULES = IngestConfig()
FILES = {"/in": SourceContents("3 files", 3)}
SAME = fingerprint(SOURCE, RULES, {"/in": "3 files"})


def last(print_: str = SAME, read: int = 10, accepted: int = 10) -> LastIngest:
    return LastIngest(print_, "i1", read, accepted)


def test_what_is_unchanged_since_its_last_ingest_is_left_alone() -> None:
    decision = decide_source(SOURCE, RULES, FILES, last(), True)
    assert (decision.action, decision.reason) == ("skip", "unchanged since ingest i1")
    assert decision.fingerprint == SAME


@pytest.mark.parametrize(
    ("found", "known", "skip", "reason"),
    [
        (FILES, None, True, "not read before"),
        ({"/in": SourceContents("4 files", 4)}, last(), True, "changed"),
        (FILES, last("other:print"), True, "changed"),
        (FILES, last(), False, "skip_unchanged is false"),
        (FILES, last(accepted=0), True, "found no response"),
        ({"/in": SourceContents(None)}, last(), True, "not Delta"),
    ],
)
def test_what_has_to_be_read(found: Any, known: LastIngest | None, skip: bool, reason: str) -> None:
    decision = decide_source(SOURCE, RULES, found, known, skip)
    assert decision.action == "read"
    assert reason in decision.reason


def ingest_row(name: str, hour: int, print_: str | None, changed: int = 0) -> dict[str, Any]:
    begun = dt.datetime(2026, 5, 11, hour, tzinfo=dt.UTC)
    return {
        "ingest_id": name, "input_fingerprint": print_, "started_at": begun,
        "finished_at": begun + dt.timedelta(minutes=5), "rows_read": 10, "accepted": 10, "changed": changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("others", "action"),
    [
        ([], "skip"),
        ([ingest_row("by hand", 3, None)], "skip"),  # it changed nothing that was stored
        ([ingest_row("by hand", 3, None, changed=1)], "read"),
        ([ingest_row("another", 3, "another:print", changed=1)], "read"),
        ([ingest_row("by hand", 1, None, changed=1)], "skip"),  # before: the source has had the last word
        ([ingest_row("by hand", 3, None, changed=1), ingest_row("again", 4, SAME, changed=1)], "skip"),
    ],
)
def test_what_a_later_ingest_may_have_overwritten_is_read_again(others: list[dict[str, Any]], action: str) -> None:
    found = last_of_each([ingest_row("mine", 2, SAME, changed=2), *others])
    decision = decide_source(SOURCE, RULES, FILES, found[source_key(SOURCE)], True)
    assert decision.action == action, decision.reason


def test_a_table_that_tells_nothing_has_no_fingerprint() -> None:
    assert decide_source(SOURCE, RULES, {"/in": SourceContents(None)}, None, True).fingerprint is None


def test_an_input_of_no_rows_at_all_is_not_read_every_night() -> None:
    assert decide_source(SOURCE, RULES, FILES, last(read=0, accepted=0), True).action == "skip"


def test_a_missing_input_is_a_failure_unless_it_is_optional() -> None:
    found = {"/in": None}
    assert decide_source(SOURCE, RULES, found, last(), True).action == "failed"
    assert decide_source(dataclasses.replace(SOURCE, optional=True), RULES, found, last(), True).action == "missing"


def test_a_missing_list_of_items_or_mapping_is_a_failure_even_of_an_optional_source() -> None:
    source = dataclasses.replace(SOURCE, optional=True, items="/items")
    decision = decide_source(source, RULES, {**FILES, "/items": None}, None, True)
    assert decision.action == "failed"
    assert "/items does not exist" in decision.reason


@pytest.mark.parametrize(
    "field", [f.name for f in dataclasses.fields(SourceConfig) if f.name not in ("name", "optional")]
)
def test_the_fingerprint_differs_with_everything_that_could_change_what_is_read(field: str) -> None:
    other = dataclasses.replace(SOURCE, **{field: "other"})
    assert source_key(other) != source_key(SOURCE)
    assert fingerprint(other, RULES, {"/in": "3 files"}) != SAME


def test_the_fingerprint_differs_with_rules_files_and_version_but_not_with_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = {"/in": "3 files"}
    assert fingerprint(dataclasses.replace(SOURCE, name="n", optional=True), RULES, states) == SAME
    assert fingerprint(SOURCE, dataclasses.replace(RULES, duplicates="first"), states) != SAME
    assert fingerprint(SOURCE, RULES, {"/in": "4 files"}) != SAME
    assert fingerprint(SOURCE, RULES, {**states, "/items": "x"}) != SAME
    monkeypatch.setattr(sources, "__version__", "another")
    assert fingerprint(SOURCE, RULES, states) != SAME


def test_options_that_are_not_given_are_left_to_the_ingest() -> None:
    assert ingest_options(SourceConfig("n", "/in")) == {"format": "auto"}
    assert ingest_options(SOURCE) == {"format": "lm-eval", "benchmark": "b"}
