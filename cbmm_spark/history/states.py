"""A history as blocks: which dates are scored, and how the models stood at each of them.

Every response belongs to a *step*: the first of the chosen dates by whose end (UTC) it had been evaluated; a response
without a date belongs to step 0. A model's *states* on a benchmark are told apart by the steps that brought cells: the
state that begins at a step holds all cells up to it and is good until the next begins. The blocks have one column a
state (`kernels.dated_columns`), so that what a date adds is stored once, however many dates see it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.kernels.dated_columns import Lives, Moment
from cbmm_spark.packing.job import tiles_of

DAY_MICROS = 86_400_000_000

LEAST_ITEMS = 64
"""Items of a block below which more blocks do not pay."""


# ------------------------------------------------------------------------------------------------ evaluations
def day_number(evaluated_at: Column) -> Column:
    """Return the day of a timestamp, UTC, as days since 1970-01-01, whatever the session's time zone."""
    micros = F.unix_micros(evaluated_at)
    return ((micros - F.pmod(micros, F.lit(DAY_MICROS))) / F.lit(DAY_MICROS)).cast("int")


def evaluations(responses: DataFrame) -> DataFrame:
    """Return one row per model, benchmark and day of evaluation (null where no date is known): rows, and when.

    As small as the history of evaluations, however many responses each brought.
    """
    return responses.groupBy(
        "benchmark", "model_index", "model_id", day_number(F.col("evaluated_at")).alias("day")
    ).agg(
        F.count("*").alias("n_rows"),
        F.count("score").alias("n_scored"),
        F.min("evaluated_at").alias("first_evaluated_at"),
        F.max("evaluated_at").alias("last_evaluated_at"),
    )


@dataclass(frozen=True)
class Evaluated:
    """When anything was evaluated.

    Attributes
    ----------
    days
        Days with a response, oldest first.
    rows
        Responses of each of them.
    undated
        Responses without a date.
    """

    days: list[dt.date]
    rows: list[int]
    undated: int

    @classmethod
    def of(cls, found: DataFrame) -> Evaluated:
        """Count `evaluations` by day."""
        counted = found.groupBy("day").agg(F.sum("n_rows").alias("n_rows")).collect()  # one row a day
        dated = sorted((row["day"], row["n_rows"]) for row in counted if row["day"] is not None)
        undated = sum(row["n_rows"] for row in counted if row["day"] is None)
        return cls([date_of(day) for day, _ in dated], [rows for _, rows in dated], undated)

    def after(self, last: dt.date) -> int:
        """Return how many responses were evaluated after a date."""
        return sum(rows for day, rows in zip(self.days, self.rows, strict=True) if day > last)


def date_of(day: int) -> dt.date:
    """Return the date that is so many days after 1970-01-01."""
    return dt.date(1970, 1, 1) + dt.timedelta(days=day)


def steps_frame(spark: SparkSession, evaluated: Evaluated, dates: Sequence[dt.date]) -> DataFrame:
    """Return the step of every day with a response, for a join; days after the last date are not there."""
    ends = [date.toordinal() for date in dates]
    epoch = dt.date(1970, 1, 1).toordinal()
    rows = [
        (day.toordinal() - epoch, int(np.searchsorted(ends, day.toordinal())))
        for day in evaluated.days
        if day <= dates[-1]
    ]
    return spark.createDataFrame(rows, "day int, step int")


def with_step(df: DataFrame, steps: DataFrame) -> DataFrame:
    """Add the step of every row by its column ``day``; rows evaluated after the last date drop out."""
    joined = df.join(F.broadcast(steps), "day", "left").withColumn(
        "step", F.when(F.col("day").isNull(), F.lit(0)).otherwise(F.col("step"))
    )
    return joined.where(F.col("step").isNotNull())


