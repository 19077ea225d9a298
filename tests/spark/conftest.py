"""Fixtures of the tests of readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.readers.base import ReadOptions
from cbmm_spark.readers.registry import read_source
from tests.spark.reader_samples import Read


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """`read(path, format, given, **rules)`: the raw frame, the format and why; `rules` are keys of `[ingest]`."""

    def call(path: Path | str, format: str = "auto", given: dict[str, Any] | None = None, **rules: Any) -> Any:
        return read_source(spark, str(path), format, ReadOptions(IngestConfig(**rules), **(given or {})))

    return call
