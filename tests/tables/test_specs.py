"""The specifications themselves; no Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta.exceptions.base import ConcurrentAppendException

from cbmm_spark.errors import ConfigError, ConflictError
from cbmm_spark.locations import Address
from cbmm_spark.tables import SPECS, TableSpec, with_commit_retry
from cbmm_spark.tables import retry as retry_module
from cbmm_spark.tables.ddl import create_statement, literal
from cbmm_spark.tables.document import document

ROOT = Path(__file__).resolve().parent.parent.parent
PUBLIC = {
    "responses": "model_id benchmark item_id attempt score evaluated_at source ingested_at",
    "abilities": "run_id scored_on scale model_id ability ability_se ability_lower ability_upper rank rank_lower "
    "rank_upper tier accuracy accuracy_lower accuracy_upper accuracy_rank rank_shift expected_accuracy n_items "
    "coverage outfit infit component status first_evaluated_at last_evaluated_at",
    "item_parameters": "run_id scored_on scale benchmark item_id discrimination easiness difficulty discrimination_se "
    "easiness_se n_models accuracy item_rest_correlation infit outfit information max_information component is_flagged "
    "flag_reasons",
    "run_scales": "run_id scale n_models n_items n_responses iterations converged objective log_loss accuracy_log_loss "
    "kkt_residual node_error ability_accuracy_spearman discrimination_mean discrimination_sd uninformative_items "
    "link_slope link_intercept n_anchors n_drifted flag_reasons "
    "reference_run_id link_run_id items_from_run_id gauge_shift gauge_stretch n_anchor_models",
    "run_iterations": "run_id scale iteration objective max_ability_change seconds",
}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def test_docs_are_current() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == document(), "run: python -m cbmm_spark.tables > docs/tables.md"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_columns_come_first_and_in_order(name: str) -> None:
    columns = PUBLIC[name].split()
    assert SPECS[name].column_names[: len(columns)] == columns
    if name != "responses":
        assert len(SPECS[name].columns) == len(columns)


def test_latest_tables_have_the_columns_of_their_source() -> None:
    assert SPECS["latest_abilities"].schema == SPECS["abilities"].schema
    assert SPECS["latest_item_parameters"].schema == SPECS["item_parameters"].schema


@specs
def test_every_column_says_what_it_means(spec: TableSpec) -> None:
    assert spec.comment.endswith(".")
    assert all(len(column.comment) > 10 for column in spec.columns)
    assert all(not set(column.name) & set(" ,;{}()\n\t=") for column in spec.columns)


@specs
def test_keys_and_partitions_are_required_columns(spec: TableSpec) -> None:
    required = {column.name for column in spec.columns if column.required}
    optional_keys = {"source", "position"} if spec.name == "quarantine" else set()
    assert set(spec.key) - optional_keys <= required
    assert set(spec.partition_by) <= required
    assert not {"model_id", "item_id", "benchmark", "run_id"} & set(spec.partition_by)


@specs
def test_every_double_is_bounded_so_that_nan_and_infinity_are_refused(spec: TableSpec) -> None:
    for column in spec.columns:
        if column.kind == "double":
            assert "BETWEEN" in spec.checks[f"{column.name}_valid"] or "<=" in spec.checks[f"{column.name}_valid"]


def test_statement_quotes_what_it_is_given() -> None:
    assert literal("it's \\ fine") == "'it\\'s \\\\ fine'"
    statement = create_statement(SPECS["responses"], "delta.`/a b`")
    assert statement.startswith("CREATE TABLE IF NOT EXISTS delta.`/a b` (")
    assert "PARTITIONED BY (benchmark_bucket)" in statement


@pytest.mark.parametrize(
    ("root", "catalog", "location", "sql_name"),
    [
        ("warehouse", False, "warehouse/runs", "delta.`warehouse/runs`"),
        ("/data/a`b/", False, "/data/a`b/runs", "delta.`/data/a``b/runs`"),
        ("s3a://bucket/x.y", False, "s3a://bucket/x.y/runs", "delta.`s3a://bucket/x.y/runs`"),
        ("./night.v2", False, "./night.v2/runs", "delta.`./night.v2/runs`"),
        ("a b.c", False, "a b.c/runs", "delta.`a b.c/runs`"),
        (".hidden", False, ".hidden/runs", "delta.`.hidden/runs`"),
        ("main.cbmm", True, "main.cbmm.runs", "`main`.`cbmm`.`runs`"),
        ("my-catalog.schéma", True, "my-catalog.schéma.runs", "`my-catalog`.`schéma`.`runs`"),
    ],
)
def test_roots_are_paths_or_catalog_schemas(root: str, catalog: bool, location: str, sql_name: str) -> None:
    address = Address.parse(root)
    assert (address.catalog, address.location("runs"), address.sql_name("runs")) == (catalog, location, sql_name)


@pytest.mark.parametrize(("root", "says"), [("", "empty"), ("  ", "empty"), ("a.b.c", "two names")])
def test_other_roots_are_refused(root: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Address.parse(root)


def test_a_commit_is_tried_again_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(retry_module.time, "sleep", pauses.append)
    calls = 0

    def always_late() -> None:
        nonlocal calls
        calls += 1
        raise ConcurrentAppendException("somebody was faster")

    with pytest.raises(ConflictError, match=r"another job keeps writing to runs .*run again"):
        with_commit_retry(always_late, "runs")
    assert calls == retry_module.RETRIES + 1
    assert pauses == sorted(pauses)
    assert len(pauses) == retry_module.RETRIES


def test_a_commit_that_wins_at_last_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module.time, "sleep", lambda seconds: None)
    outcomes = iter([ConcurrentAppendException("late"), ConcurrentAppendException("late"), 7])

    def commit() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert with_commit_retry(commit) == 7


def test_other_errors_are_not_tried_again() -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise ValueError("not a conflict")

    with pytest.raises(ValueError, match="not a conflict"):
        with_commit_retry(broken)
    assert len(calls) == 1