# ------------------------------------------------------------------------------------------------ states
@dataclass(frozen=True)
class States:
    """The columns of a history's blocks; arrays of shape (C,), ordered by benchmark and column.

    Attributes
    ----------
    benchmarks
        Names; `benchmark` numbers them.
    benchmark, model, column
        Of every state: its benchmark, its model's number (from 1), its column's number within the benchmark (from 1).
    first, end
        Steps between which it is good: first <= step < end.
    """

    benchmarks: list[str]
    benchmark: NDArray[np.int32]
    model: NDArray[np.int32]
    column: NDArray[np.int32]
    first: NDArray[np.int32]
    end: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        benchmark: Sequence[str],
        model: NDArray[np.int32],
        step: NDArray[np.int32],
        n_dates: int,
    ) -> States:
        """Number the states that begin where a step brought cells of a model on a benchmark.

        Parameters
        ----------
        benchmark, model, step
            One entry per model, benchmark and step with cells.
        n_dates
            Number of dates.
        """
        names, inverse = np.unique(np.array(benchmark, dtype=object), return_inverse=True)
        code: NDArray[np.int32] = inverse.astype(np.int32)
        order = np.lexsort((step, model, code))
        code, model, step = code[order], model[order], step[order]
        end = np.full(step.size, n_dates, dtype=np.int32)
        if step.size > 1:
            same = (code[1:] == code[:-1]) & (model[1:] == model[:-1])
            end[:-1][same] = step[1:][same]
        # Numbered as they begin: without a model of several states, a date sees the first so many columns of a block,
        # which are cut off without looking at a bit.
        order = np.lexsort((model, step, code))
        code, model, step, end = code[order], model[order], step[order], end[order]
        start = np.searchsorted(code, np.arange(len(names)))
        column = np.arange(code.size) - start[code] + 1
        return cls([str(name) for name in names], code, model, column.astype(np.int32), step, end)

    @property
    def widest(self) -> int:
        """The largest number of columns of a benchmark."""
        return int(self.column.max(initial=0))

    def lives(self) -> dict[str, Lives]:
        """Return the columns by benchmark, for the kernels."""
        found = {}
        for number, name in enumerate(self.benchmarks):
            own = slice(*np.searchsorted(self.benchmark, [number, number + 1]))
            found[name] = Lives(self.model[own] - 1, self.first[own], self.end[own])
        return found

    def changes(self) -> dict[str, NDArray[np.int32]]:
        """Return by benchmark the steps that brought cells, increasing."""
        return {name: np.unique(self.first[self.benchmark == number]) for number, name in enumerate(self.benchmarks)}

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the states as rows, for a join."""
        table = pa.table(
            {
                "benchmark": pa.array(np.array(self.benchmarks, dtype=object)[self.benchmark], pa.string()),
                "model_index": pa.array(self.model),
                "first": pa.array(self.first),
                "column": pa.array(self.column),
            }
        )
        return spark.createDataFrame(table, "benchmark string, model_index int, first int, column int")


def states_of(stepped: DataFrame, n_dates: int) -> States:
    """Return the states from `evaluations` with their steps; as many rows as there are states come to the driver."""
    scored = stepped.where("n_scored > 0").select("benchmark", "model_index", "step").distinct().toArrow()
    return States.of(
        scored.column("benchmark").to_pylist(),
        scored.column("model_index").to_numpy().astype(np.int32),
        scored.column("step").to_numpy().astype(np.int32),
        n_dates,
    )


def history_tiles(
    responses: DataFrame, steps: DataFrame, states: States, config: PackConfig, version: int
) -> DataFrame:
    """Return `response_blocks` rows whose columns are states instead of models.

    Parameters
    ----------
    responses
        Rows of `responses`.
    steps, states
        Of the chosen dates.
    config
        As for packing.
    version
        Of `responses`.
    """
    spark = responses.sparkSession
    stepped = with_step(
        responses.where(F.col("score").isNotNull()).withColumn("day", day_number(F.col("evaluated_at"))), steps
    )
    columns = F.broadcast(states.frame(spark))
    placed = (
        stepped.join(columns, ["benchmark", "model_index"])
        .where(F.col("first") >= F.col("step"))
        .withColumn("model_index", F.col("column"))
        .drop("column", "first", "step", "day")
    )
    return tiles_of(placed, states.widest, config, version)


def small_enough(config: PackConfig, n_items: int, partitions: int) -> PackConfig:
    """Return the packing with blocks so small that every partition has one, down to `LEAST_ITEMS` items."""
    size = max(LEAST_ITEMS, -(-n_items // partitions))
    return replace(config, items_per_block=min(config.items_per_block, size))


def moments_of(states: States, dates: Iterable[int]) -> dict[int, Moment]:
    """Return the view of each date, by its number; all share one table of columns."""
    lives = states.lives()
    return {date: Moment(lives, date) for date in dates}


def check_dates(dates: Sequence[dt.date], evaluated: Evaluated) -> tuple[list[dt.date], list[dt.date]]:
    """Split dates into those by whose end something was evaluated and those before anything was.

    Raises
    ------
    InputError
        Nothing was evaluated by the last date.
    """
    if evaluated.undated:
        return list(dates), []
    begun = evaluated.days[0] if evaluated.days else None
    early = [date for date in dates if begun is None or date < begun]
    if len(early) == len(dates):
        raise InputError(f"no response was evaluated by {dates[-1]}; the first one is of {begun}: choose later dates")
    return [date for date in dates if date not in set(early)], early
