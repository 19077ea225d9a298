"""Scoring models against the item parameters of a published run: no refit, one model stage on Spark.

The items, the gauge in which the penalty holds, and the penalty itself are those of the run, so that a model gets the
ability that the run would have given it, but for what its own answers would have changed in the items.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.arrow_groups import groups
from cbmm_spark.blocks import ITEM_BLOCK_SCHEMA, part_of_tile
from cbmm_spark.config import RescoreConfig, SolverConfig
from cbmm_spark.errors import InputError, NotConvergedError
from cbmm_spark.fit import (
    ITEM_BLOCK_DDL,
    MODEL_CHUNK,
    TILE_COLUMNS,
    TOTALS,
    Batches,
    SparkBlocks,
    _blocks,
    _ordered_sum,
    _partition,
    _row,
)
from cbmm_spark.kernels.dense import Penalty
from cbmm_spark.kernels.frozen import (
    COUNTED,
    FrozenItems,
    FrozenResult,
    FrozenSums,
    FrozenTask,
    add_frozen_block,
    frozen_nodes,
    score_models,
)
from cbmm_spark.kernels.loop import ScaleFit
from cbmm_spark.kernels.model import F64, Gauge, Ridge
from cbmm_spark.kernels.nodes import Nodes
from cbmm_spark.kernels.stage import Counts, Index
from cbmm_spark.kernels.statistics import accuracy_loss, ranks_within
from cbmm_spark.published_scale import ScaleLink
from cbmm_spark.results import RunFits, RunKey, ability_rows
from cbmm_spark.scales import Scales
from cbmm_spark.tables import SPECS, Warehouse

FINER = 0.5
"""Factor of the spacing of nodes: there is one pass on them, and the next one finds nothing left to correct."""

MOST_DOUBLINGS = 40
"""Doublings of the grid's reach after which roots count as infinite (a penalty keeps all finite long before)."""

Tell = Callable[..., Any]


@dataclass
class FrozenFit(ScaleFit):
    """A scale whose items were given; `component_of` holds the run's own numbers of components."""

    component_of: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    unknown: int = 0

    @property
    def components(self) -> Index:
        """Number of the connected component of every model in the run whose items were used."""
        return self.component_of


# ------------------------------------------------------------------------------------------------ the run
@dataclass(frozen=True)
class FrozenRun:
    """A published run as far as scoring against it needs it.

    Attributes
    ----------
    run_id, scored_on
        The run.
    solver
        Its own penalties and temperature.
    rows
        Its row of `run_scales` by scale.
    benchmarks
        The benchmarks of each scale.
    """

    run_id: str
    scored_on: dt.date
    solver: SolverConfig
    rows: Mapping[str, Mapping[str, Any]]
    benchmarks: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, warehouse: Warehouse, run_id: str) -> FrozenRun:
        """Look a run up.

        Raises
        ------
        InputError
            There is no such run, it is not published, or an earlier version made it that kept too little of its fit.
        """
        run = warehouse.read("runs").where(F.col("run_id") == run_id).first()
        if run is None or run["status"] != "published":
            what = "there is no such run" if run is None else f"that run is {run['status']}"
            raise InputError(f"--items-from {run_id}: {what}; give the run_id of a published one (table runs)")
        rows = {r["scale"]: r.asDict() for r in warehouse.read("run_scales").where(F.col("run_id") == run_id).collect()}
        if not rows or any(row["gauge_stretch"] is None for row in rows.values()):
            raise InputError(
                f"--items-from {run_id}: an earlier version made that run and kept too little of it; rescore once first"
            )
        pairs = _of_run(warehouse, "item_parameters", run_id, run["scored_on"]).select("scale", "benchmark").distinct()
        members: dict[str, set[str]] = {name: set() for name in rows}
        for scale, benchmark in pairs.collect():
            members[scale].add(benchmark)
        known = {each.name for each in dataclasses.fields(SolverConfig)}
        solver = {k: v for k, v in json.loads(run["config"]).get("solver", {}).items() if k in known}
        benchmarks = {name: frozenset(group) for name, group in members.items()}
        return cls(run_id, run["scored_on"], SolverConfig(**solver), rows, benchmarks)

    def gauge(self, scale: str) -> Gauge:
        """From the gauge of the fit to the published scale."""
        row = self.rows[scale]
        return Gauge(row["gauge_shift"], row["gauge_stretch"])

    def ridge(self, scale: str, penalty: Penalty) -> Ridge:
        """The penalty of the run's fit."""
        row = self.rows[scale]
        return penalty.of_scale(row["n_items"], row["n_models"]).for_temperature(self.solver.sigma)

    def link(self, scale: str) -> ScaleLink:
        """How the scale is published: as the run published it."""
        row = self.rows[scale]
        return ScaleLink(self.gauge(scale), items_from_run_id=self.run_id, reference_run_id=row["reference_run_id"])

    @property
    def scales(self) -> Scales:
        """Its scales, each scored by itself: two scales of the same benchmarks may be linked to different runs."""
        return Scales(dict(self.benchmarks), {name: name for name in self.benchmarks})


