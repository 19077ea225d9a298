"""What the driver knows of a batch: its names with their numbers within the batch, and its counts. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cbmm_spark.readers.rows import LEFT_OUT
from cbmm_spark.responses.encode import ANSWERS, COUNT, ITEM, MEMBERS, PART, REFUSED, SOURCE, name_hash
from cbmm_spark.responses.members import Members

I64 = npt.NDArray[np.int64]

OTHER_ATTEMPT = "other_attempt"
"""Why rows are left out whose attempt is not the one that `ingest.attempts` takes."""

STOPPED = "stopped_benchmark"
"""Why rows are left out of whose benchmark an item has two contents."""

_REASON = "reason "


class HashCollisionError(Exception):
    """Two names have one hash: encode the batch anew with another salt."""


@dataclass(frozen=True)
class BenchmarkItems:
    """The items of one benchmark in a batch, n of them, in the order of their hashes.

    Attributes
    ----------
    first
        Number of the first of them within the batch; they are numbered one after the other.
    hashes
        Ascending.
    names
        Their names.
    low, high
        The smallest and the largest hash of the contents of each; `has_content` says of which they are known.
    """

    first: int
    hashes: I64
    names: Sequence[str]
    low: I64
    high: I64
    has_content: npt.NDArray[np.bool_]

    def numbers(self) -> range:
        """Their numbers within the batch."""
        return range(self.first, self.first + len(self.names))


@dataclass(frozen=True)
class Pair:
    """A model's rows of one benchmark before duplicates are brought together: rows, lowest and highest attempt."""

    rows: int
    low: int
    high: int


