"""Judged rows as one row a model and benchmark, with its answers as arrays: what is shuffled instead of rows.

A response is three names, a number, a score and a date, and a leaderboard has millions of them. Names are told once by
each task; in the arrays a 64-bit hash stands for an item and for a file. A model's answers to a benchmark are then four
arrays of numbers, and most of these are constant, which is one number.

Two names with one hash would become one item or file. That has a probability of about 3e-8 for a million names, and is
looked for every time: with another salt the hashes are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from cbmm_spark.readers.rows import Rows
from cbmm_spark.responses.rules import NO_DATE, Coded, Judged

I64 = npt.NDArray[np.int64]

ANSWERS, ITEM, MEMBERS, SOURCE = "answers", "item", "members", "source"
COUNT, REFUSED, PART = "count", "refused", "part"
"""Kinds of encoded rows."""

ENCODED = pa.schema(
    [
        ("kind", pa.string()),
        ("benchmark", pa.string()),  # answers, item, members
        ("name", pa.string()),  # answers: model; item: item; members, source, refused, part: file; count: what
        ("hash", pa.int64()),  # item, source: of the name; refused, part: number of the part
        ("n", pa.int64()),  # answers, source, count, part: rows; refused: position within the part
        ("low", pa.int64()),  # answers: lowest attempt; item: smallest hash of its contents
        ("high", pa.int64()),  # answers: highest attempt; item: largest hash of its contents
        ("reason", pa.string()),  # refused
        ("raw", pa.string()),  # refused
        ("items", pa.binary()),  # answers, as the next four: one value a row, or one for all; members: each item once
        ("attempts", pa.binary()),
        ("scores", pa.binary()),
        ("dates", pa.binary()),
        ("sources", pa.binary()),  # answers; members: hashes of models, each once
    ]
)
"""One schema for all that a task tells; what a kind does not have is null."""

SPARK_SCHEMA = (
    "kind string, benchmark string, name string, hash long, n long, low long, high long, reason string, raw string, "
    "items binary, attempts binary, scores binary, dates binary, sources binary"
)

ROWS_HELD = 1 << 21
"""Rows that a task holds before it tells them."""

_SPARK_SEED = 42
_ONE_SMALL, _SMALL, _ONE, _FULL = 0, 1, 2, 3
_NO_VERDICT = 2  # beside 0 and 1


def name_hash(name: str, salt: int = 0) -> int:
    """Return a signed 64-bit hash of a name; with salt 0 it is Spark's `xxhash64`."""
    hashed = xxhash.xxh64_intdigest(name.encode("utf-8", "surrogatepass"), seed=_SPARK_SEED + salt)
    return hashed - (1 << 64) if hashed >= 1 << 63 else hashed


# --- arrays as bytes -----------------------------------------------------------------------------------------------
def pack_numbers(values: I64) -> bytes:
    """Numbers as bytes; one number where all are equal."""
    if values.size and (values[0] == values).all():
        return bytes([_ONE]) + values[:1].tobytes()
    return bytes([_FULL]) + values.tobytes()


def pack_each(values: I64) -> bytes:
    """Numbers as bytes, each of them."""
    return values.tobytes()


def pack_scores(scores: npt.NDArray[np.float64]) -> bytes:
    """Scores as bytes: a byte each where all are right, wrong or without a verdict."""
    small = np.where(np.isnan(scores), float(_NO_VERDICT), scores)
    is_small = (small == 0) | (small == 1) | (small == _NO_VERDICT)
    if is_small.all():
        codes = small.astype(np.uint8)
        return bytes([_ONE_SMALL]) + codes[:1].tobytes() if (codes == codes[0]).all() else _small_bytes(codes)
    return bytes([_FULL]) + scores.tobytes()


def _small_bytes(codes: npt.NDArray[np.uint8]) -> bytes:
    return bytes([_SMALL]) + codes.tobytes()


def unpack_numbers(packed: bytes | memoryview, n: int) -> I64:
    """The n numbers that `pack_numbers` was given."""
    values = np.frombuffer(packed, dtype=np.int64, offset=1)
    return np.full(n, values[0]) if packed[0] == _ONE else values


def unpack_scores(packed: bytes | memoryview, n: int) -> npt.NDArray[np.float64]:
    """The n scores that `pack_scores` was given."""
    if packed[0] == _FULL:
        return np.frombuffer(packed, dtype=np.float64, offset=1)
    codes = np.frombuffer(packed, dtype=np.uint8, offset=1)
    return np.array([0.0, 1.0, np.nan])[np.full(n, codes[0]) if packed[0] == _ONE_SMALL else codes]


