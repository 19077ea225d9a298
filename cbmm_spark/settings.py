"""Settings of the Spark session that hold for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
