"""What a location names: one grammar for inputs and warehouses, for any name a catalog, a disk or a store may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbmm_spark import locations
from cbmm_spark.cli.arguments import build_parser
from cbmm_spark.cli.main import _wanted_dates, check_input, check_warehouse
from cbmm_spark.errors import ConfigError, InputError


def complaint(check: object, *arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check(*arguments)  # type: ignore[operator]
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("warehouse", Path("warehouse")),
        ("a/b.c", Path("a/b.c")),
        ("/data/a.parquet", Path("/data/a.parquet")),
        ("./lab.results", Path("./lab.results")),
        ("file:///tmp/a%20b", Path("/tmp/a b")),
        ("file:/tmp/x", Path("/tmp/x")),
        ("s3a://bucket/key", None),
        ("abfss://box@account.dfs.core.windows.net/key", None),
        ("hdfs:/warehouse", None),
        ("results.csv", Path("results.csv")),
    ],
)
def test_where_a_location_is(location: str, path: Path | None) -> None:
    assert locations.local_path(location) == path


@pytest.mark.parametrize(
    ("warehouse", "path"),
    [("catalog.schema", None), ("ml-prod.lb", None), ("a/b.c", Path("a/b.c")), ("w", Path("w")), ("s3a://b/k", None)],
)
def test_a_warehouse_may_be_a_schema(warehouse: str, path: Path | None) -> None:
    assert locations.warehouse_path(warehouse) == path


def test_a_warehouse_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert f"{tmp_path / 'file'} is not a folder" in complaint(locations.check_writable, str(tmp_path / "file" / "w"))


def test_a_warehouse_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write anywhere, so the answer of the system is replaced and not the folder's mode
    monkeypatch.setattr(locations.os, "access", lambda path, _mode: Path(path) != tmp_path)
    assert f"no permission to write to {tmp_path}" in complaint(locations.check_writable, str(tmp_path / "warehouse"))


def test_a_warehouse_that_can_be_made_is_taken_and_not_made(tmp_path: Path) -> None:
    locations.check_writable(str(tmp_path / "new" / "warehouse"))
    locations.check_writable("s3a://bucket/warehouse")
    locations.check_writable("catalog.schema")
    assert not (tmp_path / "new").exists()


def test_what_is_a_table_of_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.own.results").write_text("x")
    names = {
        "table:results": "results",
        "table:a.b.`c d`": "a.b.`c d`",
        "main.evals.results": "main.evals.results",
        "my.own.results": None,
        "scores.2024.csv": None,
        "a/b.c.d": None,
        "results": None,
        "schema.results": None,
        "table:": None,
        "s3a://bucket/a.b.c": None,
    }
    assert {location: locations.table_name(location) for location in names} == names


NAMES = ["lb", "ml-prod", "über", "a_1", "2026", "x+y", "o'brien"]


@pytest.mark.parametrize("second", NAMES)
@pytest.mark.parametrize("first", NAMES)
def test_a_schema_is_the_same_to_the_checks_and_to_the_tables(first: str, second: str) -> None:
    warehouse = f"{first}.{second}"
    assert locations.Address.parse(warehouse).catalog
    assert locations.warehouse_path(warehouse) is None
    assert locations.table_name(f"{warehouse}.results") == f"{warehouse}.results"
    locations.check_writable(warehouse)
    check_warehouse(warehouse)
    check_input(f"{warehouse}.results")


@pytest.mark.parametrize("location", ["shards.part.*", "a.b.[cd]", "a.b.{c,d}", "run-1.v?.x"])
def test_a_pattern_is_no_table(location: str) -> None:
    assert locations.table_name(location) is None


TOO_LONG = "x" * 300


@pytest.mark.parametrize("location", [TOO_LONG, f"folder/{TOO_LONG}", f"folder/{TOO_LONG}.csv", f"{TOO_LONG}*"])
def test_a_name_that_no_file_can_have_does_not_exist(location: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        check_input(location)
    with pytest.raises(InputError, match="has no table responses"):
        check_warehouse(location)
    assert locations.absolute(location).endswith(location)


@pytest.mark.parametrize("separator", [",", ", ", " ", "\n"])
@pytest.mark.parametrize("n", [1, 23, 24, 400, 1200])
def test_dates_may_be_as_many_as_one_likes(n: int, separator: str) -> None:
    """More than 255 signs are no file's name, more than 4096 no path: neither question may end the command."""
    days = [f"{2000 + i // 336:04d}-{i // 28 % 12 + 1:02d}-{i % 28 + 1:02d}" for i in range(n)]
    found = _wanted_dates(build_parser().parse_args(["backfill", "--dates", separator.join(days)]))
    assert found is not None
    assert [str(day) for day in found] == days
