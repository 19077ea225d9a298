"""Putting the dates of a history on one reference scale.

A fit's scale is known up to a line: abilities theta and A theta + B tell the same. The models of an earlier date are
among those of the reference date, mostly with the very same answers, so A and B are those that give the models of both
the mean and the spread that they have at the reference date (mean/sigma over common models). Items would do as well in
principle; the first dates of a leaderboard have too few models to know an item by (docs/decisions/0046).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cbmm_spark.kernels.model import F64, Gauge
from cbmm_spark.kernels.stage import Index

LEAST_ANCHORS = 3
"""Common models below which a spread says nothing."""


@dataclass(frozen=True)
class Link:
    """The line from a standardised scale to the reference scale: slope A > 0 and intercept B.

    `n_anchors` is the number of items it rests on, None where it does not rest on items.
    """

    slope: float
    intercept: float
    n_anchors: int | None = None

    def after(self, gauge: Gauge) -> Gauge:
        """Return the gauge that leads where `gauge` and then this line lead."""
        shift = -self.intercept / self.slope
        return Gauge(gauge.shift + gauge.stretch * shift, gauge.stretch / self.slope)


@dataclass(frozen=True)
class Standing:
    """Standardised abilities of one scale at one date.

    Attributes
    ----------
    name
        Of the fit.
    models, ability
        Positions and abilities of the models that can be linked by (status ``ok``), shape (N,).
    """

    name: str
    models: Index
    ability: F64


Links = dict[tuple[str, str], Link]
"""By scale and name of the fit: two scales may show one fit at a date and different ones at another."""

Linker = Callable[[Mapping[str, Sequence[Standing]]], Links]
"""What links a history: from the standings of every scale, oldest first, to links.

The newest standing of a scale is the reference and needs no link; a standing that cannot be linked has none either.
"""


def link_by_models(standings: Mapping[str, Sequence[Standing]]) -> Links:
    """Link every scale's dates to its newest one by the models they share: a `Linker`."""
    links = {}
    for scale, dates in standings.items():
        reference = dates[-1]
        for standing in dates[:-1]:
            link = None if standing.name == reference.name else _line(standing, reference)
            if link is not None:
                links[scale, standing.name] = link
    return links


def _line(standing: Standing, reference: Standing) -> Link | None:
    """Return the line that gives common models the reference's mean and spread; None where that says nothing."""
    _, own, other = np.intersect1d(standing.models, reference.models, assume_unique=True, return_indices=True)
    here, there = standing.ability[own], reference.ability[other]
    if here.size < LEAST_ANCHORS or here.std() <= 0.0 or there.std() <= 0.0:
        return None
    slope = float(there.std() / here.std())
    return Link(slope, float(there.mean() - slope * here.mean()))
