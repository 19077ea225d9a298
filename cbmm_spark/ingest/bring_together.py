"""Where encoded answers meet those that are stored: one shuffle of a row a model and benchmark, then `reconcile`.

A task holds all answers of some models to the benchmarks of a bucket. It gives, for each model and benchmark, what is
to be written and what became of the rest; and for each item the dates of what is to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.ingest.buckets import bucket_of_benchmark
from cbmm_spark.responses.batch import Batch
from cbmm_spark.responses.encode import ANSWERS, pack_numbers, pack_scores, unpack_numbers, unpack_scores
from cbmm_spark.responses.reconcile import (
    BECAME,
    CORRECTED,
    NEW,
    REDATED,
    SUPERSEDED,
    Answers,
    Compared,
    Decided,
    compare,
    decide,
    place_of,
    sorted_by_place,
    together,
)
from cbmm_spark.responses.rules import NO_DATE
from cbmm_spark.tables import BENCHMARK_BUCKETS, Warehouse

I64 = npt.NDArray[np.int64]

ROWS_A_TASK = 500_000
"""About how many rows of a batch one task brings together and writes."""

PAIR, DATES = "pair", "dates"
"""Kinds of rows: of a model and benchmark; of the dates of some items."""

COUNTS = ("rows", "keys", "missing", "answered", *BECAME, "other_attempts", "undecided_rows")
"""Of a pair: rows of decided keys, keys, keys without a verdict, items with one, keys by what became of them, rows of
attempts that do not count, rows of keys that nobody can decide."""

_ARRAYS = ("places", "scores", "dates", "sources", "became", "old_scores", "open", "several", "differs")
_LATEST = np.iinfo(np.int64).max
_ITEMS_A_ROW = 1 << 16
_MODELS_BY_NUMBER = 500  # up to so many models the comparison lists their numbers, above it gives a range

TOGETHER = pa.schema(
    [
        ("kind", pa.string()),
        ("benchmark", pa.string()),
        ("name", pa.string()),  # pair: the model
        ("chunk", pa.int64()),  # dates: which items
        *((name, pa.int64()) for name in COUNTS),
        ("first_date", pa.int64()),  # pair: of what is to be written
        ("last_date", pa.int64()),
        ("n", pa.int64()),  # values in each array; pair: what is to be written
        *((name, pa.binary()) for name in _ARRAYS),
    ]
)
"""Arrays of a pair: places (of `reconcile`, items by their number in the batch) and what belongs to them, of keys that
are to be written; `open`, `several` and `differs` hold places that a rule refuses. Of dates: places are items, `dates`
and `old_scores` their first and last dates."""

_SPARK_SCHEMA = ", ".join(
    f"{field.name} {'string' if field.type == pa.string() else 'binary' if field.type == pa.binary() else 'long'}"
    for field in TOGETHER
)
_INPUT = ("kind", "benchmark", "name", "n", "items", "attempts", "scores", "dates", "sources")
_STORED_SCHEMA = ("kind string, benchmark string, name string, n long, items binary, attempts binary, scores binary, "
                  "dates binary, sources binary")  # fmt: skip
_STORED = "stored"


@dataclass(frozen=True)
class Stored:
    """What is stored of a batch's names.

    Attributes
    ----------
    models
        Numbers of the models that have one.
    item_index
        By the number in the batch: `items.item_index`, 0 where it has none.
    """

    models: Mapping[str, int]
    item_index: npt.NDArray[np.int32]

    def batch_number_of(self, batch: Batch) -> dict[str, npt.NDArray[np.int32]]:
        """By benchmark: an array that gives, at an item's stored number, its number in the batch, −1 where it has
        none."""
        found = {}
        for benchmark, items in batch.items.items():
            numbers = self.item_index[items.first : items.first + len(items.names)]
            inverse = np.full(int(numbers.max(initial=0)) + 1, -1, dtype=np.int32)
            known = numbers > 0
            inverse[numbers[known]] = np.flatnonzero(known) + items.first
            found[benchmark] = inverse
        return found


@dataclass(frozen=True)
class Slots:
    """How answers are spread among tasks: by bucket, and by model where a bucket has more than a task's rows.

    A task then writes few files, and as many of them as a bucket needs.
    """

    first: Sequence[int]
    slices: Sequence[int]

    @classmethod
    def of(cls, batch: Batch) -> Slots:
        rows = [0] * BENCHMARK_BUCKETS
        for (benchmark, _), pair in batch.pairs.items():
            rows[batch.buckets[benchmark]] += pair.rows
        slices = [-(-n // ROWS_A_TASK) for n in rows]
        # Small buckets share tasks.
        first, reached, filled = [], 0, 0
        for n, parts in zip(rows, slices, strict=True):
            if parts <= 1 and filled + n <= ROWS_A_TASK:
                first.append(max(0, reached - 1) if filled else reached)
                reached += not filled
                filled += n
            else:
                first.append(reached)
                reached += max(1, parts)
                filled = n if parts <= 1 else ROWS_A_TASK
        return cls(first, [max(1, parts) for parts in slices])

    @property
    def n(self) -> int:
        """Number of tasks."""
        return max(first + parts for first, parts in zip(self.first, self.slices, strict=True))

    def of_row(self) -> Column:
        """The slot of a row with a benchmark and a model's name."""
        bucket = bucket_of_benchmark() + 1
        first, slices = (F.element_at(F.array(*map(F.lit, each)), bucket) for each in (self.first, self.slices))
        return (first + F.pmod(F.xxhash64("name"), slices)).cast("int")


