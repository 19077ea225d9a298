"""What a reader of a scale should know before trusting its ranking."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cbmm_spark.config.schema import RescoreConfig
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.statistics import ability_errors, chance_of_scores

ALIKE = 0.01
"""Chance of scores so different from models all alike, above which a scale is said to hold no sign of ability."""


class ScaleFlag(NamedTuple):
    """One reason: its name in `run_scales.flag_reasons`, and the sentence a person reads."""

    reason: str
    sentence: str


COLLAPSED = 0.1
"""Spread of abilities, in standard errors, below which a scale tells no model from another."""


def _collapsed(fit: ScaleFit) -> bool:
    error = np.median(ability_errors(fit.information, fit.ridge.ability))
    return float(fit.theta.std()) < COLLAPSED * float(error)


def scale_flags(name: str, fit: ScaleFit, config: RescoreConfig) -> list[ScaleFlag]:
    """Return why a fitted scale should be read with care; nothing for an ordinary one.

    Parameters
    ----------
    name
        The scale as it is published.
    fit
        Its fit.
    config
        Thresholds.
    """
    scale, counts, found = f"scale {name!r}", fit.counts, []
    if counts.n_items < config.min_items:
        found.append(
            ScaleFlag(
                "few_items",
                f"{scale} has {counts.n_items} items, fewer than rescore.min_items = {config.min_items}: joint "
                "estimation is ill-posed there; read its abilities as a smoothed accuracy, or use marginal maximum "
                "likelihood (docs/method.md)",
            )
        )
    if fit.models.size < 2:
        found.append(
            ScaleFlag("single_model", f"{scale} has a single model: its ability has nothing to be compared with")
        )
    elif _collapsed(fit) or chance_of_scores(counts.successes, counts.expected, counts.variance) > ALIKE:
        found.append(
            ScaleFlag(
                "no_signal",
                f"{scale}: neither the abilities of its models nor the discriminations of its items are "
                "distinguishable: scores differ no more than by chance, or the penalty outweighs them",
            )
        )
    if fit.models_at_bound or fit.items_at_bound:
        found.append(
            ScaleFlag(
                "at_bound",
                f"{scale} has {fit.models_at_bound} models and {fit.items_at_bound} items whose estimates without a "
                "penalty are infinite: they stand at a bound; set the lambdas of [solver] above 0",
            )
        )
    groups = int(fit.components.max())
    if groups > 1:
        found.append(
            ScaleFlag(
                "disconnected",
                f"{scale} falls into {groups} groups of models that share no item: ranks hold within a group (column "
                "component), abilities of different groups cannot be compared",
            )
        )
    return found
