"""The commit of a batch to `responses`: number new names, write only what differs from what is stored.

New rows are appended, corrections are merged. Delta has no unique keys, so two ingests are kept apart by their numbers:
every commit carries the application `APPLICATION` and the number that follows the last one of the snapshot that was
compared with. Of two commits with one number Delta takes one; the other ingest compares once more and tries again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delta.exceptions.base import ConcurrentWriteException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.bring_together import (
    COUNTS,
    PAIR,
    ROWS_A_TASK,
    TOGETHER,
    Stored,
    bring_together,
    merged_dates,
)
from cbmm_spark.ingest.buckets import bucket_of_benchmark
from cbmm_spark.ingest.gather import Gathered, Undecided
from cbmm_spark.ingest.known import Known, dated, known_names, read_again
from cbmm_spark.ingest.numbering import ITEMS, MODELS, number_new, widen
from cbmm_spark.responses.batch import Batch
from cbmm_spark.responses.encode import unpack_numbers, unpack_scores
from cbmm_spark.responses.reconcile import BECAME, CORRECTED
from cbmm_spark.spark.scoped import persisted, session_settings
from cbmm_spark.tables import BENCHMARK_BUCKETS, SPECS, Warehouse, with_commit_retry
from cbmm_spark.tables.transactions import last_number, was_committed
from cbmm_spark.tables.warehouse import MICROSECONDS, commit_note

APPLICATION = "cbmm-spark-ingest"
"""Who commits to `responses`, for Delta's transaction identifiers."""

_MERGE_APPLICATION = "spark.databricks.delta.write.txnAppId"
_MERGE_NUMBER = "spark.databricks.delta.write.txnVersion"

CHANGES = ("new", "corrected", "redated")
"""What is written; `unchanged` and `superseded` rows are not."""

CORRECTIONS_SHOWN = 3
ROWS_A_WRITE = 1 << 16  # rows of a batch that Python hands to Spark's writer
_ITEMS_TO_BROADCAST = 1_000_000  # names of items, about 100 bytes each, that an executor surely holds

_FLAT = pa.schema(
    [("model_key", pa.int32()), ("item_key", pa.int32()), ("source_key", pa.int32()), ("attempt", pa.int32()),
     ("score", pa.float64()), ("evaluated_at", pa.timestamp("us", "UTC"))]
)  # fmt: skip
_FLAT_SPARK = "model_key int, item_key int, source_key int, attempt int, score double, evaluated_at timestamp"


