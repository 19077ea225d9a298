"""Run folders of HELM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cbmm_spark.config.schema import METRICS, IngestConfig
from cbmm_spark.errors import InputError
from tests.spark.reader_samples import HARD_NAMES, defaults_of, read_with, rows_of, validate

RUN = "mmlu:subject=college physics,method=joint,model=org_x+y (1)"
TYPOS = {"name": "typos", "robustness": True, "prob": 0.1}


def stat(name: str, mean: Any = 1.0, **more: Any) -> dict[str, Any]:
    """A metric's value; without a mean where it was taken over nothing."""
    value = {} if mean is None else {"mean": mean}
    return {"name": {"name": name, "split": "test", **more}, "count": int(mean is not None), "sum": mean or 0, **value}


def record(item: str, *stats: dict[str, Any], trial: int = 0, **more: Any) -> dict[str, Any]:
    return {"instance_id": item, "train_trial_index": trial, "stats": list(stats), **more}


def write_run(folder: Path, run: str, model: str, records: object, spec: bool = True, indent: int | None = 2) -> Path:
    """A run as HELM writes it; the slashes of its name become _."""
    path = folder / run.replace("/", "_")
    path.mkdir(parents=True)
    (path / "per_instance_stats.json").write_text(
        records if isinstance(records, str) else json.dumps(records, indent=indent)
    )
    (path / "stats.json").write_text("[]")
    (path / "scenario_state.json").write_text(json.dumps({"request_states": [{"prompt": "p" * 1000}]}))
    if spec:
        adapter = {"method": "multiple_choice_joint", "model": model, "max_train_instances": 5}
        (path / "run_spec.json").write_text(json.dumps({"name": run.replace("/", "_"), "adapter_spec": adapter}))
    return path


def test_runs_of_two_models(spark: SparkSession, tmp_path: Path) -> None:
    suite = tmp_path / "benchmark output é%20" / "runs" / "v1 (a)"
    write_run(suite, RUN, "org/x+y (1)", [record("id 1", stat("exact_match", 1.0)), record("id/2", stat("f1", 0.5))])
    write_run(suite, "gsm:model=b,stop=none", "b", [record("id1", stat("exact_match", 0), trial=2)], indent=None)
    write_run(suite, "boolq:model=b", "b", [record("id1", stat("exact_match"))])
    raw, name, reason = read_with(spark, suite.parent)
    assert name == "helm"
    assert "3 runs" in reason
    assert rows_of(raw.frame, "model_id", "benchmark", "item_id", "attempt", "score_raw", "position", "problem") == [
        ("b", "boolq", "id1", "0", "1.0", 0, None),
        ("b", "gsm:stop=none", "id1", "2", "0", 0, None),
        ("org/x+y (1)", "mmlu:subject=college physics,method=joint", "id 1", "0", "1.0", 0, None),
        ("org/x+y (1)", "mmlu:subject=college physics,method=joint", "id/2", "0", "0.5", 1, None),
    ]
    assert defaults_of(raw) == {}
    one = suite / RUN.replace("/", "_")
    for path in (one, one / "per_instance_stats.json"):
        assert read_with(spark, path)[0].frame.select("model_id").distinct().collect() == [("org/x+y (1)",)]


def test_metrics_of_one_answer_are_brought_together(spark: SparkSession, tmp_path: Path) -> None:
    records = [
        record("a", stat("num_tokens", 7), stat("f1", 0.25)),
        record("a", stat("toxicity", 0.1), stat("exact_match", 0.0)),
        record("b", stat("num_tokens", 7)),
        record("c", stat("exact_match", None), stat("f1", 1.0)),
        record("d", stat("exact_match", float("nan"))),
    ]
    write_run(tmp_path, "r:model=m", "m", records)
    raw, _, _ = read_with(spark, tmp_path)
    assert rows_of(raw.frame, "item_id", "score_raw", "problem") == [
        ("a", "0.0", None),
        ("b", None, "unknown_metric"),
        ("c", "", None),
        ("d", "NaN", None),
    ]
    refused = raw.frame.where("problem IS NOT NULL").head()
    assert json.loads(refused["raw"])["stats"] == {"num_tokens": "7"}
    assert rows_of(validate(raw.frame, IngestConfig()), "item_id", "score", "reason") == [
        ("a", 0.0, None),
        ("b", None, "unknown_metric"),
        ("c", None, None),
        ("d", None, None),
    ]


