"""Packing: tiles hold exactly the responses, and are made anew only when they must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, PackConfig
from cbmm_spark.errors import InputError
from cbmm_spark.packing.job import pack, tiles_of
from cbmm_spark.packing.tile_codec import join_tiles
from cbmm_spark.packing.tiles import benchmark_kinds, kind_columns
from cbmm_spark.tables import Warehouse
from tests.kernels.layouts import drawn
from tests.spark.helpers import Matrix, cells_of_parts, long_table, responses_of, store, unpacked

SMALL = PackConfig(items_per_block=16)
KIND = ("lowest_attempt", "highest_attempt", "is_whole")


def packed(spark: SparkSession, parts: dict[str, Matrix], models: int, config: PackConfig = SMALL) -> list[Any]:
    return tiles_of(responses_of(spark, long_table(parts)), models, config, 7).collect()


def test_tiles_hold_exactly_the_responses(spark: SparkSession) -> None:
    """Several benchmarks, several blocks, gaps, rows without a verdict, repeated attempts, fractions."""
    whole, gaps = drawn(21, 40, 1), drawn(21, 18, 2, observed=0.5)
    several, partial = drawn(21, 20, 3, observed=0.8, attempts=4), drawn(21, 17, 4, observed=0.7, fractional=True)
    several_partial = drawn(21, 5, 5, attempts=3, fractional=True)
    null = (gaps[0] == 0) & (np.random.default_rng(0).random(gaps[0].shape) < 0.5)
    parts = {
        "complete": Matrix(*whole), "gaps/ä 'q'": Matrix(*gaps, null), "attempts": Matrix(*several),
        "fractions": Matrix(*partial), "both": Matrix(*several_partial),
    }  # fmt: skip
    tiles = packed(spark, parts, 21)
    found, meant = unpacked(tiles), cells_of_parts(parts)
    assert found.keys() == meant.keys()
    assert [v[0] for _, v in sorted(found.items())] == [v[0] for _, v in sorted(meant.items())]
    np.testing.assert_allclose(
        [v[1] for _, v in sorted(found.items())], [v[1] for _, v in sorted(meant.items())], atol=1e-12
    )
    kinds = {tile["benchmark"]: tile["encoding"] for tile in tiles}
    assert kinds == dict(zip(parts, ("bits", "bits", "counts", "scores", "scores"), strict=True))
    blocks = {(t["benchmark"], t["item_block"], t["item_start"], t["n_items"]) for t in tiles}
    assert {b[1:] for b in blocks if b[0] == "complete"} == {(0, 1, 16), (1, 17, 16), (2, 33, 8)}
    assert {(t["model_start"], t["n_models"], t["responses_version"]) for t in tiles} == {(1, 21, 7)}
    assert sum(t["n_responses"] for t in tiles) == len(meant)


def test_how_a_benchmark_is_packed_does_not_depend_on_how_its_rows_were_counted(spark: SparkSession) -> None:
    """Rows without a verdict do not count, nor does it matter whether rows are counted together or by model."""
    answers = {  # score and attempt of each row; the models take turns
        "one answer": [(1.0, 0), (0.0, 0), (1.0, 0)],
        "one answer, always the second": [(1.0, 1), (0.0, 1)],
        "null at another attempt": [(1.0, 0), (None, 3), (0.0, 0)],
        "attempts of one model": [(1.0, 0), (0.0, 0), (1.0, 1)],
        "a fraction": [(1.0, 0), (0.25, 0)],
        "a fraction beside null": [(None, 0), (0.25, 0)],
        "no verdict": [(None, 0), (None, 1)],
    }
    rows = [(name, n % 2, score, attempt) for name, of in answers.items() for n, (score, attempt) in enumerate(of)]
    frame = spark.createDataFrame(rows, "benchmark string, model int, score double, attempt int")
    meant = (
        ["null at another attempt", "one answer", "one answer, always the second"],
        ["a fraction", "a fraction beside null", "attempts of one model"],
    )
    for key in (["benchmark"], ["benchmark", "model"], ["benchmark", "model", "attempt", "score"]):
        assert benchmark_kinds(frame.groupBy(*key).agg(*kind_columns()).select("benchmark", *KIND)) == meant


def test_few_responses_are_packed_sparsely(spark: SparkSession) -> None:
    n, k = np.zeros((200, 30)), np.zeros((200, 30))
    n[3, 4], k[3, 4], n[77, 29] = 1, 1, 1
    parts = {"bits": Matrix(n, k), "scores": Matrix(n * 2, k * 1.5)}
    tiles = packed(spark, parts, 200)
    assert {t["benchmark"]: t["encoding"] for t in tiles} == {"bits": "sparse_bits", "scores": "sparse_scores"}
    assert unpacked(tiles) == cells_of_parts(parts)


def test_model_numbers_beyond_one_bitmap(spark: SparkSession) -> None:
    """A bitmap covers 32,768 models: few responses of far numbers, at the borders of three."""
    models = np.array([1, 5, 32_768, 32_769, 40_000, 65_536, 65_537, 70_001])
    n, k = drawn(8, 9, 3, observed=0.8)
    n[:, 8] = 1.0
    parts = {"b": Matrix(n, k * n)}
    table = long_table(parts)
    numbers = table.column("model_index").to_numpy()
    table = table.set_column(
        table.schema.get_field_index("model_index"), "model_index", [models[numbers - 1].astype("i4")]
    )
    for sparse_below in (0.0, 0.9):
        config = PackConfig(items_per_block=16, sparse_below=sparse_below)
        tiles = tiles_of(responses_of(spark, table), 70_001, config, 0).orderBy("model_start").collect()
        assert [(t["model_start"], t["n_models"]) for t in tiles] == [(1, 32_768), (32_769, 32_768), (65_537, 4_465)]
        meant = {(b, int(models[m - 1]), i): v for (b, m, i), v in cells_of_parts(parts).items()}
        assert unpacked(tiles) == meant
        joined = join_tiles([t.asDict() for t in tiles])
        np.testing.assert_array_equal(np.frombuffer(joined["models"], "<i4") + 1, models)


def test_tiles_of_one_block_have_one_height(spark: SparkSession) -> None:
    """Models of the second bitmap did not run the last items: the tiles must still join."""
    table = long_table({"b": Matrix(np.array([[1.0, 1, 1], [1, 1, 0]]), np.zeros((2, 3)))})
    far = np.where(table.column("model_index").to_numpy() == 2, 40_000, 1).astype("i4")
    table = table.set_column(table.schema.get_field_index("model_index"), "model_index", [far])
    tiles = tiles_of(responses_of(spark, table), 40_000, SMALL, 0).orderBy("model_start").collect()
    assert join_tiles([t.asDict() for t in tiles])["n_items"] == 3


def test_nothing_but_nulls_is_refused(spark: SparkSession) -> None:
    empty = np.zeros((3, 2))
    with pytest.raises(InputError, match="every score is null"):
        packed(spark, {"b": Matrix(empty, empty, np.ones((3, 2)))}, 3)


def test_packing_is_done_when_needed_and_only_then(warehouse: Warehouse) -> None:
    spark, config = warehouse.spark, Config(pack=SMALL)
    parts = {"b": Matrix(*drawn(12, 40, 1, observed=0.8), np.eye(12, 40))}
    parts["b"].successes[...] *= parts["b"].attempts
    parts["b"].attempts[...] *= 1 - parts["b"].null
    store(warehouse, parts)
    first = pack(spark, warehouse, config)
    assert (first.repacked, first.tiles, first.responses) == (True, 3, int(parts["b"].attempts.sum()))
    version = warehouse.version("response_blocks")
    again = pack(spark, warehouse, config)
    assert not again.repacked
    assert warehouse.version("response_blocks") == version
    rows = {r["model_index"]: r for r in warehouse.read("model_benchmarks").collect()}
    assert len(rows) == 12
    assert {r["n_null"] for r in rows.values()} == {1}
    assert rows[3]["n_rows"] == parts["b"].attempts[2].sum() + 1

    parts["b"].successes[0, 5], parts["b"].attempts[0, 5] = 1, 1
    store(warehouse, parts)
    assert pack(spark, warehouse, config).repacked
    stored = unpacked(warehouse.read("response_blocks").collect())
    assert stored == cells_of_parts(parts)


def test_another_block_size_repacks(warehouse: Warehouse) -> None:
    spark, config = warehouse.spark, Config(pack=SMALL)
    parts = {"b": Matrix(*drawn(12, 40, 1))}
    store(warehouse, parts)
    assert pack(spark, warehouse, config).tiles == 3
    changed = pack(spark, warehouse, replace(config, pack=PackConfig(items_per_block=8)))
    assert (changed.repacked, changed.tiles) == (True, 5)
    assert unpacked(warehouse.read("response_blocks").collect()) == cells_of_parts(parts)


def test_no_responses_is_said_in_one_line(warehouse: Warehouse) -> None:
    warehouse.ensure("responses", "models", "items")
    with pytest.raises(InputError, match="is empty; run") as caught:
        pack(warehouse.spark, warehouse, Config())
    assert "\n" not in str(caught.value)
