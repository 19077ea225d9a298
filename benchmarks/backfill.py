"""A real history, 108 dates of SWE-bench Verified, against one fit of its last date: time, agreement, who led when."""

from __future__ import annotations

import datetime as dt
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from benchmarks.common import SHARED_DATA, report
from benchmarks.spark_common import session
from cbmm_spark.config.schema import Config
from cbmm_spark.console.progress import Progress
from cbmm_spark.history.job import BackfillReport, Request, backfill
from cbmm_spark.ingest.job import ingest
from cbmm_spark.rescoring.job import RescoreReport, rescore
from cbmm_spark.runs.publish import published_abilities
from cbmm_spark.tables import Warehouse

DATA = "CBMM_HISTORY"
"""Environment variable with the path of another history: Parquet with model, item, correct and date."""

FITS = 3
"""Single fits that are timed; the shortest counts."""

SHOWN_DATES, SHOWN_MODELS = 12, 8


def run() -> None:
    """Print and write the figures."""
    path = history_file()
    if path is None:
        return
    quiet = Progress("json", io.StringIO())
    with session(memory="4g") as spark, tempfile.TemporaryDirectory(prefix="cbmm-history-") as folder:
        warehouse = Warehouse(spark, str(Path(folder) / "warehouse"))
        ingest(spark, warehouse, Config(), str(path))
        last = warehouse.read("responses").agg(F.max("evaluated_at")).collect()[0][0].date()
        single = [_timed(lambda: rescore(spark, warehouse, Config(), last, quiet)) for _ in range(FITS)]
        fit_seconds, one = min(single, key=lambda pair: pair[0])
        request = Request(every="change", replace=True)
        seconds, many = _timed(lambda: backfill(spark, warehouse, Config(), request, quiet))
        abilities = published_abilities(warehouse).where("scale = 'overall'").toPandas()
    rows = [_row("one date", 1, fit_seconds, one), _row("history", len(many.published), seconds, many)]
    notes = {
        "ratio": seconds / fit_seconds,
        "ratio of the fits alone": many.seconds["fit"] / one.seconds["fit"],
        "dates": len(many.published),
        "iterations of one fit, most of a date": f"{one.scales['overall']['iterations']}, {many.iterations}",
        "warnings": str(dict(many.flags)),
        **_drift(abilities, last),
    }
    report("backfill", "a history of 108 dates in the same passes, against one fit", rows, notes)
    _print_history(abilities)


def history_file() -> Path | None:
    """Return the history to measure on; None, and a word about it, where there is none."""
    path = Path(os.environ.get(DATA, SHARED_DATA / "swebench_verified_history.parquet"))
    if path.exists():
        return path
    print(f"left out: {path.name} is not in ../shared/data (or set {DATA})")
    return None


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _row(name: str, dates: int, seconds: float, done: RescoreReport | BackfillReport) -> dict[str, Any]:
    return {"what": name, "dates": dates, "seconds": seconds} | {f"{k} s": v for k, v in done.seconds.items()}


def _drift(abilities: pd.DataFrame, last: dt.date) -> dict[str, float]:
    """How far the ability of a model, whose answers never change, is at earlier dates from what it is at the last."""
    wide = abilities.pivot(index="scored_on", columns="model_id", values="ability")
    errors = abilities[abilities.scored_on == last].set_index("model_id").ability_se
    away = wide - wide.loc[last]
    off = away / errors.reindex(wide.columns)
    return {
        "unchanged models, median distance from the last date in SE": float(np.nanmedian(off.abs())),
        "unchanged models, rms distance from the last date, ability": float(np.sqrt(np.nanmean(away**2))),
    }


def _print_history(abilities: pd.DataFrame) -> None:
    """Print the ability of the systems that led at some date, over time."""
    wide = abilities.pivot(index="model_id", columns="scored_on", values="ability")
    dates = wide.columns[np.unique(np.linspace(0, wide.shape[1] - 1, SHOWN_DATES).round().astype(int))]
    leaders = list(dict.fromkeys(wide[date].idxmax() for date in dates))
    best = list(wide[dates[-1]].nlargest(SHOWN_MODELS).index)
    shown = wide.loc[list(dict.fromkeys([*leaders, *best])), dates]
    print("\nability on the scale of the last date: who led at one of these dates, and the best at the last")
    print(shown.round(2).astype(object).where(shown.notna(), "").to_string())
