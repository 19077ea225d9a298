"""How many queries a step may run: the fixed price of a small night, counted and not timed.

Counted are the queries that our code starts. What Delta starts inside of one (listing files, materialising the source
of a MERGE) belongs to it, and the passes of the fit and the saving of its abilities follow the number of iterations:
they are left out by their descriptions.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import Config, ScalesConfig
from cbmm_spark.ingest.job import ingest
from cbmm_spark.packing.job import pack
from cbmm_spark.rescoring.job import RunOptions, rescore
from cbmm_spark.tables import Warehouse
from tests.spark.helpers import Heard, Matrix, store

# What they take today; wanted are 12 for an ingest and 8 for packing.
INGEST = 14
PACK = 11
RESCORE = 30

WITH_THE_FIT = ("iterate", "sweep")
CONFIG = dataclasses.replace(Config(), scales=ScalesConfig(per_benchmark=False))


class Queries:
    """The queries of a session, as its pages list them."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark._jsparkSession.sharedState().statusStore()

    def _all(self) -> list[Any]:
        listed = self._store.executionsList()
        return [listed.apply(i) for i in range(listed.size())]

    def last(self) -> int:
        """Number of the last one."""
        time.sleep(0.5)  # the store hears of queries through a queue
        return max((each.executionId() for each in self._all()), default=-1)

    def since(self, number: int) -> list[str]:
        """Descriptions of those that our code started after that one, the fit's own left out."""
        self.last()
        own = (each for each in self._all() if each.executionId() == each.rootExecutionId() > number)
        told = [" ".join(each.description().split()) for each in own]
        own_text = (text for text in told if not text.startswith((*WITH_THE_FIT, "Delta: ")))
        return [text for text in own_text if "save abilities" not in text]


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> Warehouse:
    """A warehouse of two nights, with something new for a third; its tables are there already."""
    warehouse = Warehouse(spark, str(tmp_path / "warehouse"))
    rng = np.random.default_rng(1)
    solved = (rng.random((12, 25)) < np.linspace(0.2, 0.8, 12)[:, None]).astype(float)
    store(warehouse, {"b": Matrix(np.ones((12, 25), int), solved)})
    rescore(spark, warehouse, CONFIG, None, Heard())
    store(warehouse, {"b": Matrix(np.ones((12, 25), int), 1.0 - solved[::-1])})
    return warehouse


def test_a_small_night_stays_within_its_budgets(spark: SparkSession, small: Warehouse) -> None:
    queries = Queries(spark)
    before = queries.last()
    packed = pack(spark, small, CONFIG)
    found = queries.since(before)
    assert packed.repacked
    assert 0 < len(found) <= PACK, "\n".join(found)

    before = queries.last()
    rescore(spark, small, CONFIG, None, Heard(), RunOptions(packed=packed, accept_gates=True))
    found = queries.since(before)
    assert any("publish" in text for text in found)
    assert 0 < len(found) <= RESCORE, "\n".join(found)


def test_what_is_packed_already_costs_one_query(spark: SparkSession, small: Warehouse) -> None:
    pack(spark, small, CONFIG)
    queries = Queries(spark)
    before = queries.last()
    assert not pack(spark, small, CONFIG).repacked
    assert len(queries.since(before)) <= 1


def test_a_small_ingest_stays_within_its_budget(spark: SparkSession, warehouse: Warehouse, tmp_path: Path) -> None:
    """New models on known items, with a row that is refused, and then the same again."""

    def night(number: int, *more: tuple[str, str, int]) -> str:
        rows = [(f"m{number}{m}", f"i{i}", (m + i + number) % 2) for m in range(3) for i in range(8)]
        table = pd.DataFrame([*rows, *more], columns=["model", "item", "correct"])
        table["date"] = pd.Timestamp("2026-01-01") + pd.Timedelta(days=number)
        path = tmp_path / f"{number}.parquet"
        table.to_parquet(path)
        return str(path)

    ingest(spark, warehouse, Config(), night(1, ("m ", "i1", 1)))
    queries = Queries(spark)
    for path, new in ((night(2, ("m ", "i1", 1)), 24), (str(tmp_path / "2.parquet"), 0)):
        before = queries.last()
        report = ingest(spark, warehouse, Config(), path)
        found = queries.since(before)
        assert (report.new, report.refused) == (new, 1)
        assert 0 < len(found) <= INGEST, "\n".join(found)
