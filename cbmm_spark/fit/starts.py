"""Where a fit begins: at the abilities of a run of the same day that died, or at those of an earlier day."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cbmm_spark.config.schema import Config
from cbmm_spark.fit.checkpoint import saved_abilities
from cbmm_spark.kernels.model import F64
from cbmm_spark.runs.table import RunKey, last_published, runs_of
from cbmm_spark.tables import Warehouse


def earlier_abilities(
    warehouse: Warehouse, before: dt.date, scales: Iterable[str], n_models: int, tell: Callable[..., Any]
) -> dict[str, F64]:
    """Return the abilities that the last published run of an earlier day ended with.

    Runs of the same day are never asked: a night that is run again begins where it began the first time.

    Parameters
    ----------
    warehouse
        Where the runs are.
    before
        The day that is scored.
    scales
        Scales that will be fitted.
    n_models
        Number of models M.
    tell
        Told of the event ``warm_start``: the run, and how many models of which scale have an ability there.

    Returns
    -------
    dict
        By scale, abilities of shape (M,) in the gauge of a fit, NaN for models the run did not have. Scales it did not
        have are missing.
    """
    run = last_published(warehouse, before)
    if run is None:
        return {}
    saved = saved_abilities(warehouse, run.run_id)
    found = {}
    for scale in scales:
        if scale not in saved:
            tell("warm_start", scale=scale, from_run=run.run_id, models=0)
            continue
        _, numbers, theta = saved[scale]
        known = numbers <= n_models  # a run of other tables is no reason to fail
        found[scale] = np.full(n_models, np.nan)
        found[scale][numbers[known] - 1] = theta[known]
        tell("warm_start", scale=scale, from_run=run.run_id, models=int(known.sum()))
    return found


def config_hash(config: Config) -> str:
    """Return a hash of all configuration that decides abilities: `[scales]` and `[solver]`."""
    parts = {name: dataclasses.asdict(getattr(config, name)) for name in ("scales", "solver")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def resumed_abilities(
    warehouse: Warehouse,
    key: RunKey,
    responses_version: int,
    hashed: str,
    scales: Iterable[str],
    n_models: int,
    tell: Callable[..., Any],
) -> dict[str, F64]:
    """Return the abilities that the last dead run of the day had reached.

    Only runs that read the same version of `responses` under the same `config_hash`, and started after the day's
    published run if it has one, are asked, the latest first. What
    they reached is a start and nothing more: the fit ends at the same optimum from anywhere, only sooner from here.

    Parameters
    ----------
    warehouse
        Where the runs are; `start_runs` has marked dead ones failed.
    key
        The run that begins.
    responses_version, hashed
        What it reads, and its `config_hash`.
    scales
        Scales that will be fitted.
    n_models
        Number of models M.
    tell
        Told of the event ``resumed``: scale, run and iteration.

    Returns
    -------
    dict
        By scale, abilities of shape (M,) in the gauge of the fit, NaN for models without. Scales of which nothing was
        saved are missing.
    """
    runs = runs_of(warehouse, [key.scored_on])
    same = [run for run in runs if (run.responses_version, run.config_hash) == (responses_version, hashed)]
    # What died before the day was published is over: the day begins where it began for the run that published it.
    done = max((run.started_at for run in runs if run.status == "published"), default=None)
    dead = [run for run in same if run.status == "failed" and (done is None or run.started_at > done)]
    for run_id in (run.run_id for run in sorted(dead, key=lambda run: (run.started_at, run.run_id), reverse=True)):
        found = {}
        saved = {} if run_id == key.run_id else saved_abilities(warehouse, run_id)
        for scale in (name for name in scales if name in saved):
            iteration, numbers, theta = saved[scale]
            if numbers.max(initial=0) > n_models or not np.isfinite(theta).all():
                continue
            found[scale] = np.full(n_models, np.nan)
            found[scale][numbers - 1] = theta
            tell("resumed", scale=scale, from_run=run_id, iteration=iteration, models=int(numbers.size))
        if found:
            return found
    return {}
