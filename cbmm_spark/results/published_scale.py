"""From the scale of a fit to the one that is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.model import F64, Gauge, standard_gauge
from cbmm_spark.kernels.statistics import ability_errors


@dataclass(frozen=True)
class Published:
    """A fit on its published scale.

    Attributes
    ----------
    gauge
        From the fit's scale to the published one.
    ability, error
        On the published scale, shape (N,).
    status
        Of every model, shape (N,).
    """

    gauge: Gauge
    ability: F64
    error: F64
    status: NDArray[np.str_]


@dataclass(frozen=True)
class ScaleLink:
    """How a fit becomes a published scale, and what that rests on.

    Attributes
    ----------
    gauge
        From the fit's scale to the published one.
    slope, intercept
        A and B in ability = A z + B, z standardised over the run's own models of status ok.
    reference_run_id
        Run that defines the scale; None where linking is off.
    link_run_id
        Run whose items or models the link rests on; None where there is no link.
    n_anchors, n_drifted
        Numbers of items; None where the link rests on no items.
    drifted
        The drifted items' numbers, by benchmark.
    n_anchor_models
        Number of models where the link rests on models (`history.link`), not on items.
    items_from_run_id
        Run whose item parameters were kept fixed; None where they were fitted.
    """

    gauge: Gauge
    slope: float | None = None
    intercept: float | None = None
    reference_run_id: str | None = None
    link_run_id: str | None = None
    n_anchors: int | None = None
    n_drifted: int | None = None
    drifted: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    items_from_run_id: str | None = None
    n_anchor_models: int | None = None


def model_statuses(fit: ScaleFit, config: RescoreConfig) -> NDArray[np.str_]:
    """Return whether each model's ability can be read as it stands, shape (N,)."""
    counts = fit.counts
    status = np.full(fit.theta.size, "ok", dtype="<U12")
    status[counts.items < config.few_items] = "few_items"
    status[counts.successes <= 0.0] = "all_wrong"
    status[counts.successes >= counts.attempts] = "all_correct"
    return status


def ordinary_abilities(fit: ScaleFit, config: RescoreConfig) -> F64:
    """Return the abilities of the models of status ok, on the fit's scale; of all where fewer than two are."""
    ordinary = fit.theta[model_statuses(fit, config) == "ok"]
    return ordinary if ordinary.size > 1 else fit.theta


def on_published_scale(fit: ScaleFit, config: RescoreConfig, gauge: Gauge | None = None) -> Published:
    """Put a fit on its published scale.

    Parameters
    ----------
    fit
        The fit.
    config
        Thresholds of the statuses.
    gauge
        From the fit's scale to the published one. Without it the fit is standardised: mean 0, sd 1 over models of
        status ``ok``; over all where fewer than two are.
    """
    if gauge is None:
        gauge = standard_gauge(ordinary_abilities(fit, config))
    error = ability_errors(fit.information, fit.ridge.ability) / gauge.stretch
    return Published(gauge, gauge.abilities(fit.theta), error, model_statuses(fit, config))