def _of_run(warehouse: Warehouse, table: str, run_id: str, scored_on: dt.date) -> DataFrame:
    return warehouse.read(table).where((F.col("scored_on") == F.lit(scored_on)) & (F.col("run_id") == run_id))


@dataclass(frozen=True)
class Scored:
    """What `score_frozen` returns.

    Attributes
    ----------
    fits
        The scored models by scale, in the gauge of the run's fit.
    known
        By scale, numbers (from 1) and abilities, in the same gauge, of the models that keep their ability.
    """

    fits: dict[str, FrozenFit]
    known: dict[str, tuple[Index, F64]]

    def n_models(self, scale: str) -> int:
        """Models with an ability on a scale."""
        kept = self.known[scale][0].size if scale in self.known else 0
        return int(self.fits[scale].models.size + kept)


# ------------------------------------------------------------------------------------------------ scoring
def score_frozen(
    warehouse: Warehouse,
    run: FrozenRun,
    tiles: DataFrame,
    model_benchmarks: DataFrame,
    items: DataFrame,
    penalty: Penalty,
    solver: SolverConfig,
    only_new: bool,
    tell: Tell,
) -> Scored:
    """Find the abilities of models at the item parameters of a run.

    Parameters
    ----------
    warehouse
        Holds the run.
    run
        Whose items.
    tiles, model_benchmarks, items
        What tonight's models answered (`inputs.Inputs`).
    penalty
        Of the run.
    solver
        Tolerance, nodes and partitions.
    only_new
        Leave models out that have an ability in the run, scale by scale.
    tell
        Told of the event ``frozen`` for every scale: models scored and kept, and answers skipped because the run does
        not know their items.

    Raises
    ------
    NotConvergedError
        A root was not found to the tolerance.
    """
    spark = warehouse.spark
    banks = _banks(warehouse, run, items)
    earlier = _earlier_abilities(warehouse, run, model_benchmarks)
    present = _present(spark, run, model_benchmarks)
    known = {name: earlier.get(name, (np.zeros(0, dtype=np.int64), np.zeros(0))) for name in run.rows}
    wanted = {name: present.get(name, np.zeros(0, dtype=np.int64)) - 1 for name in run.rows}
    if only_new:
        wanted = {name: np.setdiff1d(models, known[name][0] - 1) for name, models in wanted.items()}
    # Whoever is scored anywhere is scored on every scale: one set of columns for all.
    everybody = np.unique(np.concatenate(list(wanted.values())))
    tasks = []
    for name, (_, theta) in known.items():
        count = max((int(bank.component.max(initial=1)) for bank in banks[name].values()), default=1)
        ridge = run.ridge(name, penalty).ability
        tasks.append(FrozenTask(name, banks[name], everybody, ridge, grid(theta, 0, solver), None, count))
    results: dict[str, SolvedScale] = {}
    if everybody.size:
        with PartsOfTiles(spark, tiles, everybody, solver.partitions) as parts:
            results = solve_frozen(parts, tasks, {name: theta for name, (_, theta) in known.items()}, solver)
    fits = {task.name: _fit_of(task, results.get(task.name), wanted[task.name], run, penalty) for task in tasks}
    if not only_new:
        known = {}
    for name, fit in fits.items():
        tell(
            "frozen",
            scale=name,
            items_from=run.run_id,
            scored=int(fit.models.size),
            kept=int(known[name][0].size) if only_new else 0,
            unknown_answers=fit.unknown,
        )
    return Scored(fits, known)


