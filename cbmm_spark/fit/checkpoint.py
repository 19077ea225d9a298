"""Saving abilities after each iteration, beside the fit and not in its way."""

from __future__ import annotations

import contextvars
import logging
import threading
import time

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.kernels.model import F64, Index
from cbmm_spark.spark.scoped import describe_jobs
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.tables.warehouse import first_line

_logger = logging.getLogger(__name__)

REST = 9.0
"""A pause after each commit, in times the commit took: commits compete with the fit for cores."""

Saved = tuple[str, int, bytes, bytes]
_SAVED = ("iteration", "model_indices", "abilities")


class AbilitySaver:
    """Appends the abilities of running scales to `run_abilities` from a thread of its own.

    While one commit is under way newer abilities of a scale replace those still waiting: what is saved is always a
    complete iteration, and a fit whose iterations are shorter than a commit is not slowed down to the pace of commits.
    After a commit the thread rests `REST` times as long as it took: saving takes a tenth of the fit's time at most.

    Parameters
    ----------
    warehouse
        Where.
    run_id
        The run.
    """

    def __init__(self, warehouse: Warehouse, run_id: str) -> None:
        self._warehouse, self._run_id = warehouse, run_id
        self._waiting: dict[str, Saved] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.saved = 0
        self.error: Exception | None = None
        context = contextvars.copy_context()  # commits of the thread say which command they belong to
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="save abilities", daemon=True)
        self._thread.start()

    def put(self, scale: str, iteration: int, models: Index, theta: F64) -> None:
        """Hand over the abilities reached; returns at once."""
        row = (scale, iteration, (models + 1).astype("<i4").tobytes(), theta.astype("<f8").tobytes())
        with self._changed:
            self._waiting[scale] = row
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        describe_jobs(self._warehouse.spark, f"cbmm-spark {self._run_id}: save abilities")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                rows, self._waiting = list(self._waiting.values()), {}
            if not rows:
                return
            began = time.monotonic()
            try:
                self._write(rows)
                self.saved += len(rows)
            except Exception as error:  # a fit is worth more than its safety copy: said once, never in the way
                if self.error is None:
                    _logger.warning("abilities of run %s could not be saved: %s", self._run_id, first_line(error))
                self.error = error
            with self._changed:
                self._changed.wait_for(lambda: self._closed, REST * (time.monotonic() - began))

    def _write(self, rows: list[Saved]) -> None:
        spark: SparkSession = self._warehouse.spark
        frame = spark.createDataFrame([(self._run_id, *row) for row in rows], SPECS["run_abilities"].schema)
        self._warehouse.append(frame.coalesce(1), "run_abilities", {"run_id": self._run_id, "step": "iteration"})


def saved_abilities(warehouse: Warehouse, run_id: str) -> dict[str, tuple[int, Index, F64]]:
    """Return the last saved (iteration, model numbers, abilities) of every scale of a run."""
    rows = warehouse.read("run_abilities").where(F.col("run_id") == run_id)
    last = rows.groupBy("scale").agg(F.max_by(F.struct(*_SAVED), "iteration").alias("last")).select("scale", "last.*")
    return {
        row["scale"]: (
            row["iteration"],
            np.frombuffer(row["model_indices"], dtype="<i4").astype(np.int64),
            np.frombuffer(row["abilities"], dtype="<f8").copy(),
        )
        for row in last.collect()  # one a scale
    }