@dataclass(frozen=True)
class Outcome:
    """What became of a batch.

    Attributes
    ----------
    counts
        By the names of `bring_together.COUNTS`, of all that may be stored.
    stopped
        Rows of benchmarks that were left.
    answered
        By benchmark and model, how many items have a verdict; without the benchmarks that were left.
    undecided
        Keys that nobody can decide; their rows go to quarantine.
    corrections
        The first corrections in words.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    stopped: int = 0
    answered: Mapping[tuple[str, str], int] = field(default_factory=dict)
    undecided: Undecided = field(default_factory=dict)
    corrections: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)


def commit_batch(
    warehouse: Warehouse,
    gathered: Gathered,
    rules: IngestConfig,
    started: datetime,
    known: Known,
    left: Sequence[str] = (),
) -> Outcome:
    """Make `responses`, `models` and `items` hold a batch.

    Parameters
    ----------
    warehouse
        Its tables are created if there is something to write.
    gathered
        The input.
    rules
        `config.ingest`.
    started
        The ingest's time, UTC.
    known
        What `models` and `items` say of the batch's names.
    left
        Benchmarks that are not to be written.

    Raises
    ------
    InputError
        Rows contradict each other or what is stored and the rule is `error`, or a model has several attempts at an item
        and that rule is `error`; nothing is written.
    ConflictError
        Other ingests kept committing first.
    """
    if not gathered.batch.valid:
        return Outcome()
    # A rival's commit repeats the comparison with what is stored, not the reading of the input.
    commit = _Commit(warehouse, gathered, rules, started, frozenset(left), [known])
    return with_commit_retry(commit.once, warehouse.location("responses"))


@contextmanager
def merge_settings(spark: SparkSession, note: Mapping[str, str], *, insert_only: bool) -> Iterator[None]:
    """Settings of a MERGE whose source is persisted and laid out as it should be: no second shuffle or sort, no copy.

    With updates Delta passes over the source twice and insists on a copy of its own
    (DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION).
    """
    settings = {
        "spark.databricks.delta.commitInfo.userMetadata": commit_note(note),
        "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
        **_UNSORTED,
        **MICROSECONDS,
    }
    if insert_only:
        settings["spark.databricks.delta.merge.materializeSource"] = "none"
    with session_settings(spark, settings):
        yield


_UNSORTED = {"spark.sql.maxConcurrentOutputFileWriters": str(BENCHMARK_BUCKETS)}
"""A task may write to all partitions at once; else Spark sorts its rows by partition first."""


@dataclass(frozen=True)
class _Commit:
    warehouse: Warehouse
    gathered: Gathered
    rules: IngestConfig
    started: datetime
    left: frozenset[str]
    known: list[Known]  # one: what was read last
    before: Counter[str] = field(default_factory=Counter)  # rows of commits that a rival made incomplete

    @property
    def note(self) -> dict[str, str]:
        """Said about each commit."""
        return {"command": "ingest", "input": self.gathered.batch.path}

    @property
    def batch(self) -> Batch:
        return self.gathered.batch

    def once(self) -> Outcome:
        """Compare and commit; a conflict with another writer passes to the caller, who tries again."""
        known = self.known.pop() if self.known else known_names(self.warehouse, self.batch)
        number = 1 + _last_number(self.warehouse)
        stored = Stored(known.models, known.item_index)
        with ExitStack() as held:
            frame = bring_together(
                self.warehouse, self.gathered.encoded, self.batch, stored, self.rules, sorted(self.left)
            )
            rows = held.enter_context(persisted(frame))
            pairs, dates = _summed_up(rows)
            self._refuse(pairs)
            counts = Counter({name: sum(pairs[name].to_pylist()) for name in COUNTS})
            corrections = self._corrections(rows) if counts["corrected"] else ()
            if any(counts[change] for change in CHANGES):
                self._write(rows, pairs, dates, known, number)
        # What an earlier attempt of this ingest wrote is found unchanged by the last one.
        counts.update(self.before)
        counts["unchanged"] -= self.before.total()
        return self._outcome(pairs, counts, corrections)

    def _outcome(self, pairs: pa.Table, counts: Counter[str], corrections: tuple[str, ...]) -> Outcome:
        columns = (pairs[name].to_pylist() for name in ("benchmark", "name", "answered", "keys", "missing", "rows"))
        answered, stopped = {}, Counter[str]()
        for benchmark, model, items, keys, missing, rows in zip(*columns, strict=True):
            if benchmark in self.left:
                stopped.update(rows=rows, keys=keys, missing=missing)
            else:
                answered[benchmark, model] = items
        for name in ("rows", "keys", "missing"):
            counts[name] -= stopped[name]
        return Outcome(counts, stopped["rows"], answered, self._undecided(pairs), corrections)

    # ------------------------------------------------------------------------------------------ what is refused
    def _refuse(self, pairs: pa.Table) -> None:
        """Raise where a rule is `error` and something is against it: by the names of the first key, whatever order."""
        path = self.batch.path
        if self.rules.duplicates == "error":
            key = self._first(pairs, "open")
            if key is not None:
                raise InputError(
                    f"{path} has rows of different scores for {key}; ingest.duplicates = error refuses that"
                )
        key = self._first(pairs, "several")
        if key is not None:
            raise InputError(f"{path} has several attempts up to {key}; ingest.attempts = error refuses that")
        if self.rules.duplicates == "error":
            key = self._first(pairs, "differs")
            if key is not None:
                raise InputError(
                    f"{path} has another score than the stored one for {key}; ingest.duplicates = error refuses that"
                )

    def _first(self, pairs: pa.Table, column: str) -> str | None:
        told = pairs.filter(pc.is_valid(pairs[column])).sort_by([("benchmark", "ascending"), ("name", "ascending")])
        if not told.num_rows:
            return None
        row = told.slice(0, 1).to_pylist()[0]
        keys = self._named(np.frombuffer(row[column], dtype=np.int64, offset=1))
        item = keys[0][0]
        attempt = max(attempt for name, attempt in keys if name == item) if column == "several" else keys[0][1]
        return key_in_words(row["benchmark"], row["name"], item, attempt)

    def _named(self, places: npt.NDArray[np.int64]) -> list[tuple[str, int]]:
        """Items and attempts of places, in the order of the names."""
        names = self.batch.item_names()
        return sorted((names[place >> 31], place & ((1 << 31) - 1)) for place in places.tolist())

    def _undecided(self, pairs: pa.Table) -> Undecided:
        found: dict[str, dict[str, frozenset[tuple[str, int]]]] = {}
        for row in pairs.filter(pc.is_valid(pairs["open"])).to_pylist():
            keys = self._named(np.frombuffer(row["open"], dtype=np.int64, offset=1))
            found.setdefault(row["benchmark"], {})[row["name"]] = frozenset(keys)
        return found

    def _corrections(self, rows: DataFrame) -> tuple[str, ...]:
        """The first corrections by name; all of them are in the change feed of `responses`."""
        # The first pairs that have any hold the first ones.
        pairs = rows.where((F.col("kind") == PAIR) & (F.col("corrected") > 0))
        told = pairs.orderBy("benchmark", "name").limit(CORRECTIONS_SHOWN).collect()
        found = []
        for row in told:
            n = row["n"]
            corrected = unpack_numbers(row["became"], n) == CORRECTED
            places = unpack_numbers(row["places"], n)[corrected]
            new, old = (unpack_scores(row[name], n)[corrected] for name in ("scores", "old_scores"))
            keys = [self._named(places[at : at + 1])[0] for at in range(places.size)]
            found += [
                (row["benchmark"], row["name"], *key, float(before), float(after))
                for key, before, after in zip(keys, old, new, strict=True)
            ]
        shown = sorted(found, key=lambda each: each[:4])[:CORRECTIONS_SHOWN]
        return tuple(f"{key_in_words(*key)}: {_shown(old)} became {_shown(new)}" for *key, old, new in shown)

    # ------------------------------------------------------------------------------------------ writing
    def _write(self, rows: DataFrame, pairs: pa.Table, dates: pa.Table, known: Known, number: int) -> None:
        self.warehouse.ensure("responses", "quarantine", "models", "items")
        known = self._registered(pairs, dates, known)
        counts = {name: sum(pairs[name].to_pylist()) for name in BECAME}
        flat = self._rows(rows, known, _tasks(counts))
        updates = counts["corrected"] + counts["redated"]
        if updates:
            self._merge(flat, known, counts, number)
        else:
            self._append(flat, number)

    def _registered(self, pairs: pa.Table, dates: pa.Table, known: Known) -> Known:
        """Number the names that have none and widen dates; return what holds then."""
        spark = self.warehouse.spark
        numbered = []
        for dimension, table in ((MODELS, known.model_changes(pairs)), (ITEMS, known.item_changes(self.batch, dates))):
            new, wider = table
            if new.num_rows:
                number_new(self.warehouse, dimension, spark.createDataFrame(new), self.note)
                numbered.append(dimension.table)
            if wider.num_rows:
                widen(self.warehouse, dimension, spark.createDataFrame(wider), self.note)
        return read_again(self.warehouse, self.batch, known, numbered)

    def _rows(self, rows: DataFrame, known: Known, tasks: int) -> DataFrame:
        """The rows of `responses` that are to be written."""
        spark, batch = self.warehouse.spark, self.batch
        flatten = _Flatten(
            {name: at for at, name in enumerate(batch.models)},
            np.array([known.models.get(name, 0) for name in batch.models], dtype=np.int32),
            known.item_index,
            batch.buckets,
            {hashed: at for at, (_, hashed) in enumerate(batch.sources.values())},
        )
        changes = rows.where((F.col("kind") == PAIR) & (F.col("n") > 0))
        numbers = changes.coalesce(tasks).mapInArrow(flatten, _FLAT_SPARK)
        models = pa.table(
            {
                "model_key": pa.array(range(len(batch.models)), pa.int32()),
                "model_id": pa.array(batch.models, pa.string()),
                "model_index": pa.array(flatten.model_index, pa.int32()),
            }
        )
        sources = pa.table(
            {
                "source_key": pa.array(range(len(batch.sources)), pa.int32()),
                "source": pa.array(batch.sources, pa.string()),
            }
        )
        items = spark.createDataFrame(known.item_table(batch)).withColumn("benchmark_bucket", bucket_of_benchmark())
        small = F.broadcast(items) if batch.n_items <= _ITEMS_TO_BROADCAST else items
        named = (
            numbers.join(F.broadcast(spark.createDataFrame(models)), "model_key")
            .join(F.broadcast(spark.createDataFrame(sources)), "source_key")
            .join(small, "item_key")
        )
        return named.withColumn("ingested_at", F.lit(self.started).cast("timestamp"))

    def _append(self, rows: DataFrame, number: int) -> None:
        """Append; Delta skips the commit where a rival has taken the number."""
        commit_id = secrets.token_hex(8)
        columns = SPECS["responses"].column_names
        with session_settings(self.warehouse.spark, _UNSORTED):
            self.warehouse.append(
                rows.select(*columns), "responses", {**self.note, "commit_id": commit_id}, (APPLICATION, number)
            )
        if not was_committed(self.warehouse, "responses", "commit_id", commit_id):
            raise ConcurrentWriteException("responses changed since they were compared")

    def _merge(self, rows: DataFrame, known: Known, counts: Mapping[str, int], number: int) -> None:
        """Insert and update in one commit; Delta skips it where a rival has taken the number."""
        key = ("benchmark_bucket", "model_index", "item_index", "attempt", "benchmark")
        same = " AND ".join(f"t.{name} = s.{name}" for name in key)
        merge = (
            self.warehouse.delta("responses")
            .alias("t")
            .merge(rows.alias("s"), f"{_skipping(self.batch, known)} AND {same}")
        )
        changed = ("score", "evaluated_at", "source", "ingested_at")
        merge = merge.whenMatchedUpdate(set={name: F.col(f"s.{name}") for name in changed})
        columns = SPECS["responses"].column_names
        merge = merge.whenNotMatchedInsert(values={name: F.col(f"s.{name}") for name in columns})
        numbered = {_MERGE_APPLICATION: APPLICATION, _MERGE_NUMBER: str(number)}
        spark = self.warehouse.spark
        with merge_settings(spark, self.note, insert_only=False), session_settings(spark, numbered):
            outcome = merge.execute().head()
        inserted, updated = (0, 0) if outcome is None else (outcome["num_inserted_rows"], outcome["num_updated_rows"])
        if (inserted, updated) != (counts["new"], counts["corrected"] + counts["redated"]):
            # Another ingest committed some of these keys after the comparison. No row is doubled; compare once more.
            self.before.update(new=int(inserted), corrected=int(updated))
            raise ConcurrentWriteException("responses changed since they were compared")


def _skipping(batch: Batch, known: Known) -> str:
    """Which stored rows can be of a batch, for the files to be skipped that hold none."""
    numbers = [known.models[name] for name in batch.models if name in known.models]
    buckets = ", ".join(map(str, sorted(set(batch.buckets.values()))))
    return f"t.benchmark_bucket IN ({buckets}) AND t.model_index BETWEEN {min(numbers)} AND {max(numbers)}"


def _tasks(counts: Mapping[str, int]) -> int:
    """A night that is small is written by few tasks, for each of them leaves a file for each bucket."""
    return max(1, -(-sum(counts[change] for change in CHANGES) // ROWS_A_TASK))


def _last_number(warehouse: Warehouse) -> int:
    """The last number that an ingest has committed with."""
    return last_number(warehouse, "responses", APPLICATION) if warehouse.exists("responses") else 0


def _summed_up(rows: DataFrame) -> tuple[pa.Table, pa.Table]:
    """Of every model and benchmark the counts and what is refused, and the dates of items: one job."""
    small = [
        F.col(field.name) if field.name in _SMALL else F.lit(None).cast(_spark_type(field)).alias(field.name)
        for field in TOGETHER
    ]
    pairs = rows.where(F.col("kind") == PAIR).select(*small)
    told = pairs.unionByName(merged_dates(rows)).toArrow()
    is_pair = pc.equal(told["kind"], PAIR)
    return told.filter(is_pair), told.filter(pc.invert(is_pair))


_SMALL = ("kind", "benchmark", "name", *COUNTS, "first_date", "last_date", "n", "open", "several", "differs")


def _spark_type(field: pa.Field) -> str:
    return "string" if field.type == pa.string() else "binary" if field.type == pa.binary() else "long"


@dataclass(frozen=True)
class _Flatten:
    """Runs on a machine: takes pairs, gives what is to be written as rows of numbers, in the order of the files."""

    model_key: Mapping[str, int]
    model_index: npt.NDArray[np.int32]
    item_index: npt.NDArray[np.int32]
    buckets: Mapping[str, int]
    source_key: Mapping[int, int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        rows.sort(key=self._place)
        held: list[tuple[npt.NDArray[Any], ...]] = []
        n = 0
        for row in rows:
            held.append(self._columns(row))
            n += row["n"]
            if n >= ROWS_A_WRITE:
                yield _flat(held)
                held, n = [], 0
        if held:
            yield _flat(held)

    def _place(self, row: Mapping[str, Any]) -> tuple[int, int, str]:
        return self.buckets[row["benchmark"]], int(self.model_index[self.model_key[row["name"]]]), row["benchmark"]

    def _columns(self, row: Mapping[str, Any]) -> tuple[npt.NDArray[Any], ...]:
        n = row["n"]
        places = unpack_numbers(row["places"], n)
        item = (places >> 31).astype(np.int32)
        order = np.argsort(self.item_index[item], kind="stable")
        sources = unpack_numbers(row["sources"], n)
        distinct, at = np.unique(sources, return_inverse=True)
        keys = np.array([self.source_key[hashed] for hashed in distinct.tolist()], dtype=np.int32)[at]
        columns = (
            np.full(n, self.model_key[row["name"]], dtype=np.int32),
            item,
            keys,
            (places & ((1 << 31) - 1)).astype(np.int32),
            unpack_scores(row["scores"], n),
            unpack_numbers(row["dates"], n),
        )
        return tuple(column[order] for column in columns)


def _flat(held: Sequence[tuple[npt.NDArray[Any], ...]]) -> pa.RecordBatch:
    columns = [np.concatenate(parts) for parts in zip(*held, strict=True)]
    *numbers, score, date = columns
    arrays = [pa.array(column) for column in numbers]
    arrays.append(pa.array(score, mask=np.isnan(score)))
    arrays.append(dated(date))
    return pa.RecordBatch.from_arrays(arrays, schema=_FLAT)


def key_in_words(benchmark: str, model: str, item: str, attempt: int) -> str:
    """Name a response."""
    return f"model {model!r}, item {item!r} of {benchmark!r}, attempt {attempt}"


def _shown(score: float) -> str:
    return "no verdict" if np.isnan(score) else f"{score:g}"


__all__ = ["APPLICATION", "Outcome", "commit_batch", "key_in_words", "merge_settings"]
