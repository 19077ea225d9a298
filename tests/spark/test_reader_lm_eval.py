"""lm-evaluation-harness: one observation a document, whatever the folder, the filters and the metrics are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row, SparkSession

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RAW_COLUMNS, RawFrame
from tests.spark.reader_samples import Read, defaults_of, rows_with

STAMP = "2024-09-26T08-31-39.355596"


def line(doc_id: Any, filter: str | None = "none", **scores: Any) -> dict[str, Any]:
    """A record in the order of the harness, prompts before and scores after the short keys."""
    prompt = f'Q: {{"filter": "x", "acc": 1, "doc_id": 99}} "{doc_id}" \n' * 3
    record = {"doc_id": doc_id, "doc": {"question": prompt, "filter": "not this", "acc": 1}, "target": "a",
              "arguments": {"gen_args_0": {"arg_0": prompt}}, "resps": [[prompt]], "filtered_resps": [prompt],
              "metrics": list(scores), "doc_hash": f"h{doc_id}"}  # fmt: skip
    return {**record, **({} if filter is None else {"filter": filter}), **scores}


def write(
    root: Path, folder: str, task: str, lines: list[Any], stamp: str = STAMP, results: dict[str, Any] | None = None
) -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    path = root / folder / f"samples_{task}_{stamp}.jsonl"
    text = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in lines)
    path.write_text("".join(f"{each}\n" for each in text), encoding="utf-8", newline="")
    if results is not None:
        (root / folder / f"results_{stamp}.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
    return path


def results(model: str, tasks: dict[str, list[str]], version: Any = 3.0, args: Any = "pretrained=x") -> dict[str, Any]:
    scores = {task: {"alias": task, **{f"{m}{extra},{f}": 0.5 for f in filters for m in ("acc",) for extra in
                                       ("", "_stderr")}} for task, filters in tasks.items()}  # fmt: skip
    return {"results": scores, "configs": {"x": {"d": "y" * 99}}, "versions": dict.fromkeys(tasks, version),
            "config": {"model": "h", "model_args": args}, "model_name": model, "model_name_sanitized": ""}  # fmt: skip


def rows(raw: RawFrame, problem: str | None = None) -> list[Row]:
    return rows_with(raw, problem, "benchmark", "model_id", "item_id")


def scores(raw: RawFrame) -> dict[str, str]:
    return {row["item_id"]: row["score_raw"] for row in rows(raw)}


def test_a_folder_of_models(read: Read, tmp_path: Path) -> None:
    odd = "räum a+b 100%25 #1 [x]"
    told = results(
        "Org/X: 1 😀", {"arc": ["none"], "mmlu:pro 1": ["none"]}, args="pretrained=Org/X,revision=step3000,d=1"
    )
    write(tmp_path, f"{odd}/Org__X", "arc", [line(0, acc=1, acc_norm=0.0), line(1, acc=0, acc_norm=1.0)], results=told)
    write(tmp_path, f"{odd}/Org__X", "mmlu:pro 1", [line("a whole sentence. ü", acc="maybe")])
    write(tmp_path, f"{odd}/Org__Y", "arc", [line(0, acc_norm=1.0)])
    raw, format, reason = read(tmp_path)
    assert format == "lm-eval"
    assert "samples_<task>_<time>.jsonl" in reason
    assert raw.frame.columns[: len(RAW_COLUMNS)] == list(RAW_COLUMNS)
    assert all(name.startswith("_") for name in raw.frame.columns[len(RAW_COLUMNS) :])
    assert [(row["model_id"], row["benchmark"], row["item_id"], row["score_raw"]) for row in rows(raw)] == [
        ("Org/Y", "arc", "0", "1.0"),
        ("Org/X: 1 😀@step3000", "arc@3.0", "0", "0.0"),
        ("Org/X: 1 😀@step3000", "arc@3.0", "1", "1.0"),
        ("Org/X: 1 😀@step3000", "mmlu:pro 1@3.0", "a whole sentence. ü", "maybe"),
    ]
    row = rows(raw)[0]
    assert row["attempt"] == 1
    assert row["content_hash"] == "h0"
    assert row["evaluated_at_raw"].isoformat() == "2024-09-26T08:31:39.355596"
    assert row["source"].endswith(".jsonl")
    assert json.loads(row["raw"]) == {"doc_id": "0", "doc_hash": "h0", "filter": "none", "acc_norm": "1.0"}
    assert defaults_of(raw) == {
        'metric acc_norm taken by ingest.metrics."*"': 3, 'metric acc taken by ingest.metrics."*"': 1,
        "the only filter of its task taken": 4, "model named after its folder": 1, "no version of the task known": 1,
    }  # fmt: skip
    assert any("named after the folder, Org/Y" in note for note in raw.notes)
    without, _, _ = read(tmp_path, revision="ignore", version="ignore")
    assert {(row["model_id"], row["benchmark"]) for row in rows(without)} == {
        ("Org/X: 1 😀", "arc"), ("Org/X: 1 😀", "mmlu:pro 1"), ("Org/Y", "arc"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "args", ["revision=a,pretrained=m", "pretrained=m,revision=a", {"pretrained": "m", "revision": "a"}]
)
def test_a_revision_is_another_model(read: Read, tmp_path: Path, args: Any) -> None:
    write(tmp_path, "m", "t", [line(0, acc=1)], results=results("m", {"t": ["none"]}, "N/A", args))
    row = rows(read(tmp_path)[0])[0]
    assert (row["model_id"], row["benchmark"]) == ("m@a", "t")


@pytest.mark.parametrize("told", [True, False])
def test_one_declared_filter_counts(read: Read, tmp_path: Path, told: bool) -> None:
    filters = ["strict-match", "flexible-extract"]
    lines = [line(i, each, exact_match=float(each != "strict-match")) for each in filters for i in range(3)]
    write(tmp_path, "m", "gsm8k", lines, results=results("m", {"gsm8k": filters}) if told else None)
    with pytest.raises(InputError) as refused:
        read(tmp_path)
    assert "task gsm8k has the filters flexible-extract, strict-match" in str(refused.value)
    assert "ingest.filters.gsm8k = " in str(refused.value)
    assert "\n" not in str(refused.value)
    for declared in ({"gsm8k": ("flexible-extract",)}, {"*": ("other", "flexible-extract", "strict-match")}):
        raw, _, _ = read(tmp_path, filters=declared)
        assert scores(raw) == {"0": "1.0", "1": "1.0", "2": "1.0"}
        assert len(rows(raw, "other_filter")) == 3
        assert "filter flexible-extract counts for gsm8k" in raw.notes
        assert "the only filter of its task taken" not in defaults_of(raw)
    with pytest.raises(InputError, match=r"none of those that ingest\.filters\.gsm8k names"):
        read(tmp_path, filters={"gsm8k": ("x", "y")})


def test_a_filter_for_all_benchmarks_leaves_those_with_another_one(read: Read, tmp_path: Path) -> None:
    write(tmp_path, "m", "mmlu", [line(0, acc=1)])
    write(tmp_path, "m", "gsm8k", [line(0, each, exact_match=1) for each in ("strict", "flexible")])
    raw, _, _ = read(tmp_path, filters={"*": ("strict",)})
    assert [(row["benchmark"], row["score_raw"]) for row in rows(raw)] == [("gsm8k", "1"), ("mmlu", "1")]
    assert defaults_of(raw)["the only filter of its task taken"] == 1


SCORES = {"NaN": "NaN", "null": "", '""': "", '"maybe"': "maybe", "0.5": "0.5", "50": "50", "1": "1", "true": "true",
          '"1.0"': "1.0", "9": "9", "99": "99", "1e-7": "1e-7", "[1]": "[1]", '{"a":1}': '{"a":1}'}  # fmt: skip


def test_scores_are_handed_on_as_written(read: Read, tmp_path: Path) -> None:
    write(tmp_path, "m", "t", [json.dumps(line(i, acc=7)).replace('"acc": 7', f'"acc": {text}')
                               for i, text in enumerate(SCORES)])  # fmt: skip
    found = scores(read(tmp_path)[0])
    assert [found[str(i)] for i in range(len(SCORES))] == list(SCORES.values())


def test_metrics_by_their_names(read: Read, tmp_path: Path) -> None:
    records = [line(0, acc=1), line(1, **{"acc,none": 1}), line(2, acc_norm=1, acc=0), line(3, None, **{"acc,none": 1}),
               line(4, **{"pass@1": 100}), line(5, bleu=1), line(6)]  # fmt: skip
    write(tmp_path, "m", "t", records)
    raw, _, _ = read(tmp_path)
    assert scores(raw) == {"0": "1", "1": "1", "2": "1", "3": "1", "4": "100"}
    assert [row["item_id"] for row in rows(raw, "unknown_metric")] == ["5", "6"]
    assert all(row["score_raw"] is None for row in rows(raw, "unknown_metric"))
    raw, _, _ = read(tmp_path, metrics={"*": ("acc",), "t": ("bleu",)})
    assert scores(raw) == {"5": "1"}
    assert not any(name.startswith("metric") for name in defaults_of(raw))
    both = {"exact_match,strict": 1, "exact_match,flexible": 0}
    write(tmp_path / "2", "m", "t", [line(0, None, **both)])
    assert scores(read(tmp_path / "2", filters={"t": ("strict",)})[0]) == {"0": "1"}


def test_bad_lines_are_named_not_guessed(read: Read, tmp_path: Path) -> None:
    bad = ['{"doc_id": 1, "acc": 1', '"text"', "17", "not JSON", '{"doc_id": 2 "acc": 1}', '{"acc": 1}' + "x" * 20_000]
    path = write(tmp_path, "m", "t", [line(0, acc=1), *bad[:5], "", line(3, acc=0)])
    raw, _, _ = read(tmp_path)
    assert scores(raw) == {"0": "1", "3": "0"}
    found = rows(raw, "malformed_row")
    assert sorted(json.loads(row["raw"])["row"] for row in found) == sorted(bad[:5])
    assert all(row["source"].endswith(path.name) for row in found)


def test_one_file_and_its_neighbour(read: Read, tmp_path: Path) -> None:
    path = write(tmp_path, "a [b] {c}", "t", [line(0, acc=1)], results=results("Org/Z", {"t": ["none"]}))
    write(tmp_path, "a [b] {c}", "u", [line(0, acc=1)])
    pattern = str(path).replace("a [b] {c}", "a*")
    raw, format, _ = read(pattern)
    assert format == "lm-eval"
    assert [(row["model_id"], row["benchmark"]) for row in rows(raw)] == [("Org/Z", "t@3.0")]


def test_names_given_on_the_command_line(read: Read, tmp_path: Path) -> None:
    write(tmp_path, "m", "t", [line(0, acc=1)])
    raw, _, _ = read(tmp_path, given={"model": "Org/M@main"})
    assert rows(raw)[0]["model_id"] == "Org/M@main"
    assert "model named after its folder" not in defaults_of(raw)
    with pytest.raises(InputError, match="leave out --benchmark"):
        read(tmp_path, given={"benchmark": "b"})
    write(tmp_path, "m", "t", [line(0, acc=1)], results=results("Org/X", {"t": ["none"]}))
    with pytest.raises(InputError, match="leave out --model"):
        read(tmp_path, given={"model": "Org/M"})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="no files named samples_"):
        read(tmp_path / "x", "lm-eval")


def test_other_lines_of_a_like_name_stay_json_lines(read: Read, tmp_path: Path) -> None:
    (tmp_path / "samples_of_mine.jsonl").write_text('{"model":"m","item":"i","correct":1}\n')
    assert read(tmp_path)[1] == "jsonl"


def test_a_damaged_results_file_is_as_none(read: Read, tmp_path: Path) -> None:
    write(tmp_path, "Org__X", "t", [line(0, acc=1)])
    (tmp_path / "Org__X" / f"results_{STAMP}.json").write_text('{"model_name": "cut o')
    raw, _, _ = read(tmp_path)
    assert rows(raw)[0]["model_id"] == "Org/X"
    assert defaults_of(raw)["model named after its folder"] == 1


def test_many_files_are_few_jobs(spark: SparkSession, read: Read, tmp_path: Path) -> None:
    for at in range(300):
        write(tmp_path, f"m{at % 30}", f"t{at // 30}", [line(0, acc=at % 2)], f"2024-09-26T08-31-{at // 30:02d}")
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("many files", "")
    raw, _, _ = read(tmp_path)
    assert raw.frame.groupBy("benchmark").count().count() == 10
    jobs = len(tracker.getJobIdsForGroup("many files"))
    spark.sparkContext.setJobGroup("", "")
    assert jobs < 40


NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=150)


@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=30, unique=True), model=NAMES)
def test_any_id_is_read_back_unchanged(read: Read, tmp_path: Path, names: list[str], model: str) -> None:
    ids = list(dict.fromkeys(["007", "1.0", "true", "null", "two\nlines", " padded ", "{}", 'say "hi"', *names]))
    lines = [line(name, acc=1) for name in ids]
    write(tmp_path, "m", "t", lines, results=results(model, {"t": ["none"]}))
    found = rows(read(tmp_path)[0])
    assert {row["item_id"] for row in found} == set(ids)
    assert {row["model_id"] for row in found} == {model}
