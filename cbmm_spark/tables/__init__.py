"""Every Delta table of the project: what it looks like, and how it is created, read and written.

This package is the only place that knows table schemas.

- In: The place of a warehouse, frames to be written.
- Out: Frames of its tables.
- May import: errors, faultpoints, config, locations, spark, console.
"""

from __future__ import annotations

from cbmm_spark.tables.catalogue import SPECS
from cbmm_spark.tables.inputs import BENCHMARK_BUCKETS
from cbmm_spark.tables.provenance import add_provenance, provenance, recorded
from cbmm_spark.tables.results import ABILITY_STATUSES, FLAG_REASONS, RUN_STATUSES
from cbmm_spark.tables.retry import with_commit_retry
from cbmm_spark.tables.spec import Column, TableSpec
from cbmm_spark.tables.warehouse import Warehouse

__all__ = [
    "ABILITY_STATUSES",
    "BENCHMARK_BUCKETS",
    "FLAG_REASONS",
    "RUN_STATUSES",
    "SPECS",
    "Column",
    "TableSpec",
    "Warehouse",
    "add_provenance",
    "provenance",
    "recorded",
    "with_commit_retry",
]
