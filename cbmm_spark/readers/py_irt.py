"""JSON lines of py-irt, one subject a line: https://github.com/nd-ball/py-irt.

`{"subject_id": "model", "responses": {"item": 1, "other item": 0}}`; a line need not have all items.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Roles, Sample, canonical, unquoted
from cbmm_spark.readers.files import lines_of, numbered_lines

_SUBJECT = re.compile(r'^\s*\{(.*[,\s])?\s*"subject_id"\s*:', re.DOTALL)
_RESPONSES = re.compile(r'"responses"\s*:\s*\{')
_OPTIONS = {"allowNonNumericNumbers": "true"}


def _detect(sample: Sample) -> str | None:
    line = sample.first_line
    fits = _SUBJECT.match(line) and _RESPONSES.search(line)
    return "its first line has a subject_id and responses by item" if fits else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if options.model is not None:
        raise InputError(f"{sample.path} has a subject_id in every line, which is the model: leave out --model")
    path = sample.path
    raw = _of_lines(lines_of(spark, path), options, path)
    return replace(
        raw,
        numbered=lambda sources: _of_lines(numbered_lines(spark, path, sources), options, path).frame,
        first_line=1,
    )


def _of_lines(lines: DataFrame, options: ReadOptions, path: str) -> RawFrame:
    origin = [name for name in ("source", "position") if name in lines.columns]
    parsed = F.from_json("value", "subject_id string, responses string", _OPTIONS)
    by_item = F.from_json("parsed.responses", "map<string,string>", _OPTIONS)
    frame = lines.withColumn("parsed", parsed).withColumn("by_item", by_item)
    # Two answers to one item in one line are both in the map: which of them holds is for the duplicates rule to say.
    malformed = F.col("by_item").isNull() | F.col("parsed.subject_id").isNull()
    # A line is let go of before its responses become rows: each of them would carry a copy.
    frame = frame.withColumn("malformed", malformed).select(
        F.col("parsed.subject_id").alias("subject_id"),
        *origin,
        "malformed",
        F.when(F.col("malformed"), F.col("value")).alias("value"),
        (F.size("by_item") == 0).alias("empty"),
        F.when(~F.col("malformed"), F.col("by_item")).alias("by_item"),
    )
    frame = frame.select(
        *("subject_id", *origin, "malformed", "value", "empty"),
        F.explode_outer("by_item").alias("item", "answer"),
    ).withColumn("response", unquoted(F.col("answer")))
    response = F.struct("subject_id", "item", "response")
    return canonical(
        frame,
        Roles({"model": "subject_id", "item": "item", "score": "response"}),
        options,
        path,
        source=F.col("source"),
        position=F.col("position") if "position" in origin else None,
        problem=F.when(F.col("malformed"), "malformed_row").when(F.col("empty"), "no_result"),
        raw=F.when(F.col("malformed"), F.to_json(F.struct(F.col("value").alias("row")))).otherwise(
            F.to_json(response, {"ignoreNullFields": "false"})
        ),
    )


READER = Reader("py-irt", "JSON lines of py-irt, one subject with all its responses a line", _detect, _read)
