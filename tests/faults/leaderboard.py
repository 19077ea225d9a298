"""The little leaderboard that runs are killed on, and the settings of its nights."""

from __future__ import annotations

import datetime as dt

from cbmm_spark.config.schema import Config, PackConfig, ScalesConfig, SolverConfig
from tests.kernels.layouts import drawn
from tests.spark.helpers import DAY, Matrix

MODELS, ITEMS = 30, 40
TONIGHT = DAY + dt.timedelta(days=1)
# A tolerance near rounding: a fit that was resumed ends where one from the beginning does, to many digits.
SOLVER = SolverConfig(partitions=2, warm_start=False, tolerance=1e-7)
CONFIG = Config(pack=PackConfig(items_per_block=8), scales=ScalesConfig(per_benchmark=False), solver=SOLVER)
SETTINGS = [
    part
    for setting in (
        "pack.items_per_block=8", "scales.per_benchmark=false", "solver.partitions=2", "solver.warm_start=false",
        "solver.tolerance=1e-7",
    )
    for part in ("--set", setting)
]  # fmt: skip
"""`CONFIG` on the command line."""


def last_night() -> dict[str, Matrix]:
    """All models but the last two."""
    n, k = drawn(MODELS, ITEMS, 7, observed=0.95)
    n[-2:] = 0.0
    return {"b": Matrix(n, k * n)}


def tonight() -> dict[str, Matrix]:
    """All models."""
    n, k = drawn(MODELS, ITEMS, 7, observed=0.95)
    return {"b": Matrix(n, k * n)}