def bring_together(
    warehouse: Warehouse, encoded: DataFrame, batch: Batch, stored: Stored, rules: IngestConfig, left: Sequence[str]
) -> DataFrame:
    """Compare an input with what is stored: `TOGETHER`, not persisted.

    Parameters
    ----------
    warehouse
        What is stored.
    encoded, batch
        The input.
    stored
        Numbers of its names.
    rules
        For duplicates and attempts.
    left
        Benchmarks that are counted and not to be written.
    """
    rows = encoded.where(F.col("kind") == ANSWERS).select(*_INPUT)
    beside = _stored_answers(warehouse, batch, stored)
    if beside is not None:
        rows = rows.unionByName(beside)
    slots = Slots.of(batch)
    hashes = {benchmark: items.hashes for benchmark, items in batch.items.items()}
    first = {benchmark: items.first for benchmark, items in batch.items.items()}
    task = _Together(hashes, first, rules, frozenset(left))
    return rows.repartitionById(slots.n, slots.of_row()).mapInArrow(task, _SPARK_SCHEMA)


def _stored_answers(warehouse: Warehouse, batch: Batch, stored: Stored) -> DataFrame | None:
    """The stored answers of the batch's models to its benchmarks, a row each; None where there can be none."""
    known = sorted(stored.models.values())
    if not known or not warehouse.exists("responses"):
        return None
    index = F.col("model_index")
    is_short = len(known) <= _MODELS_BY_NUMBER
    numbers = index.isin(known) if is_short else index.between(known[0], known[-1])
    # Both conditions skip files: buckets are partitions, and files are written in the order of the models.
    buckets = F.col("benchmark_bucket").isin(sorted({batch.buckets[name] for name in batch.items}))
    rows = warehouse.read("responses").where(numbers & buckets & F.col("benchmark").isin(list(batch.items)))
    narrow = rows.select(
        "benchmark", "model_index", "item_index", "attempt", "score", F.unix_micros("evaluated_at").alias("date")
    )
    names = {number: name for name, number in stored.models.items()}
    return narrow.mapInArrow(_GroupStored(names, stored.batch_number_of(batch)), _STORED_SCHEMA)


