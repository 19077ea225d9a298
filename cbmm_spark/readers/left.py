"""What a reader would leave without a word: files of another format, and text after a JSON object on its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import Sample
from cbmm_spark.readers.files import all_files, reading

HARNESSES = {
    "lm-eval": re.compile(r"samples_.+\.jsonl?(\.\w+)?"),
    "helm": re.compile(r"per_instance_stats\.json"),
    "inspect": re.compile(r".+\.eval|\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}.*_.+\.json"),
    "open-llm-details": re.compile(r"details_.+\.parquet"),
}
"""Names of the files that evaluation harnesses write results into."""

_BESIDE = {
    "lm-eval": re.compile(r"results_.*\.json"),
    "helm": re.compile(r"(run_spec|scenario|scenario_state|stats|instances|display_\w+|config|costs)\.json"),
    "inspect": re.compile(r"(logs|eval-set|listing)\.json|.*\.eval\.bak"),
    "open-llm-details": re.compile(r"results_.*\.(json|parquet)"),
}
_SIDE_FILE = re.compile(
    r"(readme|license|notice|changelog)(\..*)?|.+\.(md|txt|log|ya?ml|toml|ini|html?|png|svg|pdf|py|sh)"
)

JSON_LINES = {"jsonl": "*", "lm-eval": "samples_*.json*", "openai-evals": "*.json*", "py-irt": "*"}
"""Formats that are read line by line, and the names of the files that they take."""

_SHOWN = 3
_LONGEST_SHOWN = 80


def refuse_several(sample: Sample) -> None:
    """See that not more than one harness wrote into a folder.

    Raises
    ------
    InputError
        Several did: only one format's files would be taken.
    """
    found = {format: [file for file in sample.files if _fits(pattern, file)] for format, pattern in HARNESSES.items()}
    present = {format: files for format, files in found.items() if files}
    if len(present) > 1:
        told = ", ".join(f"{len(files):,} of {name} (such as {_name(files[0])})" for name, files in present.items())
        raise InputError(
            f"{sample.path} holds files of several formats: {told}; ingest each by itself, with --format and a folder "
            "or a pattern of its files"
        )


def left_files(sample: Sample, format: str) -> tuple[str, ...]:
    """Say, as a note of the report, which files a harness's reader leaves beside its own and their side files."""
    if format not in HARNESSES or len(sample.files) < 2:
        return ()
    taken = (HARNESSES[format], _BESIDE[format], _SIDE_FILE)
    left = [_name(file) for file in sample.files if not any(_fits(pattern, file) for pattern in taken)]
    if not left:
        return ()
    more = f" and {len(left) - _SHOWN:,} more" if len(left) > _SHOWN else ""
    return (f"{len(left):,} files were left, for {format} does not read them: {', '.join(left[:_SHOWN])}{more}",)


def _name(file: str) -> str:
    return PurePosixPath(file).name


def _fits(pattern: re.Pattern[str], file: str) -> bool:
    return pattern.fullmatch(_name(file).lower() if pattern is _SIDE_FILE else _name(file)) is not None


def refuse_joined_objects(spark: SparkSession, path: str, format: str) -> None:
    """See that every line that begins with a JSON object ends with it; Spark would drop what follows.

    Raises
    ------
    InputError
        There is another object, or text, after an object on its line.
    """
    if format not in JSON_LINES:
        return
    lines = all_files(spark).option("pathGlobFilter", JSON_LINES[format]).text(path)
    # Whatever is not exactly one value is looked at once more: NaN, for one, is not JSON to this function.
    is_one = F.coalesce(F.json_array_length(F.concat(F.lit("["), "value", F.lit("]"))) == 1, F.lit(False))
    begins = F.ltrim("value").startswith("{")
    suspects = lines.where(begins & ~is_one).select("value", F.col("_metadata.file_path").alias("source"))
    with reading(path):
        found = suspects.mapInArrow(_only_joined, "value string, source string").limit(_SHOWN).collect()
    if found:
        row = found[0]
        raise InputError(
            f"{path}: {_name(row['source'])} has something after a JSON object on its line, which begins "
            f"{row['value']!r}; write one object a line (`jq -c . FILE` does it)"
        )


def _only_joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
        joined = [(text.strip()[:_LONGEST_SHOWN], source) for text, source in rows if has_more(text)]
        columns = list(zip(*joined, strict=True)) if joined else [(), ()]
        yield pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in columns], names=["value", "source"])


def has_more(line: str) -> bool:
    """Whether something follows the JSON object that a line begins with. What is no object at all has not."""
    text = line.strip(" \t\r\n\ufeff")
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(text[end:].strip())


__all__ = ["HARNESSES", "JSON_LINES", "has_more", "left_files", "refuse_joined_objects", "refuse_several"]
