"""Tables as Delta keeps them: what they accept, what they refuse, and that everybody can read them."""

from __future__ import annotations

import datetime as dt
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.tables import SPECS, Warehouse
from cbmm_spark.tables.ddl import create_statement, literal
from tests.spark.table_copies import TableCopies
from tests.spark.table_samples import DAY, frame, full_row, sparse_row

STRANGE = "wäre hoüse ' ` \" %20 100% [x] {y} 日本 #?&"


@pytest.fixture(scope="module", autouse=True)
def created_by_delta(table_copies: TableCopies) -> Iterator[None]:
    """Here tables are what Delta makes of their specification, none a copy."""
    with table_copies.set_aside():
        yield


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A warehouse with every table; each test says what it finds before it writes."""
    warehouse = Warehouse(spark, str(tmp_path_factory.mktemp("tables") / "warehouse"))
    warehouse.ensure(*SPECS)
    return warehouse


def columns_read_by_others(location: str) -> dict[str, list[Any]]:
    """The rows as delta-rs finds the files and pyarrow reads them, partition values left out."""
    from deltalake import DeltaTable

    table = DeltaTable(location)
    assert table.protocol().min_reader_version == 1
    parts = [pq.ParquetFile(uri).read() for uri in table.file_uris()]
    for part in parts:
        assert not any(pa.types.is_null(field.type) for field in part.schema)
    return pa.concat_tables(parts).to_pydict()


def assert_others_read(warehouse: Warehouse, name: str, *expected: dict[str, Any]) -> None:
    others = columns_read_by_others(warehouse.location(name))
    in_files = [column for column in SPECS[name].column_names if column not in SPECS[name].partition_by]
    assert set(in_files) <= set(others)
    for column in in_files:
        values = [as_utc(value) for value in others[column]]
        assert sorted(values, key=repr) == sorted((row[column] for row in expected), key=repr), column


def as_utc(value: Any) -> Any:
    """A time as Parquet readers give it, with or without a zone, as a Python time in UTC."""
    if not isinstance(value, dt.datetime):
        return value
    plain = value.to_pydatetime() if isinstance(value, pd.Timestamp) else value
    return plain.replace(tzinfo=dt.UTC) if plain.tzinfo is None else plain.astimezone(dt.UTC)


@pytest.mark.parametrize("name", SPECS)
def test_every_table_is_written_and_read_by_others(shop: Warehouse, name: str) -> None:
    spark, spec = shop.spark, SPECS[name]
    full, sparse = full_row(name), sparse_row(name)
    shop.append(frame(spark, name, sparse).select(*reversed(spec.column_names)), name)
    assert_others_read(shop, name, sparse)
    rows = frame(spark, name, full, sparse)
    if "run_id" in spec.column_names and not name.startswith("latest"):
        shop.replace(rows, name, f"run_id = {literal(full['run_id'])}")
    else:
        shop.overwrite(rows, name)
    assert_others_read(shop, name, full, sparse)

    detail = spark.sql(f"DESCRIBE DETAIL {shop.sql_name(name)}").first()
    assert detail is not None
    assert detail["minReaderVersion"] == 1
    assert detail["partitionColumns"] == list(spec.partition_by)
    assert detail["description"] == spec.comment
    assert {key[len("delta.constraints.") :] for key in detail["properties"] if "constraints" in key} == set(
        spec.checks
    )
    table = shop.read(name)
    assert [(f.name, f.dataType, f.nullable, f.metadata) for f in table.schema] == [
        (f.name, f.dataType, f.nullable, f.metadata) for f in spec.schema
    ]


def test_polars_and_duckdb_read_results(shop: Warehouse) -> None:
    import duckdb
    import polars as pl
    from deltalake import DeltaTable

    name = "latest_item_parameters"
    shop.overwrite(frame(shop.spark, name, full_row(name), sparse_row(name, item_id="no values")), name)
    read = pl.scan_delta(shop.location(name)).sort("is_flagged").collect()
    assert read["difficulty"].to_list() == [None, 0.5]
    assert read["scored_on"].to_list() == [DAY, DAY]
    uris = DeltaTable(shop.location(name)).file_uris()
    files = duckdb.read_parquet(uris)
    assert files.aggregate("count(*) AS n, count(difficulty) AS m").fetchall() == [(2, 1)]


def test_versions_and_change_feed_of_responses(shop: Warehouse, spark: SparkSession) -> None:
    name = "responses"
    before = shop.version(name)
    shop.overwrite(frame(spark, name, full_row(name)), name)
    shop.append(frame(spark, name, full_row(name, item_id="second")), name)
    assert shop.read(name, before + 1).count() == 1
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", before + 2)
    changes = feed.table(shop.sql_name(name)).select("item_id", "_change_type").collect()
    assert [tuple(row) for row in changes] == [("second", "insert")]
    with pytest.raises(InputError, match="has no version 4711"):
        shop.read(name, 4711)


REFUSED = [
    ("abilities", {"ability": math.nan}, "ability_valid"),
    ("abilities", {"ability": math.inf}, "ability_valid"),
    ("abilities", {"ability_lower": -math.inf}, "ability_lower_valid"),
    ("abilities", {"ability_se": -0.1}, "ability_se_valid"),
    ("abilities", {"rank": 0}, "rank_valid"),
    ("abilities", {"rank_lower": 3, "rank_upper": 2}, "rank_interval"),
    ("abilities", {"accuracy": math.nan}, "accuracy_valid"),
    ("abilities", {"rank_shift": 5}, "rank_shift_is_difference"),
    ("abilities", {"status": "fine"}, "status_valid"),
    ("item_parameters", {"discrimination": -1e-9}, "discrimination_valid"),
    ("item_parameters", {"discrimination": math.nan}, "discrimination_valid"),
    ("item_parameters", {"discrimination": 0.0}, "difficulty_has_slope"),
    ("item_parameters", {"discrimination": None}, "difficulty_has_slope"),
    ("item_parameters", {"item_rest_correlation": 1.1}, "item_rest_correlation_valid"),
    ("item_parameters", {"flag_reasons": "all_wrong;"}, "flag_reasons_valid"),
    ("item_parameters", {"flag_reasons": None}, "flag_has_reason"),
    ("responses", {"score": 1.5}, "score_valid"),
    ("responses", {"score": math.nan}, "score_valid"),
    ("responses", {"model_id": ""}, "model_id_valid"),
    ("responses", {"benchmark_bucket": 64}, "benchmark_bucket_valid"),
    ("models", {"size": math.inf}, "size_valid"),
    ("runs", {"status": "done"}, "status_valid"),
]


def test_conditions_refuse_what_they_should(spark: SparkSession) -> None:
    """Each condition as SQL, one query a table: Delta demands that a CHECK is true, so null counts as refused."""
    for name in sorted({name for name, _, _ in REFUSED}):
        cases = [(changes, constraint) for table, changes, constraint in REFUSED if table == name]
        rows = [full_row(name), sparse_row(name), *(full_row(name, **changes) for changes, _ in cases)]
        checks = SPECS[name].checks
        conditions = [F.expr(condition).alias(check) for check, condition in checks.items()]
        good, empty, *bad = frame(spark, name, *rows).coalesce(1).select(*conditions).collect()
        assert all(good), name
        assert all(empty), name
        for (changes, constraint), result in zip(cases, bad, strict=True):
            failed = {check for check, holds in result.asDict().items() if holds is not True}
            assert constraint in failed, (name, changes)


@pytest.mark.parametrize(("name", "changes", "constraint"), [REFUSED[0], REFUSED[12], REFUSED[-1]])
def test_delta_enforces_the_conditions(shop: Warehouse, name: str, changes: dict[str, Any], constraint: str) -> None:
    with pytest.raises(InputError, match=rf"nothing written: CHECK constraint {constraint}\b") as caught:
        shop.append(frame(shop.spark, name, full_row(name, **changes)), name)
    assert "\n" not in str(caught.value)


def test_a_null_in_a_required_column_is_refused(shop: Warehouse) -> None:
    rows = frame(shop.spark, "models", full_row("models"))
    without = rows.withColumn("model_index", F.lit(None).cast("int"))
    before = shop.version("models")
    with pytest.raises((InputError, PySparkException), match=r"(?i)model_index"):
        shop.append(without, "models")
    assert shop.version("models") == before


def test_replacing_touches_nothing_else_and_refuses_a_stray_row(shop: Warehouse, spark: SparkSession) -> None:
    name = "run_iterations"
    first = [full_row(name, run_id=run, iteration=i) for run in ("one", "it's two") for i in (1, 2)]
    shop.overwrite(frame(spark, name, *first), name)
    changed = frame(spark, name, full_row(name, run_id="it's two", iteration=9))
    for _ in range(2):
        shop.replace(changed, name, "run_id = 'it\\'s two'")
        kept = {(row.run_id, row.iteration) for row in shop.read(name).collect()}
        assert kept == {("one", 1), ("one", 2), ("it's two", 9)}
        assert shop.read(name).count() == 3
    before = shop.version(name)
    with pytest.raises(InputError, match=r"rows outside of .*nothing written"):
        shop.replace(changed, name, "run_id = 'one'")
    assert shop.version(name) == before


def test_rows_to_write_must_have_the_very_columns(shop: Warehouse, spark: SparkSession) -> None:
    name = "run_iterations"
    rows = frame(spark, name, full_row(name))
    for wrong, says in [
        (rows.drop("seconds"), r"lack the column seconds \(double\)"),
        (rows.withColumn("iteration", F.lit(1.0)), "column iteration should be int, found double"),
        (rows.withColumn("seconds", F.lit(None)), "column seconds should be double, found void"),
        (rows.withColumn("more", F.lit(1)), "columns that the table lacks: more"),
    ]:
        with pytest.raises(InputError, match=says):
            shop.append(wrong, name)


def test_any_path_will_do(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, name = Warehouse(spark, str(tmp_path / STRANGE)), "run_iterations"
    warehouse.ensure(name)
    warehouse.append(frame(spark, name, full_row(name)), name)
    warehouse.replace(frame(spark, name, full_row(name, iteration=2)), name, "iteration = 1 OR iteration = 2")
    warehouse.delta(name).update("iteration = 2", {"iteration": F.lit(3)})
    assert [row.iteration for row in warehouse.read(name).collect()] == [3]
    assert warehouse.read(name, 1).count() == 1
    assert (tmp_path / STRANGE / name / "_delta_log").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [STRANGE]


def test_what_is_there_is_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(spark, str(tmp_path / STRANGE))
    here = tmp_path / STRANGE
    assert not warehouse.exists("runs")
    with pytest.raises(InputError, match=r"there is no table .*; `cbmm-spark rescore` makes it"):
        warehouse.read("runs")
    (here / "runs").mkdir(parents=True)
    assert not warehouse.exists("runs")
    (here / "runs" / "notes.csv").write_text("a,b\n", encoding="utf-8")
    for step in (warehouse.exists, warehouse.ensure, warehouse.read, warehouse.version):
        with pytest.raises(InputError, match="runs is not a Delta table"):
            step("runs")
    (here / "models").write_text("a file", encoding="utf-8")
    with pytest.raises(InputError, match="models is not a Delta table"):
        warehouse.exists("models")

    spark.range(1).selectExpr("'m' AS model_id", "1.5D AS model_index").write.format("delta").save(str(here / "items"))
    with pytest.raises(InputError, match=r"items lacks the column benchmark \(string\)"):
        warehouse.exists("items")
    wrong = frame(spark, "run_iterations", full_row("run_iterations")).withColumn("iteration", F.lit("1"))
    wrong.write.format("delta").save(str(here / "run_iterations"))
    with pytest.raises(InputError, match="run_iterations: column iteration should be int, found string"):
        warehouse.exists("run_iterations")
    (here / "quarantine" / "_delta_log").mkdir(parents=True)
    (here / "quarantine" / "_delta_log" / "00000000000000000000.json").write_text("{broken", encoding="utf-8")
    with pytest.raises(InputError, match="quarantine") as caught:
        warehouse.exists("quarantine")
    assert "\n" not in str(caught.value)


def test_first_creation_by_several_jobs_at_once(spark: SparkSession, tmp_path: Path) -> None:
    for trial in range(2):
        root = str(tmp_path / f"trial {trial}")
        errors: list[BaseException] = []
        barrier = threading.Barrier(3)

        def create(root: str = root, errors: list[BaseException] = errors, gate: threading.Barrier = barrier) -> None:
            gate.wait()
            try:
                Warehouse(spark, root).ensure("run_iterations")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=create) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        warehouse = Warehouse(spark, root)
        assert warehouse.version("run_iterations") == 0
        warehouse.append(frame(spark, "run_iterations", full_row("run_iterations")), "run_iterations")


@pytest.fixture
def schema(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE `night_1` LOCATION '{(tmp_path / 'database').as_uri()}'")
    yield "spark_catalog.night_1"
    spark.sql("DROP DATABASE `night_1` CASCADE")


def test_catalog_schema(spark: SparkSession, schema: str) -> None:
    warehouse = Warehouse(spark, schema)
    assert warehouse.location("runs") == "spark_catalog.night_1.runs"
    assert not warehouse.exists("run_iterations")
    with pytest.raises(InputError, match=r"no table spark_catalog\.night_1\.run_iterations"):
        warehouse.read("run_iterations")
    warehouse.ensure("run_iterations", "responses")
    warehouse.ensure("run_iterations")
    name = "run_iterations"
    warehouse.append(frame(spark, name, full_row(name, run_id="a"), full_row(name, run_id="b")), name)
    warehouse.replace(frame(spark, name, full_row(name, run_id="b", iteration=7)), name, "run_id = 'b'")
    assert {(row.run_id, row.iteration) for row in warehouse.read(name).collect()} == {("a", 1), ("b", 7)}
    with pytest.raises(InputError, match="nothing written"):
        warehouse.replace(frame(spark, name, full_row(name)), name, "run_id = 'b'")
    warehouse.delta(name).delete("run_id = 'a'")
    warehouse.overwrite(warehouse.read(name), name, {"step": "copy", "scored_on": DAY})
    newest = warehouse.delta(name).history(1).select("userMetadata").first()
    assert newest is not None
    assert json.loads(newest["userMetadata"]) == {"step": "copy", "scored_on": "2026-05-11"}
    assert (warehouse.read(name).count(), warehouse.read(name, 1).count(), warehouse.version(name)) == (1, 2, 4)
    detail = spark.sql(f"DESCRIBE DETAIL {warehouse.sql_name(name)}").first()
    assert detail is not None
    assert detail["minReaderVersion"] == 1
    assert "delta.constraints.objective_valid" in detail["properties"]

    spark.sql("CREATE TABLE spark_catalog.`night_1`.runs (a INT) USING parquet")
    with pytest.raises(InputError, match="runs is not a Delta table"):
        warehouse.ensure("runs")


def test_missing_schema_is_created_and_missing_catalog_is_named(spark: SparkSession) -> None:
    spark.sql("DROP DATABASE IF EXISTS spark_catalog.fresh_night CASCADE")
    folder = Path.cwd() / "spark-warehouse"
    there_before = folder.exists()
    try:
        warehouse = Warehouse(spark, "spark_catalog.fresh_night")
        warehouse.ensure("run_iterations")
        assert warehouse.exists("run_iterations")
    finally:
        spark.sql("DROP DATABASE IF EXISTS spark_catalog.fresh_night CASCADE")
        if folder.exists() and not there_before:
            folder.rmdir()
    with pytest.raises(ConfigError, match="no such catalog"):
        Warehouse(spark, "nowhere.night").ensure("runs")


NEW_COLUMNS = ("flag_reasons", "reference_run_id", "gauge_stretch")


def made_before(warehouse: Warehouse, name: str, *lacking: str) -> None:
    """Create a table as a version did that did not know some columns yet."""
    columns = [c for c in SPECS[name].columns if c.name not in lacking]
    warehouse.spark.sql(create_statement(replace(SPECS[name], columns=columns), warehouse.sql_name(name)))


def test_a_table_made_by_an_earlier_version_is_given_the_columns_it_lacks(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, name = Warehouse(spark, str(tmp_path / STRANGE)), "run_scales"
    made_before(warehouse, name, *NEW_COLUMNS)
    old = frame(spark, name, full_row(name, run_id="old")).drop(*NEW_COLUMNS)
    old.writeTo(warehouse.sql_name(name)).append()
    assert warehouse.exists(name)
    before = warehouse.read(name).first()
    assert before is not None
    assert {column: before[column] for column in (*NEW_COLUMNS, "run_id")} == dict.fromkeys(NEW_COLUMNS) | {
        "run_id": "old"
    }

    errors: list[BaseException] = []
    barrier = threading.Barrier(2)

    def ensure() -> None:
        barrier.wait()
        try:
            Warehouse(spark, warehouse.root).ensure(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    adding = [row for row in warehouse.delta(name).history().collect() if row["operation"] == "ADD COLUMNS"]
    assert len(adding) == 1
    version = warehouse.version(name)
    warehouse.ensure(name)
    assert warehouse.version(name) == version
    new = full_row(name, run_id="new")
    warehouse.append(frame(spark, name, new), name)
    rows = {row["run_id"]: row.asDict() for row in warehouse.read(name).collect()}
    assert rows["new"] == new
    assert rows["old"] == full_row(name, run_id="old") | dict.fromkeys(NEW_COLUMNS)
    assert warehouse.read(name, 1).select(*SPECS[name].column_names).count() == 1
    with pytest.raises(InputError, match="CHECK constraint gauge_stretch_valid"):
        warehouse.append(frame(spark, name, full_row(name, gauge_stretch=math.nan)), name)
    detail = spark.sql(f"DESCRIBE DETAIL {warehouse.sql_name(name)}").first()
    assert detail is not None
    assert detail["minReaderVersion"] == 1
    assert (
        detail["properties"]["delta.dataSkippingStatsColumns"]
        == SPECS[name].properties["delta.dataSkippingStatsColumns"]
    )
    comments = {f.name: f.metadata for f in warehouse.read(name).schema}
    assert comments == {f.name: f.metadata for f in SPECS[name].schema}


def test_a_table_that_lacks_a_required_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, name = Warehouse(spark, str(tmp_path / "old")), "run_scales"
    made_before(warehouse, name, "n_items", "gauge_shift")
    for step in (warehouse.exists, warehouse.ensure, warehouse.read):
        with pytest.raises(InputError, match=r"run_scales lacks the column n_items \(int\)"):
            step(name)
    assert warehouse.spark.read.format("delta").load(warehouse.location(name)).columns == [
        c for c in SPECS[name].column_names if c not in ("n_items", "gauge_shift")
    ]
