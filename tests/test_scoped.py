"""What holds for a block of code: settings that overlap in several threads, and work done side by side."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.spark.scoped import job_description, session_settings, side_by_side

SETTING = "spark.sql.parquet.outputTimestampType"


class Conf:
    """Settings of a session, without the session."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {SETTING: "INT96"}

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)


class Session:
    def __init__(self) -> None:
        self.conf = Conf()


def test_settings_hold_until_the_last_of_overlapping_blocks_has_ended() -> None:
    session: Any = Session()
    first, second = (session_settings(session, {SETTING: value, "other": "1"}) for value in ("A", "B"))
    first.__enter__()
    second.__enter__()
    assert session.conf.get(SETTING) == "B"
    first.__exit__(None, None, None)  # it began first and ends first
    assert session.conf.get(SETTING) == "B"
    second.__exit__(None, None, None)
    assert session.conf.values == {SETTING: "INT96"}
    with session_settings(session, {SETTING: "A"}):
        with session_settings(session, {SETTING: None}):
            assert session.conf.get(SETTING) is None
        assert session.conf.get(SETTING) == "A"
    assert session.conf.values == {SETTING: "INT96"}


def test_work_side_by_side_knows_what_its_command_knows(spark: SparkSession) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nothing")
    variable.set("known")
    seen: list[tuple[str, Any, bool]] = []
    together = threading.Barrier(2)

    def look() -> None:
        together.wait(timeout=60)  # one after the other would end in a broken barrier
        description = spark.sparkContext.getLocalProperty("spark.job.description")
        seen.append((variable.get(), description, threading.current_thread() is threading.main_thread()))

    with job_description(spark, "what it is for"):
        side_by_side(spark, look, look)
    assert seen == [("known", "what it is for", False)] * 2


def test_the_first_error_is_told_after_all_have_ended(spark: SparkSession) -> None:
    ended: list[str] = []

    def fail(name: str) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="one"):
        side_by_side(spark, lambda: fail("one"), lambda: ended.append("two"), lambda: fail("three"))
    assert ended == ["two"]
