"""Packing night by night: only what changed is read and written, and the tiles are those of a full rebuild."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import Config, PackConfig
from cbmm_spark.packing.job import pack, stored_blocks
from cbmm_spark.tables import Warehouse
from tests.spark.nights import GONE, Key, assert_as_rebuilt, files_of, night

CONFIG = Config(pack=PackConfig(items_per_block=16, sparse_below=0.1))
NAMES = ("plain", "gaps \\ä 'q'", "attempts", "fractions")


def answers(models: range, items: range, name: str, seed: int, observed: float = 1.0) -> dict[Key, Any]:
    rng = np.random.default_rng(seed)
    cells = [(m, i) for m in models for i in items if rng.random() < observed]
    return {(m, name, i, 0): float(rng.random() < 0.5) for m, i in cells}


def test_each_kind_of_night(warehouse: Warehouse) -> None:
    """First night, new models, a correction, new items for an old model, a first fraction, second attempts, removal."""
    spark = warehouse.spark
    first = {**answers(range(1, 41), range(1, 21), "a", 0), **answers(range(1, 41), range(1, 6), "b", 1)}
    night(warehouse, first)
    report = pack(spark, warehouse, CONFIG)
    assert (report.mode, report.reason, report.tiles) == ("anew", "response_blocks is not there yet", 3)
    before = files_of(warehouse, "response_blocks")

    night(warehouse, answers(range(41, 45), range(1, 21), "a", 2))
    report = pack(spark, warehouse, CONFIG)
    assert (report.mode, report.reason, report.tiles, report.tiles_written) == ("incremental", "", 5, 2)
    assert [(b.start, b.width) for b in stored_blocks(warehouse.read("response_blocks"))] == [(1, 40), (41, 4)]
    assert before < files_of(warehouse, "response_blocks"), "new models rewrite nothing"
    assert_as_rebuilt(warehouse, CONFIG.pack)

    old_key, new_key = (3, "b", 2, 0), (4, "b", 17, 0)
    night(warehouse, {old_key: 1.0 - first[old_key], new_key: 1.0})
    report = pack(spark, warehouse, CONFIG)
    assert (report.mode, report.tiles, report.tiles_written) == ("incremental", 6, 2)
    versions = {(r["benchmark"], r["item_block"], r["model_start"]): r["responses_version"]
                for r in warehouse.read("response_blocks").collect()}  # fmt: skip
    newest = {key for key, version in versions.items() if version == report.responses_version}
    assert newest == {("b", 0, 1), ("b", 1, 1)}
    assert_as_rebuilt(warehouse, CONFIG.pack)

    night(warehouse, {(1, "a", 1, 0): 0.25, (2, "b", 1, 1): 1.0, (5, "b", 1, 0): None})
    assert pack(spark, warehouse, CONFIG).mode == "incremental"
    assert_as_rebuilt(warehouse, CONFIG.pack)
    kinds = {(r["benchmark"], r["item_block"], r["model_start"]): r["encoding"]
             for r in warehouse.read("response_blocks").collect()}  # fmt: skip
    assert (kinds[("a", 0, 1)], kinds[("b", 0, 1)], kinds[("a", 0, 41)]) == ("scores", "counts", "bits")

    night(warehouse, {new_key: GONE, **{(m, "a", i, 0): GONE for m in range(41, 45) for i in range(1, 21)}})
    report = pack(spark, warehouse, CONFIG)
    assert (report.mode, report.tiles, report.model_blocks) == ("incremental", 3, 1)
    assert_as_rebuilt(warehouse, CONFIG.pack)

    again = pack(spark, warehouse, CONFIG)
    assert (again.mode, again.repacked) == ("current", False)
    assert (again.blocks_version, again.benchmarks_version) == (report.blocks_version, report.benchmarks_version)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_nights_are_as_rebuilt(warehouse: Warehouse, seed: int) -> None:
    """Appends of models and items, corrections, nulls, attempts, fractions, removals: in any order."""
    rng = np.random.default_rng(seed)
    spark, known, models = warehouse.spark, {}, 0
    items = dict.fromkeys(NAMES, 10)
    for number in range(5):
        changes: dict[Key, Any] = {}
        new = int(rng.integers(1, 12)) if number == 0 or rng.random() < 0.7 else 0
        for name in NAMES:
            items[name] += int(rng.integers(0, 12)) * int(rng.random() < 0.4)
        for model in range(1, models + new + 1):
            for name in NAMES:
                share = rng.choice([0.0, 0.05, 0.9]) if model > models else 0.02
                changes.update(_drawn(rng, model, name, items[name], share))
        for key in [key for key in known if rng.random() < 0.01]:
            changes[key] = GONE
        if not changes:
            continue
        models += new
        night(warehouse, changes)
        known = {key: score for key, score in {**known, **changes}.items() if score is not GONE}
        report = pack(spark, warehouse, CONFIG)
        assert report.mode == ("anew" if number == 0 else "incremental")
        assert_as_rebuilt(warehouse, CONFIG.pack)
    assert stored_blocks(warehouse.read("response_blocks"))[-1].end <= models


def _drawn(rng: np.random.Generator, model: int, name: str, items: int, share: float) -> dict[Key, Any]:
    changes: dict[Key, Any] = {}
    for item in np.flatnonzero(rng.random(items) < share) + 1:
        for attempt in range(int(rng.integers(1, 4)) if name == "attempts" else 1):
            score: float | None = float(rng.random()) if name == "fractions" else float(rng.random() < 0.5)
            if name in ("gaps \\ä 'q'", "attempts") and rng.random() < 0.1:
                score = None if rng.random() < 0.8 else float(rng.random())
            changes[(model, name, int(item), attempt)] = score
    return changes


# ------------------------------------------------------------------------------------------------ joined blocks
def test_small_model_blocks_are_joined_without_reading_responses(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = warehouse.spark
    night(warehouse, {**answers(range(1, 41), range(1, 21), "a", 0), **answers(range(1, 41), range(1, 6), "b", 1)})
    pack(spark, warehouse, CONFIG)
    night(warehouse, {**answers(range(41, 44), range(1, 21), "a", 2), **answers(range(41, 44), range(1, 6), "b", 3)})
    assert pack(spark, warehouse, CONFIG).tiles_joined == 0
    read: list[Any] = []
    original = Warehouse.read

    def spying(self: Warehouse, name: str, version: int | None = None) -> Any:
        frame = original(self, name, version)
        return _Spy(frame, read) if name == "responses" else frame

    monkeypatch.setattr(Warehouse, "read", spying)
    night(warehouse, answers(range(44, 46), range(1, 21), "a", 4))
    report = pack(spark, warehouse, CONFIG)
    monkeypatch.undo()
    assert (report.mode, report.tiles_joined, report.model_blocks) == ("incremental", 3, 2)
    assert [(b.start, b.width) for b in stored_blocks(warehouse.read("response_blocks"))] == [(1, 40), (41, 5)]
    assert read, "the spy saw nothing"
    assert {row["model_index"] for frame in read for row in frame.select("model_index").distinct().collect()} == {
        44,
        45,
    }
    assert_as_rebuilt(warehouse, CONFIG.pack)


class _Spy:
    """A frame that keeps what it is filtered to."""

    def __init__(self, frame: Any, seen: list[Any]) -> None:
        self._frame, self._seen = frame, seen

    def where(self, condition: Any) -> Any:
        kept = self._frame.where(condition)
        self._seen.append(kept)
        return kept

    def isEmpty(self) -> bool:  # noqa: N802 - PySpark's name
        return bool(self._frame.isEmpty())


# ------------------------------------------------------------------------------------------------ when it cannot
def test_packing_anew_says_why(warehouse: Warehouse, caplog: pytest.LogCaptureFixture) -> None:
    """Another configuration, a foreign write, a feed that was off, a table made anew."""
    spark = warehouse.spark
    night(warehouse, answers(range(1, 6), range(1, 21), "a", 0))
    pack(spark, warehouse, CONFIG)

    def reason(config: Config = CONFIG) -> str:
        report = pack(spark, warehouse, config)
        assert report.mode == "anew"
        assert report.reason in caplog.text
        assert_as_rebuilt(warehouse, config.pack)
        return report.reason

    with caplog.at_level(logging.WARNING):
        other = Config(pack=PackConfig(items_per_block=8, sparse_below=0.1))
        assert "[pack] was items_per_block = 16" in reason(other)
        warehouse.delta("response_blocks").delete(F.col("model_start") == 1)
        assert "(DELETE) does not say what is packed" in reason(other)
        place = warehouse.sql_name("responses")
        spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
        night(warehouse, answers(range(6, 8), range(1, 21), "a", 2))
        assert "has no change data feed" in reason(other)
        shutil.rmtree(warehouse.location("responses"))
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # as in a new process
        night(warehouse, answers(range(1, 4), range(1, 21), "a", 3))
        night(warehouse, answers(range(4, 6), range(1, 21), "a", 4))
        assert "responses is another table" in reason(other)


def test_a_feed_without_its_files_packs_anew(warehouse: Warehouse) -> None:
    """As after VACUUM: a night that was not packed, then its files were replaced and removed."""
    spark = warehouse.spark
    night(warehouse, answers(range(1, 6), range(1, 21), "a", 0))
    pack(spark, warehouse, CONFIG)
    night(warehouse, {(1, "a", 1, 0): 0.0, (2, "a", 1, 0): 1.0, (3, "a", 1, 0): None})
    night(warehouse, answers(range(6, 8), range(1, 21), "a", 1))
    feed = Path(warehouse.location("responses")) / "_change_data"
    assert any(feed.rglob("*.parquet"))
    shutil.rmtree(feed)
    report = pack(spark, warehouse, CONFIG)
    assert (report.mode, report.reason) == ("anew", "files of the change data feed of responses are gone (VACUUM)")
    assert_as_rebuilt(warehouse, CONFIG.pack)


# ------------------------------------------------------------------------------------------------ two tables
def test_killed_between_the_two_commits(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repetition completes, also when more came in meanwhile; upkeep in between does no harm."""
    spark = warehouse.spark
    night(warehouse, answers(range(1, 6), range(1, 21), "a", 0))
    pack(spark, warehouse, CONFIG)
    for number, more in enumerate((False, True)):
        night(warehouse, answers(range(6 + number, 7 + number), range(1, 21), "a", number))
        with monkeypatch.context() as patch:
            patch.setattr(Warehouse, "replace", _killed)
            with pytest.raises(KeyboardInterrupt):
                pack(spark, warehouse, CONFIG)
        if more:
            night(warehouse, {(1, "a", 3, 0): None})
        warehouse.delta("model_benchmarks").optimize().executeCompaction()
        report = pack(spark, warehouse, CONFIG)
        assert (report.mode, report.responses_version) == ("incremental", warehouse.version("responses"))
        assert_as_rebuilt(warehouse, CONFIG.pack)


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_of_two_packings_at_once_one_wins(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival packs a newer version between this packing's plan and its commit; its tiles must not be mixed in."""
    spark = warehouse.spark
    night(warehouse, answers(range(1, 6), range(1, 21), "a", 0))
    pack(spark, warehouse, CONFIG)
    night(warehouse, answers(range(6, 8), range(1, 21), "a", 1))
    original, rivals = Warehouse.replace, []

    def late(self: Warehouse, *arguments: Any, **options: Any) -> None:
        if not rivals:
            rivals.append(True)
            night(warehouse, {**answers(range(8, 10), range(1, 21), "a", 2), (1, "a", 1, 0): None})
            rivals.append(pack(spark, warehouse, CONFIG))
        original(self, *arguments, **options)

    monkeypatch.setattr(Warehouse, "replace", late)
    report = pack(spark, warehouse, CONFIG)
    assert len(rivals) == 2
    assert report.blocks_version == rivals[1].blocks_version
    assert not report.repacked
    assert_as_rebuilt(warehouse, CONFIG.pack)
