"""Which fits a history needs: scales of every date, and one fit where nothing changed between two of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cbmm_spark.config.schema import ScalesConfig
from cbmm_spark.fit.scales import Scales, choose_scales


@dataclass(frozen=True)
class Planned:
    """One date of a history: its number, its scales, and the name of the fit that each fitted scale shows."""

    number: int
    date: dt.date
    scales: Scales
    source: dict[str, str]


@dataclass(frozen=True)
class DatePlan:
    """All dates that can be fitted, oldest first, and the fits: benchmarks and number of the first date by name."""

    dates: list[Planned]
    fits: dict[str, tuple[frozenset[str], int]]


def plan_fits(dates: Sequence[dt.date], changes: Mapping[str, NDArray[np.int32]], config: ScalesConfig) -> DatePlan:
    """Choose the scales of every date, and one fit for dates between which nothing of a scale changed.

    Parameters
    ----------
    dates
        Oldest first.
    changes
        By benchmark the numbers of the dates that brought cells, increasing.
    config
        Which benchmarks share a scale. A group is made of those of its benchmarks that have responses at a date.

    Raises
    ------
    ConfigError
        As `choose_scales` for all benchmarks.
    """
    choose_scales(config, sorted(changes))
    planned: list[Planned] = []
    fits: dict[str, tuple[frozenset[str], int]] = {}
    names: dict[tuple[frozenset[str], int], str] = {}
    for number, date in enumerate(dates):
        present = sorted(name for name, steps in changes.items() if steps[0] <= number)
        if not present:
            continue
        groups = {group: tuple(b for b in listed if b in present) for group, listed in config.groups.items()}
        there = {group: listed for group, listed in groups.items() if listed}
        if not (config.overall or config.per_benchmark or there):
            continue
        scales = choose_scales(replace(config, groups=there), present)
        source = {}
        for scale, benchmarks in scales.to_fit.items():
            changed = max(int(s[s <= number][-1]) for s in (changes[b] for b in benchmarks))
            name = names.setdefault((benchmarks, changed), f"{date} {scale}")
            fits.setdefault(name, (benchmarks, number))
            source[scale] = name
        planned.append(Planned(number, date, scales, source))
    return DatePlan(planned, fits)
