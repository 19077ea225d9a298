"""Upkeep: the number of files stays bounded over nights, and no row changes (cases N7, N8)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
from delta.exceptions.base import ConcurrentDeleteReadException
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config, RescoreConfig, ScalesConfig
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import ConflictError
from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import SPECS, Warehouse, retry
from cbmm_spark.upkeep.maintain import maintain
from tests.spark.helpers import Heard, Matrix, store

NIGHTS = 10
FIRST = dt.date(2026, 5, 11)
CONFIG = dataclasses.replace(Config(), scales=ScalesConfig(per_benchmark=False), rescore=RescoreConfig(min_items=5))


pytestmark = pytest.mark.faults


def files(warehouse: Warehouse) -> dict[str, Counter[str]]:
    """Live files by table and folder, as delta-rs finds them."""
    there = {name: DeltaTable(warehouse.location(name)).file_uris() for name in SPECS if warehouse.exists(name)}
    return {name: Counter(uri.rpartition("/")[0] for uri in uris) for name, uris in there.items()}


def rows(warehouse: Warehouse) -> dict[str, Any]:
    """A sum over all rows of each table that any change of a row changes."""
    found = {}
    for name in SPECS:
        if warehouse.exists(name):
            frame = warehouse.read(name)
            hashed = F.xxhash64(*frame.columns).cast("decimal(38,0)")
            found[name] = frame.agg(F.count("*"), F.sum(hashed)).head()
    return found


def upkeep(warehouse: Warehouse, *steps: str) -> Any:
    return maintain(warehouse.spark, warehouse, CONFIG, steps, Progress("json", io.StringIO()))


@pytest.mark.slow
def test_files_are_bounded_over_nights_and_no_row_changes(warehouse: Warehouse) -> None:
    rng = np.random.default_rng(5)
    solved = (rng.random((12, 20)) < np.linspace(0.2, 0.8, 12)[:, None]).astype(float)
    dates = [FIRST + dt.timedelta(days=max(0, i - 4)) for i in range(12)]
    store(warehouse, {"b": Matrix(np.ones((12, 20)), solved)}, dates=dates)
    for number in range(NIGHTS):
        rescore(warehouse.spark, warehouse, CONFIG, FIRST + dt.timedelta(days=number), Heard())
    before, rows_before = files(warehouse), rows(warehouse)
    pinned = {name: warehouse.version(name) for name in before}
    report = upkeep(warehouse, "retention", "optimize", "vacuum")
    assert report.error is None
    after = files(warehouse)
    assert rows(warehouse) == rows_before
    by_night = ("abilities", "item_parameters")
    for name, folders in after.items():
        # One file a partition; partitions are days, or benchmarks, which are few.
        assert set(folders.values()) <= {1}, name
        assert len(folders) <= (NIGHTS if name in by_night else 1), name
        table = report.tables[name]
        assert (table.files_before, table.files_after) == (before[name].total(), folders.total()), name
    # Without upkeep they grow with the nights: this is what the command is for.
    assert before["run_scales"].total() >= NIGHTS
    assert before["run_iterations"].total() >= NIGHTS
    # A fit that pinned a version before reads it to its end: VACUUM keeps seven days.
    for name, version in pinned.items():
        assert warehouse.read(name, version).count() == rows_before[name][0], name
    # Packing goes by the version of responses: taking files away is none.
    versions = {name: warehouse.version(name) for name in after}
    upkeep(warehouse, "optimize", "vacuum")
    assert files(warehouse) == after  # nothing is small any more
    assert warehouse.version("responses") == versions["responses"]


def test_a_table_that_others_keep_rewriting_is_code_5_and_does_not_keep_the_others(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_SECONDS", 0.0)
    tried: list[str] = []

    class Busy:
        def optimize(self) -> Any:
            tried.append("responses")
            raise ConcurrentDeleteReadException("somebody was quicker")

    warehouse.ensure("models", "responses")
    real = warehouse.delta
    monkeypatch.setattr(warehouse, "size", lambda name: {"files": 2} if warehouse.exists(name) else None)
    monkeypatch.setattr(warehouse, "delta", lambda name: Busy() if name == "responses" else real(name))
    report = upkeep(warehouse, "optimize")
    assert tried == ["responses"] * (retry.RETRIES + 1)
    assert isinstance(report.error, ConflictError)
    assert report.tables["responses"].error is not None
    assert report.tables["models"].error is None
