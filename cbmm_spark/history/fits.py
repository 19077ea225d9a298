"""What the fits of a history are made from, and what becomes of them date by date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.console.listener import Listener
from cbmm_spark.fit.fit_scales import not_converged
from cbmm_spark.history.plan import DatePlan
from cbmm_spark.history.states import States, history_tiles, moments_of
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.dated_columns import Moment
from cbmm_spark.results.results import RunFits
from cbmm_spark.runs.table import RunKey

Ended = tuple[Literal["failed", "not_converged", "gate"], str]
"""How a run ended that is not published, and why; a gate that failed is the status ``failed`` in `runs`."""


@dataclass(frozen=True)
class History:
    """What the fits of a history are made from."""

    responses: DataFrame
    version: int
    stepped: DataFrame
    steps: DataFrame
    states: States
    plan: DatePlan
    keys: list[RunKey]

    def moments(self) -> dict[str, Moment]:
        """Return the date at which each fit sees the blocks, by name."""
        found = moments_of(self.states, {number for _, number in self.plan.fits.values()})
        return {name: found[number] for name, (_, number) in self.plan.fits.items()}

    def tiles(self, pack: PackConfig) -> DataFrame:
        """Return the tiles of all states, cached: they are read twice."""
        found = history_tiles(self.responses, self.steps, self.states, pack, self.version)
        return found.persist(StorageLevel.MEMORY_AND_DISK)

    def evaluations(self) -> DataFrame:
        """Return who was evaluated on what, by step."""
        return self.stepped.select(
            "benchmark", "model_index", "model_id", "step", "first_evaluated_at", "last_evaluated_at"
        )

    def voices(self) -> dict[str, tuple[str, str]]:
        """Return by fit the first run and scale that show it."""
        found: dict[str, tuple[str, str]] = {}
        for planned, key in zip(self.plan.dates, self.keys, strict=True):
            for scale, name in planned.source.items():
                found.setdefault(name, (key.run_id, scale))
        return found

    def runs(
        self, fits: Mapping[str, ScaleFit], refused: Mapping[str, str], iterations: int
    ) -> tuple[list[RunFits], dict[str, Ended]]:
        """Return the runs of all dates that were fitted, and by run how those ended that are not to publish."""
        runs: list[RunFits] = []
        failed: dict[str, Ended] = {}
        for planned, key in zip(self.plan.dates, self.keys, strict=True):
            why = [refused[name] for name in planned.source.values() if name in refused]
            if why:
                failed[key.run_id] = ("failed", why[0])
                continue
            own = {scale: fits[name] for scale, name in planned.source.items()}
            runs.append(RunFits(key, planned.scales, own, date=planned.number))
            unconverged = [scale for scale, fit in own.items() if not fit.converged]
            if unconverged:
                failed[key.run_id] = ("not_converged", not_converged(own, unconverged, iterations))
        return runs, failed


@dataclass(frozen=True)
class Voice:
    """Tells of a fit's iterations under the run and scale that show it first."""

    listener: Listener
    shown: Mapping[str, tuple[str, str]]

    def iteration(
        self,
        run_id: str,
        scale: str,
        iteration: int,
        objective: float,
        max_ability_change: float | None,
        seconds: float,
    ) -> None:
        """See `Listener`."""
        run_id, name = self.shown[scale]
        self.listener.iteration(run_id, name, iteration, objective, max_ability_change, seconds)

    def event(self, name: str, **fields: Any) -> None:
        """See `Listener`."""
        self.listener.event(name, **fields)