@dataclass(frozen=True)
class _GroupStored:
    """Runs on a machine: takes stored rows, gives one row for those of a model and benchmark that stand together."""

    models: Mapping[int, str]
    number_of: Mapping[str, npt.NDArray[np.int32]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from self._grouped(batch)

    def _grouped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        coded = batch.column("benchmark").dictionary_encode()
        benchmark = coded.indices.to_numpy()
        model, item = batch.column("model_index").to_numpy(), batch.column("item_index").to_numpy()
        attempt = batch.column("attempt").to_numpy().astype(np.int64)
        score = batch.column("score").fill_null(np.nan).to_numpy()
        date = batch.column("date").fill_null(NO_DATE).to_numpy()
        changes = (model[1:] != model[:-1]) | (benchmark[1:] != benchmark[:-1])
        starts = np.flatnonzero(np.concatenate([[True], changes]))
        ends = np.append(starts[1:], model.size)
        told = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            name = self.models.get(int(model[start]))
            if name is None:
                continue
            bench = coded.dictionary[int(benchmark[start])].as_py()
            inverse = self.number_of[bench]
            stored = item[start:end]
            number = np.where(stored < inverse.size, inverse[np.minimum(stored, inverse.size - 1)], -1)
            mine = number >= 0
            if not mine.any():
                continue
            places = place_of(number[mine].astype(np.int64), attempt[start:end][mine])
            told.append(
                {"kind": _STORED, "benchmark": bench, "name": name, "n": places.size, "items": pack_numbers(places),
                 "scores": pack_scores(score[start:end][mine]), "dates": pack_numbers(date[start:end][mine])}
            )  # fmt: skip
        if told:
            yield _batch_of(told, _STORED_ARROW)


_STORED_ARROW = pa.schema(
    [(name, pa.string() if name in ("kind", "benchmark", "name") else pa.int64() if name == "n" else pa.binary())
     for name in _INPUT]
)  # fmt: skip


def _batch_of(told: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row.get(name) for row in told], schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class _Together:
    """Runs on a machine: takes all answers of some models to some benchmarks, from everywhere, and reconciles them."""

    hashes: Mapping[str, I64]
    first: Mapping[str, int]
    rules: IngestConfig
    left: frozenset[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given: dict[tuple[str, str], list[Answers]] = {}
        stored: dict[tuple[str, str], list[Answers]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                key = (row["benchmark"], row["name"])
                if row["kind"] == _STORED:
                    stored.setdefault(key, []).append(_stored_of(row))
                else:
                    given.setdefault(key, []).append(self._answers_of(row))
        dates = _ItemDates({name: hashes.size for name, hashes in self.hashes.items()}, self.first)
        for key in sorted(given):
            yield _batch_of([self._pair(key, given.pop(key), stored.pop(key, []), dates)], TOGETHER)
        yield from dates.rows()

    def _answers_of(self, row: Mapping[str, Any]) -> Answers:
        n, benchmark = row["n"], row["benchmark"]
        item = np.searchsorted(self.hashes[benchmark], unpack_numbers(row["items"], n)) + self.first[benchmark]
        return Answers(
            place=place_of(item, unpack_numbers(row["attempts"], n)),
            score=unpack_scores(row["scores"], n),
            date=unpack_numbers(row["dates"], n),
            source=unpack_numbers(row["sources"], n),
            rows=np.ones(n, dtype=np.int64),
        )

    def _pair(
        self, key: tuple[str, str], given: list[Answers], stored: list[Answers], dates: _ItemDates
    ) -> dict[str, Any]:
        benchmark, model = key
        decided = decide(together(given), self.rules.duplicates, self.rules.attempts)
        answers = decided.answers
        row = {"kind": PAIR, "benchmark": benchmark, "name": model, **_counted(decided)}
        if benchmark in self.left:
            return row
        old = sorted_by_place(together(stored)) if stored else None
        compared = compare(answers, old, self.rules.duplicates)
        counts = np.bincount(compared.became, minlength=len(BECAME))
        row |= {name: int(counts[code]) for code, name in enumerate(BECAME)}
        if self.rules.duplicates == "error":
            differs = np.isin(compared.became, (CORRECTED, SUPERSEDED))
            row["differs"] = pack_numbers(answers.place[differs]) if differs.any() else None
        changes = np.isin(compared.became, (NEW, CORRECTED, REDATED))
        written = compared.answers.take(changes)
        dates.widen(benchmark, written)
        return row | _written(written, compared, changes)


def _stored_of(row: Mapping[str, Any]) -> Answers:
    n = row["n"]
    nothing = np.zeros(n, dtype=np.int64)
    places = unpack_numbers(row["items"], n)
    return Answers(places, unpack_scores(row["scores"], n), unpack_numbers(row["dates"], n), nothing, nothing)


def _counted(decided: Decided) -> dict[str, Any]:
    answers = decided.answers
    has_verdict = ~np.isnan(answers.score)
    return {
        "rows": int(answers.rows.sum()),
        "keys": len(answers),
        "missing": int((~has_verdict).sum()),
        "answered": int(np.unique(answers.item[has_verdict]).size),
        "other_attempts": decided.other_attempts,
        "undecided_rows": int(decided.undecided.rows.sum()),
        "open": pack_numbers(decided.undecided.place) if len(decided.undecided) else None,
        "several": pack_numbers(decided.several) if decided.several.size else None,
    } | dict.fromkeys(BECAME, 0)


def _written(written: Answers, compared: Compared, changes: npt.NDArray[np.bool_]) -> dict[str, Any]:
    if not len(written):
        return {"n": 0}
    first, last = _extremes(written.date)
    return {
        "n": len(written),
        "first_date": first,
        "last_date": last,
        "places": pack_numbers(written.place),
        "scores": pack_scores(written.score),
        "dates": pack_numbers(written.date),
        "sources": pack_numbers(written.source),
        "became": pack_numbers(compared.became[changes].astype(np.int64)),
        "old_scores": pack_scores(compared.old_score[changes]),
    }


def _extremes(date: I64) -> tuple[int | None, int | None]:
    told = date[date != NO_DATE]
    return (int(told.min()), int(told.max())) if told.size else (None, None)


class _ItemDates:
    """The first and the last date of each item, of what is to be written."""

    def __init__(self, sizes: Mapping[str, int], first: Mapping[str, int]) -> None:
        self._sizes, self._first = sizes, first
        self._low: dict[str, I64] = {}
        self._high: dict[str, I64] = {}
        self._met: dict[str, npt.NDArray[np.bool_]] = {}

    def widen(self, benchmark: str, written: Answers) -> None:
        if not len(written):
            return
        if benchmark not in self._low:
            self._low[benchmark] = np.full(self._sizes[benchmark], _LATEST)
            self._high[benchmark] = np.full(self._sizes[benchmark], NO_DATE)
            self._met[benchmark] = np.zeros(self._sizes[benchmark], dtype=np.bool_)
        at = written.item - self._first[benchmark]
        self._met[benchmark][at] = True
        low = np.where(written.date == NO_DATE, _LATEST, written.date)
        if (np.diff(at) > 0).all():  # each item once
            self._low[benchmark][at] = np.minimum(self._low[benchmark][at], low)
            self._high[benchmark][at] = np.maximum(self._high[benchmark][at], written.date)
        else:
            np.minimum.at(self._low[benchmark], at, low)
            np.maximum.at(self._high[benchmark], at, written.date)

    def rows(self) -> Iterator[pa.RecordBatch]:
        for benchmark in self._low:
            met = np.flatnonzero(self._met[benchmark])
            items = met + self._first[benchmark]
            low, high = self._low[benchmark][met], self._high[benchmark][met]
            chunks = items // _ITEMS_A_ROW
            for chunk in np.unique(chunks).tolist():
                mine = chunks == chunk
                yield date_row(benchmark, chunk, items[mine], low[mine], high[mine])


def date_row(benchmark: str, chunk: int, items: I64, low: I64, high: I64) -> pa.RecordBatch:
    """Dates of some items as a row of `TOGETHER`."""
    return _batch_of(
        [
            {"kind": DATES, "benchmark": benchmark, "chunk": chunk, "n": items.size, "places": pack_numbers(items),
             "dates": pack_numbers(low), "old_scores": pack_numbers(high)}
        ],
        TOGETHER,
    )  # fmt: skip


def merged_dates(rows: DataFrame) -> DataFrame:
    """Bring the dates of each chunk of items together, where they are: as many rows as there are chunks."""
    dates = rows.where(F.col("kind") == DATES)
    return dates.repartition("benchmark", "chunk").mapInArrow(_merge_dates, _SPARK_SCHEMA)


def _merge_dates(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: dict[tuple[str, int], tuple[I64, I64, I64]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = (row["benchmark"], row["chunk"])
            found = item_dates(row)
            held[key] = found if key not in held else reduce(_merged, [found], held[key])
    for (benchmark, chunk), (items, low, high) in held.items():
        yield date_row(benchmark, chunk, items, low, high)


def item_dates(row: Mapping[str, Any]) -> tuple[I64, I64, I64]:
    """Items, first and last dates of a row of dates."""
    n = row["n"]
    return unpack_numbers(row["places"], n), unpack_numbers(row["dates"], n), unpack_numbers(row["old_scores"], n)


def _merged(one: tuple[I64, I64, I64], other: tuple[I64, I64, I64]) -> tuple[I64, I64, I64]:
    items, at = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    low, high = np.full(items.size, _LATEST), np.full(items.size, NO_DATE)
    np.minimum.at(low, at, np.concatenate([one[1], other[1]]))
    np.maximum.at(high, at, np.concatenate([one[2], other[2]]))
    return items, low, high
