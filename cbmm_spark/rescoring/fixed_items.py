"""Scoring models against the item parameters of a published run: no refit, one model stage on Spark.

The items, the gauge in which the penalty holds, and the penalty itself are those of the run, so that a model gets the
ability that the run would have given it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.load import replace_section
from cbmm_spark.config.schema import Config, RescoreConfig, SolverConfig
from cbmm_spark.errors import CbmmError, ConfigError, InputError, NotConvergedError
from cbmm_spark.fit.chunks import SUMS_SCHEMA
from cbmm_spark.fit.scales import Scales
from cbmm_spark.fit.spark_blocks import (
    FEW_ROWS_A_BATCH,
    ITEM_BLOCK_DDL,
    TILE_COLUMNS,
    Batches,
    default_parallelism,
)
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.cells import Block
from cbmm_spark.kernels.counts import Counts
from cbmm_spark.kernels.fixed_items import COUNTED, FrozenItems, FrozenResult, FrozenTask, frozen_nodes, solve_models
from cbmm_spark.kernels.model import F64, Gauge, Index, Penalty, Ridge
from cbmm_spark.kernels.statistics import accuracy_loss, ranks_within
from cbmm_spark.packing.tile_codec import ITEM_BLOCK_SCHEMA, part_of_tile, read_block
from cbmm_spark.results.published_scale import ScaleLink
from cbmm_spark.results.results import RunFits, RunKey, ability_rows
from cbmm_spark.spark.scoped import job_description, session_settings
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.tables.arrow_groups import groups

CHUNK_MODELS = 4096
"""Models solved at one place at most."""

LEAST_CHUNK = 256
"""Models below which a chunk is not divided further: each tabulates the items anew."""

CHUNK_CELLS = 2**29
"""Cells of these models at most, two bits each: 128 MB."""

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
        benchmarks = {name: frozenset(group) for name, group in members.items()}
        return cls(run_id, run["scored_on"], stored_solver(run_id, run["config"]), rows, benchmarks)

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


def stored_solver(run_id: str, text: str) -> SolverConfig:
    """Return the solver's configuration of a run as `runs` has it, checked like one that is read from a file.

    Keys that this version does not know are left out; those that it knows and the run does not have are as by default.

    Raises
    ------
    InputError
        It is no configuration, or a value is not allowed.
    """
    known = {each.name for each in dataclasses.fields(SolverConfig)}
    try:
        given = json.loads(text).get("solver", {})
        solver = {name: value for name, value in given.items() if name in known}
        return replace_section(Config(), "solver", solver, f"in the configuration of run {run_id}").solver
    except (ValueError, AttributeError, ConfigError) as error:
        raise InputError(
            f"--items-from {run_id}: what `runs` has of its configuration cannot be used: {error}"
        ) from error


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
    nobody = np.zeros(0, dtype=np.int64)
    known = {name: earlier.get(name, (nobody, np.zeros(0))) for name in run.rows}
    wanted = {name: present.get(name, nobody) - 1 for name in run.rows}
    if only_new:
        wanted = {name: np.setdiff1d(models, known[name][0] - 1) for name, models in wanted.items()}
    # Whoever is scored anywhere is scored on every scale: one set of columns for all.
    everybody = np.unique(np.concatenate(list(wanted.values())))
    tasks = []
    for name, (numbers, theta) in known.items():
        count = max((int(bank.component.max(initial=1)) for bank in banks[name].values()), default=1)
        fresh = ~np.isin(everybody, numbers - 1)
        grid = solver.node_spacing, solver.min_nodes, solver.max_nodes
        ends = solver.tolerance, solver.max_iterations
        tasks.append(
            FrozenTask(name, banks[name], everybody, fresh, run.ridge(name, penalty), theta, count, *grid, *ends)
        )
    results: dict[str, FrozenResult] = {}
    if everybody.size:
        results = score_tiles(spark, tiles, tasks, solver.partitions)
        far = sorted(name for name, found in results.items() if found.residual.max(initial=0.0) > solver.tolerance)
        if far:
            raise NotConvergedError(
                f"abilities on {', '.join(far[:5])} were not found to solver.tolerance; nothing published, raise it"
            )
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


def _fit_of(task: FrozenTask, found: FrozenResult | None, wanted: Index, run: FrozenRun, penalty: Penalty) -> FrozenFit:
    """Return what was found for the models asked for that answered a known item; the others have no ability."""
    n_items = sum(int(np.isfinite(bank.a).sum()) for bank in task.items.values())
    ridge, benchmarks = run.ridge(task.name, penalty), run.benchmarks[task.name]
    nodes = frozen_nodes(task.sample, 0, task.spacing, task.least, task.most)
    asked = np.isin(task.models, wanted, assume_unique=True)
    rows = np.zeros((COUNTED + task.n_components, task.models.size)) if found is None else found.counts
    seen = np.flatnonzero((rows[0] > 0.0) & asked)
    counts = Counts.zeros(seen.size)
    counts.attempts, counts.successes, counts.items = rows[:3, seen]
    counts.n_items, counts.cells = n_items, int(counts.items.sum())
    theta, information = (np.zeros(0), np.zeros(0)) if found is None else (found.theta[seen], found.information[seen])
    fit = FrozenFit(
        task.name, benchmarks, ridge, task.models[seen], counts, theta, nodes, "fixed", converged=True,
        objective=np.nan, information=information,
    )  # fmt: skip
    fit.component_of = np.argmax(rows[COUNTED:, seen], axis=0) + 1
    fit.unknown = int(rows[3, asked].sum())
    if found is not None:
        fit.iteration = found.passes
        fit.log_loss = found.loss / max(float(rows[0].sum()), 1.0)
        fit.ability_residual, fit.item_residual = float(found.residual[seen].max(initial=0.0)), 0.0
    return fit


def score_tiles(
    spark: SparkSession, tiles: DataFrame, tasks: Sequence[FrozenTask], partitions: int = 0
) -> dict[str, FrozenResult]:
    """Score models against fixed items in one Spark job.

    Tiles are narrowed to the models' columns, the parts of some models brought together, and each such chunk is solved
    to its end at one place, for models do not depend on each other.

    Parameters
    ----------
    spark
        Session.
    tiles
        Rows of `response_blocks`.
    tasks
        The scales; all of the same models.
    partitions
        Chunks solved at a time; 0 for the cluster's default parallelism.
    """
    models = tasks[0].models
    partitions = partitions or default_parallelism(spark)
    cells_of_a_model = max(sum(bank.a.size for bank in task.items.values()) for task in tasks)
    even = max(-(-models.size // partitions), LEAST_CHUNK)
    size = min(CHUNK_MODELS, max(CHUNK_CELLS // max(cells_of_a_model, 1), 1), even)
    chunks = [slice(start, min(start + size, models.size)) for start in range(0, models.size, size)]

    def narrow(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():  # a row is a tile
                first = int(row["model_start"]) - 1
                low, high = np.searchsorted(models, [first, first + int(row["n_models"])])
                for number in range(low // size, -(-high // size)):
                    part = part_of_tile(row, models[chunks[number]])
                    if part is not None:
                        yield pa.RecordBatch.from_pylist([{"chunk": number, **part}], schema=_PART_SCHEMA)

    def solve(batches: Batches) -> Batches:
        parts: dict[int, list[Block]] = {}
        for batch in batches:
            for row in batch.to_pylist():  # a row is a part of a tile
                parts.setdefault(row["chunk"], []).append(read_block(row))
        for number, blocks in sorted(parts.items()):
            blocks.sort(key=lambda block: (block.benchmark, block.item_start, int(block.models[0])))
            for task in tasks:
                mine = [block for block in blocks if block.benchmark in task.items]
                found = solve_models(mine, task.part(chunks[number]))
                values = [found.counts.ravel(), found.theta, found.information, found.residual]
                payload = np.concatenate([*values, [found.loss, found.passes]]).astype("<f8").tobytes()
                row = {"scale": task.name, "chunk": number, "source": 0, "payload": payload}
                yield pa.RecordBatch.from_pylist([row], schema=_RESULT_SCHEMA)

    first, last = int(models[0]) + 1, int(models[-1]) + 1
    near = (F.col("model_start") <= last) & (F.col("model_start") + F.col("n_models") > first)
    description = f"cbmm-spark: score {models.size:,} models against fixed items"
    with session_settings(spark, FEW_ROWS_A_BATCH), job_description(spark, description):
        parts = (
            tiles.where(near)
            .select(*TILE_COLUMNS)
            .coalesce(partitions)
            .mapInArrow(narrow, f"chunk int, {ITEM_BLOCK_DDL}")
        )
        together = parts.repartitionById(min(partitions, len(chunks)), "chunk")
        table = together.mapInArrow(solve, SUMS_SCHEMA).toArrow()
    return _assembled(tasks, chunks, table)


def _assembled(tasks: Sequence[FrozenTask], chunks: Sequence[slice], table: pa.Table) -> dict[str, FrozenResult]:
    """Put the chunks' results together. A model that no tile holds has no attempts, and is left out later.

    Raises
    ------
    CbmmError
        If a chunk is there on some of the scales only, or twice: all scales of a chunk are solved at one place.
    """
    rows = table.to_pylist()  # a row is a chunk of models
    there = {(row["scale"], row["chunk"]) for row in rows}
    lost = sorted({(task.name, number) for task in tasks for _, number in there} - there)
    if lost or len(there) < len(rows):
        told = "a part came twice"
        if lost:
            scale, number = lost[0]
            told = f"models {chunks[number].start + 1:,} to {chunks[number].stop:,} of scale {scale} are missing"
            told += f", and {len(lost) - 1:,} more such parts" if len(lost) > 1 else ""
        raise CbmmError(
            f"abilities from fixed items did not arrive whole: {told}. Nothing was made of them. Run the command "
            "again; if this comes back, it is a fault of cbmm-spark: please report it with Spark's log"
        )
    results = {}
    for task in tasks:
        counted = COUNTED + task.n_components
        whole = np.zeros((counted + 3, task.models.size))
        loss, passes = 0.0, 0
        mine = [row for row in rows if row["scale"] == task.name]
        for row in sorted(mine, key=lambda row: row["chunk"]):
            values = np.frombuffer(row["payload"], dtype="<f8")
            span = chunks[row["chunk"]]
            whole[:, span] = values[:-2].reshape(counted + 3, -1)
            loss, passes = loss + float(values[-2]), max(passes, int(values[-1]))
        results[task.name] = FrozenResult(whole[-3], whole[-2], whole[-1], whole[:counted], loss, passes)
    return results


_PART_SCHEMA = pa.schema([pa.field("chunk", pa.int32()), *ITEM_BLOCK_SCHEMA])
_RESULT_SCHEMA = pa.schema(
    [("scale", pa.string()), ("chunk", pa.int32()), ("source", pa.int32()), ("payload", pa.binary())]
)


# ------------------------------------------------------------------------------------------------ what is read
def _banks(warehouse: Warehouse, run: FrozenRun, items: DataFrame) -> dict[str, dict[str, FrozenItems]]:
    """Return the run's item parameters in the gauge of its fit, divided by sigma, by scale and benchmark."""
    rows = (
        _of_run(warehouse, "item_parameters", run.run_id, run.scored_on)
        .where("easiness IS NOT NULL")
        .join(items.select("benchmark", "item_id", "item_index"), ["benchmark", "item_id"])
        .select("scale", "benchmark", "item_index", "discrimination", "easiness", "n_models", "component")
        .toArrow()
        .sort_by([("scale", "ascending"), ("benchmark", "ascending"), ("item_index", "ascending")])
    )
    banks: dict[str, dict[str, FrozenItems]] = {name: {} for name in run.rows}
    for (scale, benchmark), part in groups(rows, "scale", "benchmark"):
        index = part["item_index"].to_numpy() - 1
        a, b = (part[column].to_numpy() / run.solver.sigma for column in ("discrimination", "easiness"))
        size = int(index.max()) + 1
        bank = FrozenItems(np.full(size, np.nan), np.full(size, np.nan), np.zeros(size), np.zeros(size, dtype=np.int64))
        bank.n[index] = part["n_models"].to_numpy()
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
