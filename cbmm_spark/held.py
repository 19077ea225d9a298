"""Frames that are kept for as long as they are needed, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.storagelevel import StorageLevel

from cbmm_spark.settings import session_settings


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory and on disk for a block."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@contextmanager
def as_it_is(spark: SparkSession) -> Iterator[None]:
    """Keep what is persisted and first computed in a block without encoding it.

    Spark tries every encoding on every value of a kept frame. Hashes, which no encoding makes smaller, are kept a third
    faster without (docs/decisions/0013); columns of text are not to be kept so.
    """
    with session_settings(spark, {"spark.sql.inMemoryColumnarStorage.compressed": "false"}):
        yield
