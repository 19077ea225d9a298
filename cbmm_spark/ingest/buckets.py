"""The bucket of a benchmark: the partition of `responses` that its rows are in."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.tables import BENCHMARK_BUCKETS


def bucket_of_benchmark() -> Column:
    """Return `benchmark_bucket` of a row with a column `benchmark`."""
    return F.pmod(F.xxhash64("benchmark"), F.lit(BENCHMARK_BUCKETS)).cast("int")
