"""A warehouse on the night of a fault, and what may be seen in it before and after it is repaired."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import RetentionConfig
from cbmm_spark.tables import Warehouse
from cbmm_spark.upkeep.retention import apply_retention
from tests.conftest import ROOT
from tests.faults.leaderboard import ITEMS, MODELS, TONIGHT
from tests.spark.helpers import DAY

BEFORE = ("claimed", "iteration 3", "run_iterations", "item_parameters", "abilities", "run_scales")
AFTER = ("published", "latest_abilities", "latest_item_parameters", "latest")
"""Points of a night before and after the commit that publishes it."""

NUMBERS = {"abilities": ("model_id", "ability"), "item_parameters": ("item_id", "discrimination")}

Results = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Nights:
    """A warehouse before tonight, and what tonight gives where nothing happens."""

    root: Path
    last_run: str
    expected: Results


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    """The live rows of a table as delta-rs finds its files, independent of the session; with partition values."""
    found = []
    for uri in DeltaTable(str(root / name)).file_uris():
        day = next((part.partition("=")[2] for part in uri.split("/") if part.startswith("scored_on=")), None)
        more = {} if day is None else {"scored_on": day}
        found += [row | more for row in pq.ParquetFile(uri.removeprefix("file://")).read().to_pylist()]
    return found


def results(root: Path, run_id: str) -> Results:
    """What a run found for each model and item."""
    return {
        name: {row[key]: row[value] for row in rows(root, name) if row["run_id"] == run_id}
        for name, (key, value) in NUMBERS.items()
    }


def attached_environment(**more: str) -> dict[str, str]:
    """Environment of a driver process that attaches to the JVM of this one (`driver.attached`)."""
    gateway = SparkContext._gateway
    assert gateway is not None
    parameters = gateway.gateway_parameters
    given = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    return {**os.environ, **given, "PYTHONPATH": str(ROOT), **more}


def check_visible(root: Path, nights: Nights, point: str) -> None:
    """What readers see between the fault and the rerun: the last night or the new one, whole."""
    seen = {row["run_id"]: str(row["scored_on"]) for row in rows(root, "runs") if row["status"] == "published"}
    fresh = [run_id for run_id, day in seen.items() if day == TONIGHT.isoformat()]
    assert seen[nights.last_run] == DAY.isoformat()
    assert len(fresh) == (point in AFTER)
    names = (*NUMBERS, *(f"latest_{name}" for name in NUMBERS))
    counted = {name: Counter(row["run_id"] for row in rows(root, name)) for name in names}
    for run_id in fresh:
        assert counted["abilities"][run_id] == MODELS
        assert counted["item_parameters"][run_id] == ITEMS
    # Both are written side by side: the kill comes when one is there, and the other may be.
    for name in ("latest_abilities", "latest_item_parameters"):
        (run_id,) = counted[name]
        if point in (name, "latest"):
            assert run_id == fresh[0], name
        elif point in (*BEFORE, "published"):
            assert run_id == nights.last_run, name
        else:
            assert run_id in (fresh[0], nights.last_run), name
        assert counted[name][run_id] == counted[name.removeprefix("latest_")][run_id]


def check_repaired(root: Path, nights: Nights, run_id: str, resumed: bool, ended: Collection[str]) -> None:
    """The rerun is the published run of tonight with the results of an undisturbed one.

    After upkeep nothing is left of others.

    `ended` are the statuses of the other runs of tonight. A run that was `resumed` agrees to many digits, any other to
    the last bit.
    """
    states = {row["run_id"]: (str(row["scored_on"]), row["status"]) for row in rows(root, "runs")}
    dead = states.keys() - {nights.last_run, run_id}
    assert states.pop(nights.last_run) == (DAY.isoformat(), "published")
    assert states.pop(run_id) == (TONIGHT.isoformat(), "published")
    assert list(states.values()) == [(TONIGHT.isoformat(), status) for status in ended]
    found = results(root, run_id)
    for name, expected in nights.expected.items():
        assert found[name].keys() == expected.keys()
        for key, value in expected.items():
            if resumed and value is not None:
                assert found[name][key] == pytest.approx(value, abs=1e-6), (name, key)
            else:
                assert found[name][key] == value, (name, key)
    apply_retention(Warehouse(SparkSession.active(), str(root)), RetentionConfig(), TONIGHT)
    for name in NUMBERS:
        assert Counter(row["run_id"] for row in rows(root, name)).keys() == {nights.last_run, run_id}
        assert {row["run_id"] for row in rows(root, f"latest_{name}")} == {run_id}
    scales = {row["run_id"] for row in rows(root, "run_scales")}
    assert scales - dead == {nights.last_run, run_id}
    assert np.isfinite([value for value in found["abilities"].values() if value is not None]).all()
