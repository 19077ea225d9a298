"""Where a fit begins: at the abilities of an earlier run, where there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cbmm_spark.checkpoint import saved_abilities
from cbmm_spark.kernels.model import F64
from cbmm_spark.runs import last_published
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
