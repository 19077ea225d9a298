"""What Spark's pages say about the jobs that run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
