"""Nothing is left without a word: what follows a JSON object on its line, and files of other harnesses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cbmm_spark.config.schema import ColumnsConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import Sample
from cbmm_spark.readers.left import has_more, left_files, refuse_several

ONE = json.dumps({"model": "m", "item": "}{", "correct": 1, "doc": {"a": [{}, {"b": "} x"}]}})


@pytest.mark.parametrize("line", [ONE, f"  {ONE}\t", '{"score": NaN}', "{", "{}", '{"a": 1', "\ufeff{}", "[{}]"])
def test_one_object_is_all_of_its_line(line: str) -> None:
    assert not has_more(line)


@pytest.mark.parametrize("more", ["{}", ONE, " {", "x", ", {}", " ]", "}", '"'])
def test_what_follows_an_object_is_seen(more: str) -> None:
    assert has_more(ONE + more)


def sample(*files: str) -> Sample:
    return Sample("folder", [f"file:/data/folder/{name}" for name in files], "", (), False, ColumnsConfig())


LM_EVAL = ("m/samples_arc_2025-01-01T00-00-00.000000.jsonl", "m/results_2025-01-01T00-00-00.000000.json")
HELM = ("run/per_instance_stats.json", "run/run_spec.json", "run/scenario.json")
INSPECT = ("2025-01-01T00-00-00+00-00_arc_abc.json", "x.eval")
DETAILS = ("org__m/details_harness|arc_2025-01-01.parquet",)


@pytest.mark.parametrize("files", [LM_EVAL + HELM, HELM + INSPECT[:1], INSPECT[1:] + LM_EVAL[:1], DETAILS + LM_EVAL])
def test_a_folder_of_several_harnesses_is_refused_by_name(files: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"several formats: .*such as .*ingest each by itself"):
        refuse_several(sample(*files))


@pytest.mark.parametrize("files", [LM_EVAL, HELM, INSPECT, DETAILS, ("a.csv", "b.csv"), ()])
def test_one_harness_with_its_side_files_is_not(files: tuple[str, ...]) -> None:
    refuse_several(sample(*files, "README.md", "run.log"))


@pytest.mark.parametrize(("format", "files"), [("lm-eval", LM_EVAL), ("helm", HELM), ("inspect", INSPECT)])
def test_other_files_are_told_and_side_files_are_not(format: str, files: tuple[str, ...]) -> None:
    assert left_files(sample(*files, "README.md", "notes.txt", "run.log"), format) == ()
    (note,) = left_files(sample(*files, "ranking.csv", "x.parquet"), format)
    assert "2 files were left" in note
    assert "ranking.csv" in note
    assert left_files(sample("a.csv", "b.parquet"), "csv") == ()


def test_a_path_is_no_part_of_a_name() -> None:
    assert left_files(sample(*(f"{Path(name).parent}/samples_x.jsonl" for name in LM_EVAL)), "lm-eval") == ()