@dataclass(frozen=True)
class Batch:
    """An input, read and judged.

    Attributes
    ----------
    path
        The input.
    items
        By benchmark, in the order of their names.
    pairs
        By benchmark and model.
    models
        Names, sorted; a model's number within the batch is its place here.
    buckets
        Bucket of each benchmark.
    members
        Models and items of each file.
    sources
        Rows by file, and the hash of its name.
    rows_before
        By file and part, the rows of the file before the part.
    read
        Rows of the input.
    reasons
        Rows that were refused by themselves or left out, by reason.
    defaults
        What was assumed about how many rows.
    """

    path: str
    items: Mapping[str, BenchmarkItems]
    pairs: Mapping[tuple[str, str], Pair]
    models: Sequence[str]
    buckets: Mapping[str, int]
    members: Members
    sources: Mapping[str, tuple[int, int]]
    rows_before: Mapping[tuple[str, int], int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        """Rows of the input, acceptable or not."""
        return sum(rows for rows, _ in self.sources.values())

    @property
    def valid(self) -> int:
        """Rows that are responses by themselves."""
        return sum(pair.rows for pair in self.pairs.values())

    @property
    def n_items(self) -> int:
        """Items of all benchmarks."""
        return sum(len(items.names) for items in self.items.values())

    @property
    def left_out(self) -> dict[str, int]:
        """Records that are no responses by the source's own design."""
        return {name: self.reasons[name] for name in LEFT_OUT if name in self.reasons}

    @property
    def refused(self) -> int:
        """Rows for quarantine, without those of keys that nobody can decide."""
        return sum(count for name, count in self.reasons.items() if name not in LEFT_OUT)

    def item_names(self) -> list[str]:
        """Names of all items, by their numbers within the batch."""
        return [name for items in self.items.values() for name in items.names]


def batch_of(path: str, told: pa.Table, salt: int = 0) -> Batch:
    """Make a batch of what the tasks told, brought together by kind, benchmark, name, hash and reason.

    Parameters
    ----------
    path
        The input.
    salt
        Of the hashes.
    told
        kind, benchmark, bucket, name, hash, reason, n (sum), low (smallest), high (largest).

    Raises
    ------
    HashCollisionError
        Two items of a benchmark, or two files, have one hash.
    """
    by_kind = {kind: _rows(told, kind) for kind in (ANSWERS, ITEM, SOURCE, COUNT, PART)}
    items = _items(by_kind[ITEM])
    pairs = _pairs(by_kind[ANSWERS])
    counts = dict(_columns(by_kind[COUNT], "name", "n"))
    sources = {name: (n, hashed) for name, n, hashed in _columns(by_kind[SOURCE], "name", "n", "hash")}
    if len({hashed for _, hashed in sources.values()}) < len(sources):
        raise HashCollisionError
    return Batch(
        path=path,
        items=items,
        pairs=pairs,
        models=sorted({model for _, model in pairs}),
        members=_members(_rows(told, MEMBERS), items, pairs, salt),
        buckets=dict(_columns(by_kind[ANSWERS], "benchmark", "bucket")),
        sources=dict(sorted(sources.items())),
        rows_before=_rows_before(by_kind[PART]),
        reasons={name.removeprefix(_REASON): n for name, n in counts.items() if name.startswith(_REASON)},
        defaults={name: n for name, n in sorted(counts.items()) if not name.startswith(_REASON)},
    )


def _rows(told: pa.Table, kind: str) -> pa.Table:
    return told.filter(pa.compute.equal(told["kind"], kind))


def _columns(table: pa.Table, *names: str) -> Sequence[tuple]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _pairs(answers: pa.Table) -> dict[tuple[str, str], Pair]:
    rows = sorted(_columns(answers, "benchmark", "name", "n", "low", "high"))
    return {(benchmark, model): Pair(n, low, high) for benchmark, model, n, low, high in rows}


def _items(items: pa.Table) -> dict[str, BenchmarkItems]:
    found: dict[str, BenchmarkItems] = {}
    items = items.sort_by([("benchmark", "ascending"), ("hash", "ascending")]).combine_chunks()
    first = 0
    names = items["benchmark"].to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.concatenate([[True], names[1:] != names[:-1]])) if names.size else np.zeros(0, int)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), names.size], strict=False):
        mine = items.slice(start, end - start)
        hashes = mine["hash"].to_numpy()
        if (np.diff(hashes) == 0).any():
            raise HashCollisionError
        low, high = (mine[name].combine_chunks() for name in ("low", "high"))
        found[names[start]] = BenchmarkItems(
            first=first,
            hashes=hashes,
            names=mine["name"].to_pylist(),
            low=low.fill_null(0).to_numpy(zero_copy_only=False),
            high=high.fill_null(0).to_numpy(zero_copy_only=False),
            has_content=np.asarray(low.is_valid()),
        )
        first += end - start
    return found


def _members(
    rows: pa.Table, items: Mapping[str, BenchmarkItems], pairs: Mapping[tuple[str, str], Pair], salt: int = 0
) -> Members:
    model_of = {name_hash(model, salt): model for _, model in pairs}
    models: dict[tuple[str, str], frozenset[str]] = {}
    its_items: dict[tuple[str, str], frozenset[str]] = {}
    for file, benchmark, item_hashes, model_hashes in _columns(rows, "name", "benchmark", "items", "sources"):
        known = items[benchmark]
        places = np.searchsorted(known.hashes, np.frombuffer(item_hashes, dtype=np.int64)).tolist()
        key = (file, benchmark)
        its_items[key] = its_items.get(key, frozenset()) | {known.names[place] for place in places}
        mine = {model_of[hashed] for hashed in np.frombuffer(model_hashes, dtype=np.int64).tolist()}
        models[key] = models.get(key, frozenset()) | mine
    return Members(models, its_items)


def _rows_before(parts: pa.Table) -> dict[tuple[str, int], int]:
    before: dict[tuple[str, int], int] = {}
    last, reached = "", 0
    for source, number, n in sorted(_columns(parts, "name", "hash", "n")):
        reached = 0 if source != last else reached
        before[source, number] = reached
        last, reached = source, reached + n
    return before


__all__ = ["OTHER_ATTEMPT", "REFUSED", "STOPPED", "Batch", "BenchmarkItems", "HashCollisionError", "Pair", "batch_of"]
