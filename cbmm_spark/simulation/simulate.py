"""A leaderboard history drawn from known parameters, written as the long Parquet file that ingest reads.

Needs no Spark: the responses are drawn and written a batch of models at a time, so memory does not grow with them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cbmm_spark.config.schema import Config, SimulateConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.simulation import generator as simulation
from cbmm_spark.simulation.generator import Releases, Tile, World

HISTORY, TRUTH_ABILITIES, TRUTH_ITEMS = "history.parquet", "truth_abilities.parquet", "truth_items.parquet"

_MARK = b"cbmm-spark:simulate"  # in the metadata of every file written here: how a rerun knows its own files
_ROWS_PER_BATCH = 1 << 18
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HISTORY_SCHEMA = pa.schema(
    {"model": pa.string(), "benchmark": pa.string(), "item": pa.string(), "correct": pa.int8(), "date": _TIMESTAMP}
)
_MAKERS = ("aldermoor", "brightwater", "corvid-labs", "deepfell", "eastgate-ai", "fenwick", "greymatter", "hollow-oak")
_FAMILIES = (
    *("Auk", "Basalt", "Cinder", "Dunlin", "Ember", "Fathom", "Gannet", "Heron", "Isobar", "Juniper", "Kestrel"),
    *("Lattice", "Marlin", "Nimbus", "Orrery", "Petrel", "Quill", "Rook", "Sable", "Tundra", "Umber", "Vesper"),
)
_SIZES = ("1.5B", "3B", "8B", "14B", "32B", "70B", "235B", "mini", "large")
_VARIANTS = ("", "-instruct", "-instruct", "-chat", "-think", " (high effort)", "@2025-07")
_BENCHMARKS = (
    *("graduate-science", "competition-math", "code-repair", "commonsense", "long-context", "tool-use"),
    *("medical-exams", "legal-reasoning", "translation", "spatial-puzzles", "world-facts", "instruction-following"),
)


@dataclass(frozen=True)
class SimulationReport:
    """What was written: the three files, and counts. ``missing`` counts the model × item pairs without a row."""

    history: str
    truth_abilities: str
    truth_items: str
    models: int
    benchmarks: int
    items: int
    responses: int
    missing: int


def simulate(config: Config, out: Path) -> SimulationReport:
    """Draw the leaderboard history of ``config.simulate`` and write it with its truth.

    Writes ``history.parquet`` (model, benchmark, item, correct, date; one row a response), ``truth_abilities.parquet``
    and ``truth_items.parquet``. The same configuration gives the same rows. A file appears only once it is complete.

    Parameters
    ----------
    config
        Its section ``simulate`` says what to draw.
    out
        Folder to write to, created if needed. Files of an earlier simulation are replaced.

    Raises
    ------
    ConfigError
        If the configuration cannot be drawn, or the folder cannot be used or holds anything else.
    """
    settings = config.simulate
    history, world = _draw(settings)
    _claim(out)
    names = _Names.of(settings, history, world)
    mark = {_MARK: json.dumps(asdict(settings), sort_keys=True).encode()}
    with _completed(out / TRUTH_ABILITIES, out / TRUTH_ITEMS, out / HISTORY) as (abilities, items, responses):
        pq.write_table(_truth_abilities(history, world, names).replace_schema_metadata(mark), abilities)
        pq.write_table(_truth_items(world, names).replace_schema_metadata(mark), items)
        count = _write_history(responses, world, names, mark)
        if not count:
            raise ConfigError("the simulation leaves no response: lower simulate.missing or draw more items")
    return SimulationReport(
        history=str(out / HISTORY),
        truth_abilities=str(out / TRUTH_ABILITIES),
        truth_items=str(out / TRUTH_ITEMS),
        models=world.n_models,
        benchmarks=len(names.benchmarks),
        items=world.n_items,
        responses=count,
        missing=world.n_models * world.n_items - count,
    )


# ------------------------------------------------------------------------------------------------------------ drawing
def _draw(settings: SimulateConfig) -> tuple[Releases, World]:
    """Draw the truth; what cannot be drawn is named by its key."""
    if settings.perfect + settings.hopeless > settings.models - 2:
        raise ConfigError(
            f"simulate.perfect ({settings.perfect}) and simulate.hopeless ({settings.hopeless}) must leave two "
            f"ordinary models of simulate.models ({settings.models})"
        )
    first, last = _period(settings)
    try:
        sizes = simulation.split_items(settings.items, settings.benchmarks, settings.seed)
        items = simulation.draw_items(
            sizes,
            settings.seed,
            discrimination=settings.discrimination,
            uninformative=settings.uninformative,
            duplicates=settings.duplicates,
            miskeyed=settings.miskeyed,
        )
        # The last release leaves room for its evaluation (_Names.of): nothing is dated after the period.
        history = simulation.draw_history(settings.models, settings.seed, days=float((last - first).days - 8))
        world = simulation.build_world(
            history.theta, items, settings.seed, perfect=settings.perfect, hopeless=settings.hopeless
        )
        world = simulation.with_missing(
            world, settings.mechanism, settings.missing, day=history.day, not_run=settings.not_run
        )
    except ValueError as error:
        raise ConfigError(f"the section [simulate] cannot be drawn: {error}") from error
    return history, world


def _period(settings: SimulateConfig) -> tuple[dt.date, dt.date]:
    """First day, and the day after the last."""
    try:
        first = dt.date.fromisoformat(settings.start)
        months = first.year * 12 + first.month - 1 + settings.months
        return first, dt.date(months // 12, months % 12 + 1, min(first.day, 28))
    except ValueError:
        raise ConfigError(
            f'simulate.start ("{settings.start}") must be a day such as 2025-05-01, and the simulate.months '
            f"({settings.months}) from there must end before the year 10000"
        ) from None


@dataclass(frozen=True)
class _Names:
    """Identifiers and dates, by number: models, benchmarks and items, and when each model was released and run."""

    models: pa.StringArray
    benchmarks: pa.StringArray
    items: pa.StringArray
    released: np.ndarray[Any, np.dtype[np.datetime64]]
    evaluated: np.ndarray[Any, np.dtype[np.datetime64]]  # (models, benchmarks)

    @staticmethod
    def of(settings: SimulateConfig, history: Releases, world: World) -> _Names:
        rng = np.random.default_rng([settings.seed, *b"names"])
        n_models, n_benchmarks = world.run.shape
        start = np.datetime64(_period(settings)[0], "us")
        released = start + np.floor(history.day).astype("timedelta64[D]")
        # Each model is run in a night one to six days after its release, benchmark after benchmark.
        night = released + rng.integers(1, 7, n_models).astype("timedelta64[D]") + np.timedelta64(1, "h")
        spent = np.cumsum(rng.integers(600, 2400, (n_models, n_benchmarks)), axis=1) % 72_000
        sizes = np.bincount(world.items.benchmark, minlength=n_benchmarks)
        width = max(4, len(str(sizes.max())))
        return _Names(
            models=pa.array(_model_names(history, rng)),
            benchmarks=pa.array([_numbered(_BENCHMARKS, b) for b in range(n_benchmarks)]),
            # Numbers with leading zeros that start anew in each benchmark, as published benchmarks have them.
            items=pa.array([f"{k:0{width}d}" for size in sizes for k in range(1, size + 1)]),
            released=released,
            evaluated=night[:, None] + spent.astype("timedelta64[s]"),
        )


def _model_names(history: Releases, rng: np.random.Generator) -> list[str]:
    """Maker, family, version (which makes the name unique), size and variant."""
    size = rng.integers(len(_SIZES), size=len(history.theta))
    variant = rng.integers(len(_VARIANTS), size=len(history.theta))
    versions: dict[int, int] = {}
    names = []
    for family, s, v in zip(history.family.tolist(), size.tolist(), variant.tolist(), strict=True):
        version = versions[family] = versions.get(family, -1) + 1
        maker = _MAKERS[family % len(_MAKERS)]
        stem = f"{_numbered(_FAMILIES, family)}-{1 + version // 4}.{version % 4}"
        names.append(f"{maker}/{stem}-{_SIZES[s]}{_VARIANTS[v]}")
    return names


def _numbered(names: Sequence[str], number: int) -> str:
    lap, index = divmod(number, len(names))
    return names[index] if not lap else f"{names[index]}-{lap + 1}"


# ------------------------------------------------------------------------------------------------------------ writing
def _truth_abilities(history: Releases, world: World, names: _Names) -> pa.Table:
    return pa.table(
        {
            "model": names.models,
            "ability": world.theta,
            "is_perfect": world.forced == 1,
            "is_hopeless": world.forced == -1,
            "family": history.family.astype(np.int32),
            "released_at": pa.array(names.released, pa.timestamp("us")).cast(_TIMESTAMP),
        }
    )


def _truth_items(world: World, names: _Names) -> pa.Table:
    items = world.items
    copies = items.source != np.arange(world.n_items)
    return pa.table(
        {
            "benchmark": names.benchmarks.take(pa.array(items.benchmark)),
            "item": names.items,
            "discrimination": items.a,
            "easiness": items.b,
            "kind": pa.array(simulation.ITEM_KINDS).take(pa.array(items.kind)),
            "duplicate_of": names.items.take(pa.array(items.source, mask=~copies)),
        }
    )


def _write_history(path: Path, world: World, names: _Names, mark: dict[bytes, bytes]) -> int:
    """Write one row group per batch of models; return the number of rows."""
    rows = 0
    with pq.ParquetWriter(path, _HISTORY_SCHEMA.with_metadata(mark)) as writer:
        for models, tile in simulation.iterate_tiles(world, max(1, _ROWS_PER_BATCH // world.n_items)):
            batch = _history_rows(models, tile, world, names)
            writer.write_table(batch.cast(writer.schema), row_group_size=max(1, batch.num_rows))
            rows += batch.num_rows
    return rows


def _history_rows(models: slice, tile: Tile, world: World, names: _Names) -> pa.Table:
    """Long rows of one batch: model by model, its items in order."""
    model, item = np.nonzero(tile.attempted.T)
    correct = tile.correct.T[model, item]
    model += models.start
    benchmark = world.items.benchmark[item]
    return pa.table(
        {
            "model": names.models.take(pa.array(model)),
            "benchmark": names.benchmarks.take(pa.array(benchmark)),
            "item": names.items.take(pa.array(item)),
            "correct": correct.astype(np.int8),
            "date": pa.array(names.evaluated[model, benchmark], pa.timestamp("us")).cast(_TIMESTAMP),
        }
    )


# ----------------------------------------------------------------------------------------------------------- the folder
def _claim(out: Path) -> None:
    """Create the folder, or make sure that it holds nothing but files of an earlier simulation."""
    own = {HISTORY, TRUTH_ABILITIES, TRUTH_ITEMS}
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = sorted(each.name for each in out.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"the folder {out} cannot be used: {error.strerror}; name another one with --out") from error
    foreign = [name for name in found if name not in own or not _is_own(out / name)]
    if foreign:
        raise ConfigError(
            f"the folder {out} holds files that are not of a simulation ({', '.join(foreign[:3])}"
            f"{', …' if len(foreign) > 3 else ''}): name an empty or new folder with --out"
        )


def _is_own(path: Path) -> bool:
    try:
        return _MARK in (pq.read_metadata(path).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


@contextmanager
def _completed(*targets: Path) -> Iterator[list[Path]]:
    """Paths to write to; they take the targets' names only when all are complete, and vanish on an error.

    The last target goes first and comes back last, so that it never lies beside the others of another simulation.
    """
    parts = [target.with_name(f".{target.name}.part") for target in targets]
    try:
        yield parts
        targets[-1].unlink(missing_ok=True)
        for part, target in zip(parts, targets, strict=True):
            part.replace(target)
    except OSError as error:
        raise ConfigError(f"{targets[0].parent} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