class SolvedScale(NamedTuple):
    """The last task of a scale, its sums, what the model stage made of them, and the passes that took."""

    task: FrozenTask
    sums: FrozenSums
    result: FrozenResult
    passes: int


def grid(theta: F64, doublings: int, solver: SolverConfig) -> Nodes:
    """Lay the grid of a first pass over the abilities of the run (in the gauge of its fit) and beyond."""
    return frozen_nodes(theta, doublings, FINER * solver.node_spacing, solver.min_nodes, 2 * solver.max_nodes)


def solve_frozen(
    parts: PartsOfTiles, tasks: Sequence[FrozenTask], samples: Mapping[str, F64], solver: SolverConfig
) -> dict[str, SolvedScale]:
    """Pass until every root is inside of its nodes, then until exact sums say that it is one.

    Parameters
    ----------
    parts
        The answers.
    tasks
        First passes.
    samples
        By scale, abilities that wider grids are laid over, in the gauge of the fit.
    solver
        Tolerance, nodes, iterations.

    Raises
    ------
    NotConvergedError
        A root was not found to the tolerance.
    """
    at_work = {task.name: task for task in tasks}
    done: dict[str, SolvedScale] = {}
    doublings = dict.fromkeys(at_work, 0)
    for number in range(1, solver.max_iterations + MOST_DOUBLINGS + 1):
        for name, (sums, result) in parts.run_frozen(list(at_work.values())).items():
            task = at_work[name]
            largest = float(result.residual.max(initial=0.0))
            if task.theta is not None:
                if largest <= solver.tolerance:
                    done[name] = SolvedScale(task, sums, result, number)
                    del at_work[name]
                else:
                    at_work[name] = dataclasses.replace(task, theta=result.theta)
            elif np.isfinite(largest) or doublings[name] >= MOST_DOUBLINGS:
                at_work[name] = dataclasses.replace(task, theta=result.theta)
            else:
                doublings[name] += 1
                at_work[name] = dataclasses.replace(task, nodes=grid(samples[name], doublings[name], solver))
        if not at_work:
            return done
    raise NotConvergedError(
        f"abilities on {', '.join(sorted(at_work)[:5])} were not found to solver.tolerance; nothing published, raise it"
    )


def _fit_of(task: FrozenTask, solved: SolvedScale | None, wanted: Index, run: FrozenRun, penalty: Penalty) -> FrozenFit:
    """Return what was found for the models asked for that answered a known item; the others have no ability."""
    n_items = sum(int(np.isfinite(bank.a).sum()) for bank in task.items.values())
    ridge, benchmarks = run.ridge(task.name, penalty), run.benchmarks[task.name]
    if solved is None:
        empty = Counts.zeros(0)
        empty.n_items = n_items
        return FrozenFit(
            task.name, benchmarks, ridge, wanted[:0], empty, np.zeros(0), task.nodes, "fixed", converged=True,
            objective=np.nan,
        )  # fmt: skip
    last, sums, result, passes = solved
    assert last.theta is not None
    asked = np.isin(task.models, wanted, assume_unique=True)
    seen = np.flatnonzero((sums.counts[0] > 0.0) & asked)
    counts = Counts.zeros(seen.size)
    counts.attempts, counts.successes, counts.items = sums.counts[:3, seen]
    counts.n_items, counts.cells = n_items, int(counts.items.sum())
    fit = FrozenFit(
        task.name, benchmarks, ridge, task.models[seen], counts, last.theta[seen], task.nodes, "fixed", passes, True,
        objective=np.nan, information=result.information[seen],
    )  # fmt: skip
    fit.log_loss = sums.loss / max(float(sums.counts[0].sum()), 1.0)
    fit.ability_residual, fit.item_residual = float(result.residual[seen].max(initial=0.0)), 0.0
    fit.component_of = np.argmax(sums.counts[COUNTED:, seen], axis=0) + 1
    fit.unknown = int(sums.counts[3, asked].sum())
    return fit


