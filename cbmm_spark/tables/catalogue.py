"""All tables by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cbmm_spark.tables.inputs import INPUTS, INTERNAL
from cbmm_spark.tables.results import RESULTS
from cbmm_spark.tables.spec import TableSpec

SPECS: Mapping[str, TableSpec] = MappingProxyType({spec.name: spec for spec in (*INPUTS, *RESULTS, *INTERNAL)})
"""Inputs, then results, then internal tables."""