# --- the encoder of a task -----------------------------------------------------------------------------------------
class _Names:
    """The names that a task has met, numbered from 0, and their hashes."""

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._numbers: dict[str, int] = {}
        self._hashes: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def of(self, column: Coded) -> npt.NDArray[np.int32]:
        """The number of each row's name; that of a null name means nothing."""
        mine = np.zeros(len(column.values) + 1, dtype=np.int32)
        for at, name in enumerate(column.values):
            number = self._numbers.get(name)
            if number is None:
                number = self._numbers[name] = len(self._numbers)
                self._hashes.append(name_hash(name, self._salt))
            mine[at] = number
        return mine[column.codes]

    def hashes(self) -> I64:
        return np.array(self._hashes, dtype=np.int64)


@dataclass
class _Held:
    """Accepted rows of several batches, as numbers."""

    columns: list[Sequence[npt.NDArray[Any]]] = field(default_factory=list)
    rows: int = 0

    def add(self, *columns: npt.NDArray[Any]) -> None:
        self.columns.append(columns)
        self.rows += columns[0].size

    def taken(self) -> list[npt.NDArray[Any]]:
        together = [np.concatenate(parts) for parts in zip(*self.columns, strict=True)]
        self.columns, self.rows = [], 0
        return together


class Encoder:
    """Takes the judged rows of one task and gives encoded ones.

    Parameters
    ----------
    salt
        Of the hashes.
    """

    def __init__(self, salt: int = 0) -> None:
        self._salt = salt
        self._models, self._benchmarks = _Names(salt), _Names(salt)
        self._items, self._sources = _Names(salt), _Names(salt)
        self._held = _Held()
        self._contents: dict[tuple[int, int], tuple[int, int]] = {}
        self._met: dict[tuple[str, int, int], npt.NDArray[np.bool_]] = {}
        self._counts: Counter[str] = Counter()
        self._rows_of: Counter[str] = Counter()

    def add(self, rows: Rows, judged: Judged, part: int = 0) -> Iterator[pa.RecordBatch]:
        """Take rows in; give what has to be told now: refused rows, and answers where many are held."""
        self._counts.update(judged.defaults)
        self._counts.update({f"reason {name}": count for name, count in judged.reasons().items()})
        for code, count in enumerate(np.bincount(judged.source.codes, minlength=len(judged.source.values))):
            self._rows_of[judged.source.values[code]] += int(count)
        refused = judged.refused()
        if refused.size and rows.raw is not None:
            yield refused_rows(rows, judged, refused, part)
        self._hold(judged)
        if self._held.rows >= ROWS_HELD:
            yield from self._answers()

    def _hold(self, judged: Judged) -> None:
        good = judged.is_accepted
        everything = bool(good.all())

        def kept(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return values if everything else values[good]

        benchmark, item = kept(self._benchmarks.of(judged.benchmark)), kept(self._items.of(judged.item))
        if not benchmark.size:
            return
        model, source = kept(self._models.of(judged.model)), kept(self._sources.of(judged.source))
        self._meet(benchmark, source, item, model)
        if judged.content is not None:
            codes = kept(judged.content.codes)
            self._look_at_contents(benchmark, item, codes, judged.content.values)
        columns = (model, benchmark, item, source, kept(judged.attempt), kept(judged.score), kept(judged.date))
        self._held.add(*columns)

    def _meet(self, *codes: npt.NDArray[np.int32]) -> None:
        """Note which items and models each file has, by benchmark."""
        benchmark, source, item, model = codes
        group = source.astype(np.int64) * len(self._benchmarks) + benchmark
        changes = np.flatnonzero(group[1:] != group[:-1])
        groups = [int(group[0])] if not changes.size else np.unique(group).tolist()
        for each in groups:
            mine = slice(None) if len(groups) == 1 else group == each
            key = divmod(each, len(self._benchmarks))
            for kind, numbers, size in ((ITEM, item, len(self._items)), (ANSWERS, model, len(self._models))):
                met = self._met.get((kind, *key), np.zeros(0, dtype=np.bool_))
                if met.size < size:
                    met = np.concatenate([met, np.zeros(size - met.size, dtype=np.bool_)])
                met[numbers[mine]] = True
                self._met[kind, key[0], key[1]] = met

    def _look_at_contents(
        self,
        benchmark: npt.NDArray[np.int32],
        item: npt.NDArray[np.int32],
        content: npt.NDArray[np.int32],
        texts: Sequence[str],
    ) -> None:
        """Keep the smallest and the largest hash of each item's contents."""
        told = content >= 0
        if not told.any():
            return
        hashes = np.array([name_hash(text) for text in texts], dtype=np.int64)
        triples = np.unique(np.stack([benchmark[told], item[told], content[told]], axis=1), axis=0)
        for bench, number, code in triples.tolist():
            value = int(hashes[code])
            low, high = self._contents.get((bench, number), (value, value))
            self._contents[bench, number] = (min(low, value), max(high, value))

    def _answers(self) -> Iterator[pa.RecordBatch]:
        """One row a model and benchmark of the held rows."""
        if not self._held.rows:
            return
        model, benchmark, item, source, attempt, score, date = self._held.taken()
        hashes, of_sources = self._items.hashes(), self._sources.hashes()
        rank = np.empty(hashes.size, dtype=np.int64)
        rank[np.argsort(hashes, kind="stable")] = np.arange(hashes.size)
        group = model.astype(np.int64) * len(self._benchmarks) + benchmark
        place = group * hashes.size + rank[item]
        if (place[1:] < place[:-1]).any():
            order = np.argsort(place, kind="stable")
            group, item, source = group[order], item[order], source[order]
            attempt, score, date = attempt[order], score[order], date[order]
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        ends = np.append(starts[1:], group.size)
        models, benchmarks = list(self._models), list(self._benchmarks)
        told = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            number, bench = divmod(int(group[start]), len(self._benchmarks))
            tried = attempt[start:end].astype(np.int64)
            told.append(
                {
                    "kind": ANSWERS,
                    "benchmark": benchmarks[bench],
                    "name": models[number],
                    "n": end - start,
                    "low": int(tried.min()),
                    "high": int(tried.max()),
                    "items": pack_numbers(hashes[item[start:end]]),
                    "attempts": pack_numbers(tried),
                    "scores": pack_scores(score[start:end]),
                    "dates": pack_numbers(date[start:end]),
                    "sources": pack_numbers(of_sources[source[start:end]]),
                }
            )
        yield from encoded(told)

    def part_done(self, source: str, number: int, rows: int) -> pa.RecordBatch:
        """Tell how many rows a part of a file has, for positions in later parts."""
        return next(encoded([{"kind": PART, "name": source, "hash": number, "n": rows}]))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Tell the rest: answers, names, counts."""
        yield from self._answers()
        hashes, names = self._items.hashes(), list(self._items)
        models, sources, benchmarks = self._models.hashes(), list(self._sources), list(self._benchmarks)
        by_benchmark: dict[int, npt.NDArray[np.bool_]] = {}
        members = []
        for (kind, source, bench), met in self._met.items():
            if kind != ITEM:
                continue
            its_models = np.flatnonzero(self._met[ANSWERS, source, bench])
            members.append(
                {"kind": MEMBERS, "benchmark": benchmarks[bench], "name": sources[source],
                 "items": pack_each(hashes[np.flatnonzero(met)]), "sources": pack_each(models[its_models])}
            )  # fmt: skip
            all_met = by_benchmark.setdefault(bench, np.zeros(len(names), dtype=np.bool_))
            all_met[: met.size] |= met
        yield from encoded(members)
        for bench, met in by_benchmark.items():
            told = []
            for number in np.flatnonzero(met).tolist():
                low, high = self._contents.get((bench, number), (None, None))
                told.append(
                    {"kind": ITEM, "benchmark": benchmarks[bench], "name": names[number],
                     "hash": int(hashes[number]), "low": low, "high": high}
                )  # fmt: skip
            yield from encoded(told)
        counted = [{"kind": COUNT, "name": name, "n": count} for name, count in self._counts.items()]
        files = [
            {"kind": SOURCE, "name": name, "hash": name_hash(name, self._salt), "n": count}
            for name, count in self._rows_of.items()
        ]
        yield from encoded([*counted, *files])


def refused_rows(rows: Rows, judged: Judged, numbers: I64, part: int, reason: str | None = None) -> pa.RecordBatch:
    """Encode rows for quarantine.

    Parameters
    ----------
    rows, judged
        The same rows, as read and as judged.
    numbers
        Which of them.
    part
        Number of the part of the file that they are from.
    reason
        Why, where it is not `judged` that says it.
    """
    assert rows.raw is not None
    texts = rows.raw(numbers)
    return next(
        encoded(
            [
                {
                    "kind": REFUSED,
                    "name": judged.source.values[judged.source.codes[number]],
                    "hash": part,
                    "n": None if rows.position is None or rows.position[number] < 0 else int(rows.position[number]),
                    "reason": judged.reason_of(number) if reason is None else reason,
                    "raw": text,
                }
                for number, text in zip(numbers.tolist(), texts, strict=True)
            ]
        )
    )


def encoded(told: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Rows as a batch of `ENCODED`; none where there are none."""
    if told:
        columns = [pa.array([row.get(name) for row in told], ENCODED.field(name).type) for name in ENCODED.names]
        yield pa.RecordBatch.from_arrays(columns, schema=ENCODED)


__all__ = ["ENCODED", "NO_DATE", "SPARK_SCHEMA", "Encoder", "encoded", "name_hash", "refused_rows"]
