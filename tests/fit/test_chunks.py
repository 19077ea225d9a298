"""No number of a fit is made up: what does not arrive from the partitions, whole and once, is named and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cbmm_spark.errors import CbmmError
from cbmm_spark.fit import chunks
from cbmm_spark.fit.chunks import Summed, check_whole, read_summed
from cbmm_spark.fit.spark_blocks import SparkBlocks, combined
from cbmm_spark.kernels.aggregate import ScaleTask
from cbmm_spark.kernels.dated_columns import Lives, Moment
from cbmm_spark.kernels.in_process import count_scales, run_blocks
from cbmm_spark.kernels.model import Ridge
from cbmm_spark.kernels.nodes import make_nodes
from cbmm_spark.kernels.paper import PaperTask, sweep_blocks
from cbmm_spark.packing.tile_codec import ITEM_BLOCK_SCHEMA, encode_bits, read_block
from tests.kernels.layouts import drawn

N_MODELS, N_ITEMS, CHUNK = 25, 12, 10
RIDGE = Ridge(0.2, 0.25, 0.1)
SCALES = {"all": frozenset("ab"), "a": frozenset("a")}


def item_block(benchmark: str, seed: int) -> dict[str, Any]:
    """A row of item blocks: models × items of a 2PL, some cells missing."""
    n, k = drawn(N_MODELS, N_ITEMS, seed, observed=0.9)
    planes = [np.packbits((x > 0).T, axis=1, bitorder="little") for x in (n, k)]
    cells = encode_bits(*planes, N_MODELS, 0.0)
    return {
        "benchmark": benchmark, "item_block": 0, "item_start": 1, "n_items": N_ITEMS,
        "models": np.arange(N_MODELS, dtype="<i4").tobytes(), "encoding": cells.encoding,
        "attempted": cells.attempted, "solved": cells.solved,
    }  # fmt: skip


PARTITIONS = [[item_block("a", 1)], [item_block("b", 2)]]
BLOCKS = [read_block(row) for part in PARTITIONS for row in part]

Change = Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]


SCHEMA = chunks.sums_row("", 0, 0, np.zeros(0)).schema


class Blocks(SparkBlocks):
    """Blocks whose jobs run in this process, with the rows changed that the item partitions send, or the last ones."""

    def __init__(self, sent: Change = list, ended: Change = list, **options: Any) -> None:
        super().__init__(None, None, partitions=2, **options)  # type: ignore[arg-type]
        self.benchmarks = ["a", "b"]
        self.sent, self.ended = sent, ended

    def _job(self, partition: Any, combine: Any, description: str) -> list[Summed]:
        rows = [
            row
            for part in PARTITIONS
            for row in partition(iter([pa.RecordBatch.from_pylist(part, schema=ITEM_BLOCK_SCHEMA)]))
        ]
        ended = list(combined(iter(self.sent(rows)), combine))
        return read_summed(pa.Table.from_batches(self.ended(ended), schema=SCHEMA))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MODEL_CHUNK", CHUNK)


def tasks(mode: str) -> list[ScaleTask]:
    theta = np.random.default_rng(3).normal(size=N_MODELS)
    nodes = make_nodes(theta, 0.2, 32, 96)
    models = np.arange(N_MODELS)
    return [ScaleTask(name, benchmarks, models, theta, nodes, RIDGE, mode) for name, benchmarks in SCALES.items()]


def paper_tasks() -> list[PaperTask]:
    theta = np.random.default_rng(3).normal(size=N_MODELS)
    return [PaperTask(name, here, np.arange(N_MODELS), theta, {}, RIDGE) for name, here in SCALES.items()]


JOBS: dict[str, Callable[[SparkBlocks], Any]] = {
    "count": lambda blocks: blocks.count(SCALES, N_MODELS),
    "nodes": lambda blocks: blocks.run_pass(tasks("nodes")),
    "late": lambda blocks: blocks.run_pass(tasks("late")),
    "sweep": lambda blocks: blocks.run_sweep(paper_tasks()),
}
EVERY = pytest.mark.parametrize("job", JOBS)


def key_of(row: pa.RecordBatch) -> tuple[str, int]:
    return row["scale"][0].as_py(), row["chunk"][0].as_py()


def ended_keys(job: str) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []
    JOBS[job](Blocks(ended=lambda rows: seen.extend(map(key_of, rows)) or rows))
    return seen


def test_whole_sums_are_those_of_one_process() -> None:
    counts, wanted_counts = JOBS["count"](Blocks()), count_scales(BLOCKS, SCALES, N_MODELS)
    for name in SCALES:
        np.testing.assert_allclose(counts[name].sums, wanted_counts[name].sums, rtol=1e-12)
        assert counts[name].n_items == wanted_counts[name].n_items
    for mode in ("nodes", "late"):
        found, wanted = JOBS[mode](Blocks()), run_blocks(BLOCKS, tasks(mode))
        for name in SCALES:
            np.testing.assert_allclose(found[name].models.theta, wanted[name].models.theta, rtol=1e-9, atol=1e-12)
            assert found[name].totals.loss == pytest.approx(wanted[name].totals.loss, rel=1e-12)
    found, wanted = JOBS["sweep"](Blocks()), sweep_blocks(BLOCKS, paper_tasks())
    for name in SCALES:
        np.testing.assert_allclose(found[name].numerator, wanted[name].numerator, rtol=1e-9, atol=1e-12)
        assert found[name].items.keys() == wanted[name].items.keys()


@EVERY
def test_a_row_that_is_not_there_is_named(job: str) -> None:
    keys = ended_keys(job)
    assert len(keys) == len(set(keys)) >= len(SCALES) * 4  # three chunks of models and the totals at least
    for scale, chunk in keys:
        blocks = Blocks(ended=lambda rows, lost=(scale, chunk): [row for row in rows if key_of(row) != lost])
        with pytest.raises(CbmmError, match=rf"scale {scale}: .* are missing") as told:
            JOBS[job](blocks)
        if chunk >= 0:
            assert f"models {chunk * CHUNK + 1} to {min((chunk + 1) * CHUNK, N_MODELS)} of 25" in str(told.value)


@EVERY
def test_a_scale_of_which_nothing_is_there_is_named(job: str) -> None:
    blocks = Blocks(ended=lambda rows: [row for row in rows if key_of(row)[0] != "a"])
    with pytest.raises(CbmmError, match=r"scale a: .*models 1 to 10 of 25 are missing"):
        JOBS[job](blocks)


@EVERY
def test_a_partition_s_part_of_a_chunk_that_is_not_there_is_noticed(job: str) -> None:
    """Sums would only be too small: nothing but the number of partitions tells."""
    lost = ("all", 1)

    def drop_one(rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        place = [key_of(row) for row in rows].index(lost)
        return rows[:place] + rows[place + 1 :]

    with pytest.raises(CbmmError, match=r"scale all: models 11 to 20 of 25 came from 1 of 2 partitions"):
        JOBS[job](Blocks(sent=drop_one))


@EVERY
def test_a_row_that_comes_twice_or_is_cut_is_refused(job: str) -> None:
    with pytest.raises(CbmmError, match=r"scale a: .*came 2 times"):
        JOBS[job](Blocks(ended=lambda rows: [*rows, *(row for row in rows if key_of(row) == ("a", 2))]))

    def cut(rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        place = [key_of(row) for row in rows].index(("a", 2))
        values = np.frombuffer(rows[place]["payload"][0].as_py(), dtype="<f8")
        short = chunks.sums_row("a", 2, rows[place]["source"][0].as_py(), values[:-1])
        return [*rows[:place], short, *rows[place + 1 :]]

    with pytest.raises(CbmmError, match="scale a: models 21 to 25 of 25 came with"):
        JOBS[job](Blocks(ended=cut))


def test_a_scale_that_no_block_shows_has_no_rows() -> None:
    """A benchmark without responses, and a date before the first: nothing is missing then."""
    columns = Lives(np.arange(N_MODELS, dtype=np.int32), *np.full((2, N_MODELS), [[1], [2]], dtype=np.int32))
    moments = {"early": Moment({"a": columns, "b": columns}, 0)}
    counts = Blocks(moments=moments).count({"none": frozenset("z"), "early": frozenset("ab")}, N_MODELS)
    assert {name: count.cells for name, count in counts.items()} == {"none": 0, "early": 0}


def test_many_faults_are_told_in_short_and_counted() -> None:
    with pytest.raises(CbmmError, match="; and 3 more scales"):
        check_whole([], {f"s{number}": 7 for number in range(8)}, 3, (chunks.TOTALS,))
    with pytest.raises(CbmmError, match="models 21 to 30 of 1,000 are missing, and 97 more"):
        check_whole([], {"large": 1_000}, 3, (chunks.TOTALS, chunks.ITEMS))
    check_whole([], {"empty": 0}, 3, (chunks.TOTALS,))