class PartsOfTiles(SparkBlocks):
    """The answers of some models, cached: tiles narrowed to their columns, each an item block of its own.

    Parameters
    ----------
    spark, tiles, partitions
        As `SparkBlocks`.
    models
        Positions of the models, increasing.
    """

    def __init__(self, spark: SparkSession, tiles: DataFrame, models: Index, partitions: int = 0) -> None:
        super().__init__(spark, tiles, partitions)
        self.models = models

    def __enter__(self) -> PartsOfTiles:
        super().__enter__()
        return self

    def _bring_together(self) -> DataFrame:
        models = self.models

        def narrow(batches: Batches) -> Batches:
            for batch in batches:
                for row in batch.to_pylist():  # a row is a tile
                    part = part_of_tile(row, models)
                    if part is not None:
                        yield pa.RecordBatch.from_pylist([part], schema=ITEM_BLOCK_SCHEMA)

        first, last = int(models[0]) + 1, int(models[-1]) + 1
        near = (F.col("model_start") <= last) & (F.col("model_start") + F.col("n_models") > first)
        parts = self.tiles.where(near).select(*TILE_COLUMNS).mapInArrow(narrow, ITEM_BLOCK_DDL)
        return parts.persist(StorageLevel.MEMORY_AND_DISK)

    def run_frozen(self, tasks: Sequence[FrozenTask]) -> dict[str, tuple[FrozenSums, FrozenResult]]:
        """Compute one pass of some scales: sums on the item side, roots or Newton steps on the model side."""
        by_name = {task.name: task for task in tasks}

        def partition(batches: Batches) -> Batches:
            sums: dict[str, FrozenSums] = {}
            for block, _ in _blocks(batches):
                for name, task in by_name.items():
                    if block.benchmark in task.items:
                        if name not in sums:
                            sums[name] = FrozenSums.zeros(task)
                        add_frozen_block(block, task, sums[name])
            for name, part in sums.items():
                totals = np.array([part.loss, part.steepest])
                yield _row(name, TOTALS, _partition(), totals)
                for chunk, start in enumerate(range(0, part.values.shape[1], MODEL_CHUNK)):
                    span = slice(start, start + MODEL_CHUNK)
                    rows = np.concatenate([part.counts[:, span], part.values[:, span]])
                    yield _row(name, chunk, _partition(), np.append(rows.ravel(), part.steepest))

        def update(name: str, chunk: int, payloads: list[F64]) -> F64:
            if chunk == TOTALS:
                return np.array([sum(p[0] for p in payloads), max(p[1] for p in payloads)])
            task = by_name[name]
            span = slice(chunk * MODEL_CHUNK, (chunk + 1) * MODEL_CHUNK)
            size = task.models[span].size
            steepest = max(float(payload[-1]) for payload in payloads)
            rows = _ordered_sum([payload[:-1] for payload in payloads]).reshape(-1, size)
            counted = COUNTED + task.n_components
            theta = None if task.theta is None else task.theta[span]
            result = score_models(task, theta, rows[counted:], steepest)
            return np.concatenate([rows[:counted].ravel(), result.theta, result.information, result.residual])

        rows = self._job(partition, update, f"score {len(tasks)} scale(s) against fixed items")
        sums = {name: FrozenSums(np.zeros((COUNTED + t.n_components, t.models.size)), np.zeros((0, 0)))
                for name, t in by_name.items()}  # fmt: skip
        # A model that no block holds keeps ability 0 with no answers, and is left out later.
        results = {name: FrozenResult(*np.zeros((3, t.models.size))) for name, t in by_name.items()}
        for name, chunk, values in rows:
            if chunk == TOTALS:
                sums[name].loss, sums[name].steepest = float(values[0]), float(values[1])
                continue
            span = slice(chunk * MODEL_CHUNK, (chunk + 1) * MODEL_CHUNK)
            part = values.reshape(-1, by_name[name].models[span].size)
            sums[name].counts[:, span] = part[:-3]
            result = results[name]
            result.theta[span], result.information[span], result.residual[span] = part[-3:]
        return {name: (sums[name], results[name]) for name in by_name}


