"""Gates and retention on tables."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame

from cbmm_spark.config.schema import RetentionConfig
from cbmm_spark.runs import publish as publishing
from cbmm_spark.runs.claims import start_runs
from cbmm_spark.runs.gates import Movement, compare_runs
from cbmm_spark.runs.publish import finish_runs, publish_runs, published_abilities, write_all_results
from cbmm_spark.runs.table import RunKey
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.upkeep.retention import apply_retention
from tests.spark.helpers import as_others_read
from tests.spark.table_samples import DAY, frame, full_row

FEW = RetentionConfig(keep_nights=2, keep_monthly=0, keep_saved_nights=1, keep_failed_days=5)


def keys_of(*run_ids: str) -> list[RunKey]:
    """One run a day, up to DAY."""
    return [RunKey(run_id, DAY - dt.timedelta(days=len(run_ids) - 1 - i)) for i, run_id in enumerate(run_ids)]


def write(warehouse: Warehouse, name: str, keys: list[RunKey], rows: list[dict[str, Any]]) -> None:
    df: DataFrame = frame(warehouse.spark, name, *rows)
    write_all_results(warehouse, name, df, keys)


def test_a_comparison_of_two_nights(warehouse: Warehouse) -> None:
    earlier, tonight = keys = keys_of("before", "now")
    rng = np.random.default_rng(3)
    start = rng.standard_normal(40)
    moved = 1.3 * start + 0.5
    moved[7] += 4.0
    scales = {
        "standardised anew": (start, 2.0 * start - 1.0),  # the same ranking on another scale
        "one moved": (start, moved),
        "linked": (start, start + 1.0),  # the whole scale slipped
    }
    abilities, facts = [], []
    for scale, nights in scales.items():
        link = 1.0 if scale == "linked" else None
        for key, values in zip(keys, nights, strict=True):
            common = {"run_id": key.run_id, "scored_on": key.scored_on, "scale": scale, "ability_se": 0.2}
            common |= {"ability_lower": None, "ability_upper": None, "n_items": 10, "coverage": 0.5}
            abilities += [
                full_row("abilities", model_id=f"m{i}", ability=float(x), **common) for i, x in enumerate(values)
            ]
            size = {"n_models": 40, "n_items": 10, "n_responses": 400, "link_slope": link, "flag_reasons": None}
            facts.append(full_row("run_scales", run_id=key.run_id, scale=scale, **size))
    odd = {"run_id": tonight.run_id, "scored_on": tonight.scored_on, "scale": "one moved", "ability_lower": None}
    abilities += [
        full_row("abilities", model_id="new", ability=9.0, coverage=0.5, **odd),
        full_row("abilities", model_id="unread", ability=None, coverage=0.5, **odd),
        full_row("abilities", model_id="silent", ability=None, status="no_responses", n_items=0, coverage=0.0, **odd),
    ]
    start_runs(warehouse, keys, "{}", 1)
    write(warehouse, "abilities", keys, abilities)
    item = full_row("item_parameters", run_id="before", scored_on=earlier.scored_on)
    write(warehouse, "item_parameters", [earlier], [item])
    write(warehouse, "run_scales", keys, facts)
    assert compare_runs(warehouse, tonight, 3.0).earlier_run is None
    publish_runs(warehouse, [earlier])
    found = compare_runs(warehouse, tonight, 3.0)
    assert found.earlier_run is not None
    assert found.earlier_run.run_id == "before"
    stretch = moved.std() / start.std()
    distance = np.abs(moved - (moved.mean() + stretch * (start - start.mean())))
    assert found.movements == {
        "standardised anew": Movement(40, 0, False),
        "one moved": Movement(40, int((distance > 3.0 * 0.2 * max(stretch, 1.0)).sum()), False),
        "linked": Movement(40, 40, True),
    }
    assert found.movements["one moved"].moved == 1
    assert found.tonight["one moved"].unread == 1
    assert found.tonight["one moved"].coverage == pytest.approx(0.5)
    assert found.earlier["one moved"].unread == 0


class Killed(BaseException):
    """Stands for the end of the process."""


def stored(warehouse: Warehouse, name: str) -> set[str]:
    return {row["run_id"] for row in as_others_read(warehouse, name, "run_id")}


def test_retention_survives_a_kill_and_shows_nothing_half(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of("one", "two", "three", "four")
    old = [RunKey("failed", DAY - dt.timedelta(days=20))]
    start_runs(warehouse, [*keys, *old], "{}", 1, dt.datetime.combine(old[0].scored_on, dt.time(), dt.UTC))
    for name in ("abilities", "item_parameters"):
        write(warehouse, name, keys, [full_row(name, run_id=k.run_id, scored_on=k.scored_on) for k in keys])
    for name in ("run_scales", "run_iterations", "run_abilities"):
        write(warehouse, name, [*keys, *old], [full_row(name, run_id=k.run_id) for k in [*keys, *old]])
    publish_runs(warehouse, keys)
    finish_runs(warehouse, ["failed"], "failed", "for the test")
    warehouse.spark.sql(f"UPDATE {warehouse.sql_name('runs')} SET heartbeat_at = started_at")
    scales = warehouse.sql_name("run_scales")
    if "reference_run_id" not in SPECS["run_scales"].column_names:
        warehouse.spark.sql(f"ALTER TABLE {scales} ADD COLUMNS (reference_run_id string)")
    warehouse.spark.sql(f"UPDATE {scales} SET reference_run_id = CASE WHEN run_id = 'four' THEN 'one' END")

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_delete", die)
        with pytest.raises(Killed):
            apply_retention(warehouse, FEW, DAY)
    kept = {"one", "three", "four"}  # the first is what the last is linked to
    assert {row["run_id"] for row in published_abilities(warehouse).collect()} == kept
    assert stored(warehouse, "runs") == kept
    assert stored(warehouse, "abilities") == {"one", "two", "three", "four"}
    report = apply_retention(warehouse, FEW, DAY)
    assert (report.kept_nights, report.pinned) == (3, ("one",))
    assert report.orphans == ("failed", "two")
    assert report.freed_saved == ("one", "three")
    for name in ("abilities", "item_parameters", "run_scales", "run_iterations"):
        assert stored(warehouse, name) == kept, name
    assert stored(warehouse, "run_abilities") == {"four"}
    assert stored(warehouse, "latest_abilities") == stored(warehouse, "latest_item_parameters") == {"four"}
    versions = {name: warehouse.version(name) for name in ("runs", "abilities", "run_abilities")}
    again = apply_retention(warehouse, FEW, DAY)
    assert (again.removed_nights, again.removed_failed, again.orphans, again.freed_saved) == ((), (), (), ())
    assert {name: warehouse.version(name) for name in versions} == versions
