"""Sums per model on their way from the item partitions to the driver: cut into chunks, and checked to be whole.

An item partition sends, for every scale it holds a block of, one row for each chunk of `MODEL_CHUNK` models and one row
for each thing that is not by model (`TOTALS`, `LABELS`, `ITEMS`). All rows of a scale and chunk are combined into one,
which the driver puts in its place. A row that does not arrive would leave a hole there that looks like numbers, so the
driver counts first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cbmm_spark.errors import CbmmError
from cbmm_spark.kernels.model import F64

MODEL_CHUNK = 4096
"""Models whose sums are shuffled as one row."""

TOTALS, LABELS, ITEMS = -1, -2, -3
"""Chunk numbers of the rows that carry no models: totals, every model's component, item parameters."""

TOLD = 5
"""Scales, and faults of each, that a message names; more of them are counted."""

_WORDS = {TOTALS: "the totals", LABELS: "the components", ITEMS: "the item parameters"}

SUMS_SCHEMA = "scale string, chunk int, source int, payload binary"


class Summed(NamedTuple):
    """What all item partitions together say of one chunk of a scale.

    Attributes
    ----------
    scale, chunk
        Which.
    partitions
        How many item partitions had a part in it.
    values
        The numbers, float64: for a chunk of models one row of them after the other.
    """

    scale: str
    chunk: int
    partitions: int
    values: F64


def models_of(chunk: int) -> slice:
    """Return the places of a chunk's models among the scale's."""
    return slice(chunk * MODEL_CHUNK, (chunk + 1) * MODEL_CHUNK)


def chunk_rows(scale: str, arrays: Sequence[F64], totals: F64, source: int) -> Iterator[pa.RecordBatch]:
    """Cut per-model arrays into rows of `MODEL_CHUNK` models each, and add the row of totals."""
    for chunk, start in enumerate(range(0, arrays[0].size, MODEL_CHUNK)):
        yield sums_row(scale, chunk, source, np.concatenate([x[start : start + MODEL_CHUNK] for x in arrays]))
    yield sums_row(scale, TOTALS, source, totals)


def sums_row(scale: str, chunk: int, source: int, values: F64) -> pa.RecordBatch:
    """Return one row of `SUMS_SCHEMA`; `source` is the partition, or of combined rows the number of partitions."""
    return pa.RecordBatch.from_pydict(
        {
            "scale": pa.array([scale], pa.string()),
            "chunk": pa.array([chunk], pa.int32()),
            "source": pa.array([source], pa.int32()),
            "payload": pa.array([values.astype("<f8", copy=False).tobytes()], pa.binary()),
        }
    )


def read_summed(table: pa.Table) -> list[Summed]:
    """Return combined rows, ordered by scale and chunk."""
    rows = [
        Summed(row["scale"], row["chunk"], row["source"], np.frombuffer(row["payload"], dtype="<f8"))
        for row in table.to_pylist()  # a row is a chunk of models
    ]
    return sorted(rows, key=lambda row: row[:2])


def check_whole(rows: Iterable[Summed], scales: Mapping[str, int], arrays: int, others: Sequence[int]) -> None:
    """Make sure that every number of some scales has arrived, once and from every partition.

    Parameters
    ----------
    rows
        What arrived.
    scales
        Number of models by scale; all of them must be there. A scale without models may have no row.
    arrays
        Numbers a model has.
    others
        The rows that carry no models which each scale must have (`TOTALS`, `LABELS`, `ITEMS`).

    Raises
    ------
    CbmmError
        Naming the scales, and their models that are missing.
    """
    found: dict[str, list[Summed]] = {scale: [] for scale in scales}
    for row in rows:
        if row.scale in found:
            found[row.scale].append(row)
    faults = []
    for scale, size in scales.items():
        said = _faults_of(found[scale], size, arrays, others)
        if said:
            more = f", and {len(said) - TOLD:,} more" if len(said) > TOLD else ""
            faults.append(f"scale {scale}: {', '.join(said[:TOLD])}{more}")
    if faults:
        more = f"; and {len(faults) - TOLD:,} more scales" if len(faults) > TOLD else ""
        raise CbmmError(
            f"sums of the fit did not arrive whole: {'; '.join(faults[:TOLD])}{more}. Nothing was made of them. "
            "Run the command again; if this comes back, it is a fault of cbmm-spark: please report it with Spark's log"
        )


def _faults_of(rows: Sequence[Summed], size: int, arrays: int, others: Sequence[int]) -> list[str]:
    """Say what is wrong with the rows of one scale of `size` models."""
    if not rows and not size:
        return []
    chunks = range(-(-size // MODEL_CHUNK))
    count = dict.fromkeys((*others, *chunks), 0)
    faults = []
    most = max((row.partitions for row in rows), default=0)
    for row in rows:
        name = _name_of(row.chunk, size)
        if row.chunk not in count:
            faults.append(f"{name}, which it does not have, arrived")
            continue
        count[row.chunk] += 1
        if row.chunk >= 0 and row.values.size != arrays * len(range(size)[models_of(row.chunk)]):
            faults.append(f"{name} came with {row.values.size:,} numbers")
        if row.partitions != most:
            faults.append(f"{name} came from {row.partitions} of {most} partitions")
    faults += [f"{_name_of(chunk, size)} came {times} times" for chunk, times in count.items() if times > 1]
    return faults + [f"{_name_of(chunk, size)} are missing" for chunk, times in count.items() if not times]


def _name_of(chunk: int, size: int) -> str:
    if chunk < 0:
        return _WORDS.get(chunk, f"chunk {chunk}")
    first = chunk * MODEL_CHUNK
    return f"models {first + 1:,} to {max(min(first + MODEL_CHUNK, size), first + 1):,} of {size:,}"
