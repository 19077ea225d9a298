"""The table `runs`: which run belongs to which day, and which one readers see."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.tables.ddl import literal

LATEST = {"latest_abilities": "abilities", "latest_item_parameters": "item_parameters"}
"""Each table of the last published run, and where its rows come from."""

RUN_TABLES = ("run_scales", "run_iterations", "run_abilities")
"""What belongs to a run without being a result of its day."""


@dataclass(frozen=True)
class RunKey:
    """Which run rows belong to."""

    run_id: str
    scored_on: dt.date

    def onto(self, df: DataFrame) -> DataFrame:
        """Add the key's columns to a frame."""
        return df.withColumn("run_id", F.lit(self.run_id)).withColumn("scored_on", F.lit(self.scored_on))


class Run(NamedTuple):
    """A row of `runs`, as far as publishing needs it; its times have a time zone."""

    run_id: str
    scored_on: dt.date
    status: str
    started_at: dt.datetime
    heartbeat_at: dt.datetime | None = None
    owner: str | None = None
    responses_version: int | None = None
    config_hash: str | None = None
    sigma: float | None = None

    @property
    def seen_at(self) -> dt.datetime:
        """The last sign of life."""
        return self.heartbeat_at or self.started_at


_RUN_COLUMNS = (*Run._fields[:-1], "CAST(get_json_object(config, '$.solver.sigma') AS DOUBLE) AS sigma")
_SCALE_COLUMNS = (
    "run_id", "scale", "n_models", "n_items", "n_responses", "link_slope", "reference_run_id", "items_from_run_id",
)  # fmt: skip


def all_runs(warehouse: Warehouse) -> list[Run]:
    """Return all runs as they are now; read again only where `runs` has a new version."""
    return [_run(row) for row in warehouse.rows("runs", *_RUN_COLUMNS).to_pylist()]


def runs_of(warehouse: Warehouse, days: Iterable[dt.date]) -> list[Run]:
    """Return all runs of some days."""
    wanted = set(days)
    return [run for run in all_runs(warehouse) if run.scored_on in wanted]


def scales_of(warehouse: Warehouse, run_ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of `run_scales` of some runs, as far as other runs look at them."""
    table = warehouse.rows("run_scales", *_SCALE_COLUMNS)
    return table.filter(pc.is_in(table["run_id"], pa.array(sorted(set(run_ids)), pa.string()))).to_pylist()


def published_days(warehouse: Warehouse) -> set[dt.date]:
    """Return the days that have a published run; none where there are no runs."""
    if not warehouse.exists("runs"):
        return set()
    return {run.scored_on for run in all_runs(warehouse) if run.status == "published"}


def last_published(warehouse: Warehouse, before: dt.date | None = None) -> Run | None:
    """The published run of the greatest day (earlier than `before`), then of the latest start; None without one."""
    runs = [run for run in all_runs(warehouse) if run.status == "published"]
    earlier = [run for run in runs if before is None or run.scored_on < before]
    return max(earlier, key=lambda run: (run.scored_on, run.started_at, run.run_id), default=None)


def published(warehouse: Warehouse, name: str) -> DataFrame:
    """The rows of a table that belong to published runs: what a reader is meant to see.

    Parameters
    ----------
    warehouse
        Where.
    name
        A table with a run_id.

    Raises
    ------
    InputError
        A table is missing.
    """
    keys: list[str] = [key for key in ("run_id", "scored_on") if key in SPECS[name].column_names]
    runs = warehouse.read("runs").where("status = 'published'").select(*keys)
    return warehouse.read(name).join(F.broadcast(runs), keys, "left_semi").select(*SPECS[name].column_names)


def published_abilities(warehouse: Warehouse) -> DataFrame:
    """`abilities` of published runs: one complete night for every published day."""
    return published(warehouse, "abilities")


def is_of_days(days: Iterable[dt.date]) -> str:
    """SQL: the row is of one of some days. Alone it chooses whole partitions of the results."""
    listed = sorted(set(days))
    if len(listed) == 1:
        return f"scored_on = DATE'{listed[0].isoformat()}'"
    dates = ", ".join(f"DATE'{day.isoformat()}'" for day in listed)
    return f"scored_on IN ({dates})"


def is_of_runs(run_ids: Iterable[str]) -> str:
    """SQL: the row is of one of some runs."""
    listed = sorted(set(run_ids))
    if len(listed) == 1:
        return f"run_id = {literal(listed[0])}"
    return f"run_id IN ({', '.join(literal(run_id) for run_id in listed)})"


def is_of_keys(keys: Sequence[RunKey]) -> str:
    """SQL: the row is of one of some runs and of that run's own day."""
    where = f"{is_of_days(key.scored_on for key in keys)} AND {is_of_runs(key.run_id for key in keys)}"
    if len(keys) == 1:
        return where
    pairs = (f"({is_of_days([key.scored_on])} AND {is_of_runs([key.run_id])})" for key in keys)
    return f"{where} AND ({' OR '.join(pairs)})"


def check_keys(keys: Sequence[RunKey]) -> None:
    """See that runs handled together are of different days, as a day has one published run.

    Raises
    ------
    ValueError
        They are not, or there are none.
    """
    if not keys:
        raise ValueError("no run is given")
    if len({key.scored_on for key in keys}) < len(keys) or len({key.run_id for key in keys}) < len(keys):
        raise ValueError("runs handled together need identifiers and days of their own")


def _run(values: dict[str, object]) -> Run:
    aware = {k: v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v for k, v in values.items()}
    return Run(**aware)  # type: ignore[arg-type]
