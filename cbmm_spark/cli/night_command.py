"""The command `nightly`: a night, its summary, and its figures for Prometheus whatever it ended with."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from cbmm_spark.cli import prometheus as metrics
from cbmm_spark.config.schema import Config
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import CbmmError

if TYPE_CHECKING:
    from cbmm_spark.night.night import NightReport
    from cbmm_spark.rescoring.job import RescoreReport
    from cbmm_spark.tables import Warehouse

_INTERRUPTED = 130


class Figures:
    """Writes the figures of a night when it ends, also where it ends in an error or was stopped by Ctrl-C.

    Parameters
    ----------
    file
        `nightly.metrics_file`; nothing is written where it is empty or None.

    Raises
    ------
    ConfigError
        At the start: the file's folder cannot be written to.
    """

    def __init__(self, file: str | None) -> None:
        self._path = Path(file) if file else None
        self.report: NightReport | None = None
        if self._path is not None:
            metrics.check_place(self._path)

    def __enter__(self) -> Figures:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _t: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        figures = metrics.night_metrics(
            self.report, _code(error), round(time.time(), 3), metrics.last_success(self._path)
        )
        metrics.write(self._path, metrics.render(figures))


def _code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return error.exit_code if isinstance(error, CbmmError) else 1


def run_night(
    warehouse: Warehouse,
    config: Config,
    as_of: dt.date | None,
    steps: Collection[str],
    progress: Progress,
    show: Callable[[RescoreReport], None],
    figures: Figures,
    dry_run: bool,
) -> None:
    """Do a night, or say what it would do, and tell its summary; what it ended with is raised after that.

    Raises
    ------
    CbmmError
        The night failed as a night may.
    Exception
        It failed in a way that was not foreseen.
    """
    from cbmm_spark.night.night import Night, as_event, as_text

    night = Night(warehouse.spark, warehouse, config, as_of, steps, progress, show)
    figures.report = night.report
    report = night.plan() if dry_run else night.run()
    progress.result("night", lambda: as_text(report), **as_event(report))
    if report.error is not None:
        raise report.error