def test_metric_by_benchmark(spark: SparkSession, tmp_path: Path) -> None:
    both = [record("a", stat("exact_match", 0.0), stat("final_number_exact_match", 1.0))]
    for run in ("gsm:model=m", "other:model=m"):
        write_run(tmp_path, run, "m", both)
    rules = IngestConfig(metrics={"*": METRICS, "gsm": ("final_number_exact_match",)})
    raw, _, _ = read_with(spark, tmp_path, rules=rules)
    assert rows_of(raw.frame, "benchmark", "score_raw") == [("gsm", "1.0"), ("other", "0.0")]


def test_perturbed_answers_are_not_the_plain_answer(spark: SparkSession, tmp_path: Path) -> None:
    records = [
        record("a", stat("exact_match", 1.0)),
        record("a", stat("exact_match", 0.0, perturbation=TYPOS), perturbation=TYPOS),
        record("b", stat("exact_match", 0.0, perturbation={"name": "worst"}), stat("exact_match", 1.0)),
    ]
    write_run(tmp_path, "r:model=m", "m", records)
    raw, _, _ = read_with(spark, tmp_path)
    assert rows_of(raw.frame, "item_id", "score_raw", "problem") == [
        ("a", "1.0", None),
        ("a", None, "other_metric"),
        ("b", "1.0", None),
    ]


def test_two_values_of_one_metric_are_two_rows(spark: SparkSession, tmp_path: Path) -> None:
    records = [record("a", stat("acc", 1)), record("a", stat("acc", 0)), *[record("b", stat("acc", 1))] * 2]
    write_run(tmp_path, "r:model=m", "m", records)
    raw, _, _ = read_with(spark, tmp_path)
    assert rows_of(raw.frame, "item_id", "score_raw") == [("a", "0"), ("a", "1"), ("b", "1")]


def test_runs_without_specification_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    write_run(tmp_path, "r:k=1,model=org/m,max=2", "", [record("a", stat("acc", 1))], spec=False)
    raw, _, _ = read_with(spark, tmp_path)
    assert rows_of(raw.frame, "model_id", "benchmark") == [("org_m", "r:k=1,max=2")]
    assert list(defaults_of(raw).values()) == [1]
    nameless = tmp_path / "other"
    write_run(nameless, "run", "", [record("a", stat("acc", 1))], spec=False)
    raw, _, _ = read_with(spark, nameless)
    assert rows_of(validate(raw.frame, IngestConfig()), "reason") == [("missing_model",)]


def test_bad_records_are_kept_with_file_and_position(spark: SparkSession, tmp_path: Path) -> None:
    mixed = [record("a", stat("acc", 1)), "text", 7, None, {"other": 1}, [1], record("b", stat("acc", 0))]
    write_run(tmp_path, "mixed:model=m", "m", mixed)
    write_run(tmp_path, "cut:model=m", "m", '[{"instance_id": "a", "stats"')
    write_run(tmp_path, "object:model=m", "m", '{"instance_id": "a"}')
    write_run(tmp_path, "empty:model=m", "m", [])
    raw, _, _ = read_with(spark, tmp_path)
    assert rows_of(raw.frame, "benchmark", "position", "problem") == [
        ("cut", None, "malformed_row"),
        ("empty", None, "no_result"),
        *[("mixed", at, None if at in (0, 6) else "malformed_row") for at in range(7)],
        ("object", None, "malformed_row"),
    ]
    cut = raw.frame.where("benchmark = 'cut'").head()
    assert "cut:model=m" in cut["source"]
    assert json.loads(cut["raw"])["row"].startswith('[{"instance_id"')


def test_bad_input_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "r:model=m", "m", [record("a", stat("acc", 1))])
    for option in ("model", "benchmark"):
        with pytest.raises(InputError, match=f"leave out --{option}"):
            read_with(spark, tmp_path, **{option: "x"})
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"no per_instance_stats\.json"):
        read_with(spark, tmp_path / "a.json", "helm")


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1), max_size=20),
    means=st.lists(st.floats(0, 1), min_size=1),
)
def test_any_name_and_mean_is_read_back(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, names: list[str], means: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("helm")
    ids = list(dict.fromkeys([*HARD_NAMES, *names]))
    expected = {item: means[at % len(means)] for at, item in enumerate(ids)}
    write_run(folder, "r:model=m", HARD_NAMES[2], [record(item, stat("acc", mean)) for item, mean in expected.items()])
    raw, _, _ = read_with(spark, folder)
    rows = raw.frame.collect()
    assert {row["item_id"]: float(row["score_raw"]) for row in rows} == expected
    assert {row["model_id"] for row in rows} == {HARD_NAMES[2]}