# ------------------------------------------------------------------------------------------------ what is read
def _banks(warehouse: Warehouse, run: FrozenRun, items: DataFrame) -> dict[str, dict[str, FrozenItems]]:
    """Return the run's item parameters in the gauge of its fit, divided by sigma, by scale and benchmark."""
    rows = (
        _of_run(warehouse, "item_parameters", run.run_id, run.scored_on)
        .where("easiness IS NOT NULL")
        .join(items.select("benchmark", "item_id", "item_index"), ["benchmark", "item_id"])
        .select("scale", "benchmark", "item_index", "discrimination", "easiness", "component")
        .toArrow()
        .sort_by([("scale", "ascending"), ("benchmark", "ascending"), ("item_index", "ascending")])
    )
    banks: dict[str, dict[str, FrozenItems]] = {name: {} for name in run.rows}
    for (scale, benchmark), part in groups(rows, "scale", "benchmark"):
        index = part["item_index"].to_numpy() - 1
        a, b = (part[column].to_numpy() / run.solver.sigma for column in ("discrimination", "easiness"))
        size = int(index.max()) + 1
        bank = FrozenItems(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, dtype=np.int64))
        bank.a[index], bank.b[index] = run.gauge(scale).inverse().items(a, b)
        bank.component[index] = part["component"].fill_null(1).to_numpy()
        banks[scale][benchmark] = bank
    return banks


def _earlier_abilities(
    warehouse: Warehouse, run: FrozenRun, model_benchmarks: DataFrame
) -> dict[str, tuple[Index, F64]]:
    """Return model numbers (from 1, increasing) and abilities of the run, in the gauge of its fit, by scale."""
    numbers = model_benchmarks.select("model_id", "model_index").distinct()
    rows = (
        _of_run(warehouse, "abilities", run.run_id, run.scored_on)
        .where("ability IS NOT NULL")
        .join(numbers, "model_id")
        .select("scale", "model_index", "ability")
        .toArrow()
        .sort_by([("scale", "ascending"), ("model_index", "ascending")])
    )
    found = {}
    for (scale,), part in groups(rows, "scale"):
        ability = part["ability"].to_numpy()
        found[scale] = (
            part["model_index"].to_numpy().astype(np.int64),
            run.gauge(scale).inverse().abilities(ability),
        )
    return found


def _present(spark: SparkSession, run: FrozenRun, model_benchmarks: DataFrame) -> dict[str, Index]:
    """Return the numbers (from 1, increasing) of models with a verdict on each scale's benchmarks."""
    pairs = [(name, benchmark) for name, group in run.benchmarks.items() for benchmark in sorted(group)]
    members = spark.createDataFrame(pairs, "scale string, benchmark string")
    rows = (
        model_benchmarks.where("n_rows > n_null")
        .join(F.broadcast(members), "benchmark")
        .select("scale", "model_index")
        .distinct()
        .toArrow()
        .sort_by([("scale", "ascending"), ("model_index", "ascending")])
    )
    return {scale: part["model_index"].to_numpy().astype(np.int64) for (scale,), part in groups(rows, "scale")}


# ------------------------------------------------------------------------------------------------ what is written
def frozen_items(warehouse: Warehouse, run: FrozenRun, key: RunKey) -> DataFrame:
    """Return the rows of `item_parameters`: those of the run, under the new run's name."""
    rows = key.onto(_of_run(warehouse, "item_parameters", run.run_id, run.scored_on))
    return rows.select(*SPECS["item_parameters"].column_names)


