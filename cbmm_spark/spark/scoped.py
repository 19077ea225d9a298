"""What holds for a block of code and no longer: kept frames, settings of the session, and what Spark's pages say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory and on disk for a block."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set Spark SQL settings for a block, and put the old values back.

    Parameters
    ----------
    spark
        The session.
    settings
        By name; None takes a setting back to Spark's default.
    """
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        _set(spark, settings)
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


_PROPERTY = "spark.job.description"


def describe_jobs(spark: SparkSession, text: str | None) -> None:
    """Say what the jobs from here on are for, until the next word or the end of an enclosing `job_description`."""
    spark.sparkContext.setLocalProperty(_PROPERTY, text)  # type: ignore[arg-type]


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """Say what the jobs inside are for; afterwards what was said before holds again."""
    before = spark.sparkContext.getLocalProperty(_PROPERTY)
    describe_jobs(spark, text)
    try:
        yield
    finally:
        describe_jobs(spark, before)