def frozen_abilities(
    warehouse: Warehouse,
    run: FrozenRun,
    scored: Scored,
    model_benchmarks: DataFrame,
    config: RescoreConfig,
    only_new: bool,
    key: RunKey,
) -> DataFrame:
    """Return the rows of `abilities`: of the scored models, and with `only_new` those of the run as they were.

    Only ranks are told anew where both stand side by side.
    """
    links = {name: run.link(name) for name in run.rows}
    new = ability_rows(warehouse.spark, [RunFits(key, run.scales, scored.fits, links)], model_benchmarks, config)
    if not only_new:
        return new
    columns = SPECS["abilities"].column_names
    kept = key.onto(_of_run(warehouse, "abilities", run.run_id, run.scored_on).where("ability IS NOT NULL"))
    others = new.join(kept.select("scale", "model_id"), ["scale", "model_id"], "left_anti")
    return _ranked(kept.select(*columns).unionByName(others.select(*columns)))


def _ranked(rows: DataFrame) -> DataFrame:
    """Return rows of `abilities` with the ranks of all of them together, within components."""
    table = (
        rows.where("ability IS NOT NULL")
        .select("scale", "model_id", "component", "ability", "accuracy")
        .toArrow()
        .sort_by([("scale", "ascending"), ("model_id", "ascending")])
    )
    parts = []
    for _, part in groups(table, "scale"):
        component = part["component"].to_numpy().astype(np.int64)
        ranks = {
            name: pa.array(ranks_within(component, part[column].to_numpy()).astype(np.int32))
            for name, column in (("rank", "ability"), ("accuracy_rank", "accuracy"))
        }
        parts.append(pa.table({"scale": part["scale"], "model_id": part["model_id"], **ranks}))
    if not parts:
        return rows
    spark = rows.sparkSession
    ranks_frame = spark.createDataFrame(
        pa.concat_tables(parts), "scale string, model_id string, rank int, accuracy_rank int"
    )
    joined = rows.drop("rank", "accuracy_rank", "rank_shift").join(ranks_frame, ["scale", "model_id"], "left")
    shifted = joined.withColumn("rank_shift", F.col("accuracy_rank") - F.col("rank"))
    return shifted.select(*SPECS["abilities"].column_names)


def frozen_scales(spark: SparkSession, run: FrozenRun, scored: Scored, only_new: bool, key: RunKey) -> DataFrame:
    """Return the rows of `run_scales`: those of the run, but for what was scored."""
    rows = []
    for name, before in run.rows.items():
        fit = scored.fits[name]
        attempts, successes = fit.counts.attempts, fit.counts.successes
        anything = bool(fit.models.size)
        row = dict(before) | {
            "run_id": key.run_id,
            "n_models": scored.n_models(name),
            "n_responses": int(attempts.sum()) + (before["n_responses"] if only_new else 0),
            "iterations": fit.iteration,
            "converged": True,
            "objective": None,
            "log_loss": max(fit.log_loss, 0.0) if anything else None,
            "accuracy_log_loss": accuracy_loss(attempts, successes) if anything else None,
            "kkt_residual": fit.ability_residual if anything else None,
            "node_error": None,
            "ability_accuracy_spearman": None,
            "items_from_run_id": run.run_id,
        }
        rows.append(tuple(row[column] for column in SPECS["run_scales"].column_names))
    return spark.createDataFrame(rows, SPECS["run_scales"].schema)


def frozen_state(spark: SparkSession, scored: Scored, key: RunKey) -> DataFrame:
    """Return the rows of `run_abilities`, from which the next night begins."""
    rows = []
    for name, fit in scored.fits.items():
        numbers, theta = scored.known.get(name, (np.zeros(0, dtype=np.int64), np.zeros(0)))
        models, abilities = np.append(numbers, fit.models + 1), np.append(theta, fit.theta)
        order = np.argsort(models)
        packed = models[order].astype("<i4").tobytes(), abilities[order].astype("<f8").tobytes()
        rows.append((key.run_id, name, fit.iteration, *packed))
    return spark.createDataFrame(rows, SPECS["run_abilities"].schema)
