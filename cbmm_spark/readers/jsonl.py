"""JSON lines, one object a response. Format: https://jsonlines.org/.

Each line is kept as text and only the configured keys are taken out of it, as they are written: 7 becomes "7", true
"true".
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import (
    FIRST_ATTEMPT,
    ROLES,
    RawFrame,
    Reader,
    ReadOptions,
    Roles,
    Sample,
    assign_roles,
    assumed,
    canonical,
)
from cbmm_spark.readers.delimited import has_suffix
from cbmm_spark.readers.files import lines_of, reading

SUFFIXES = (".jsonl", ".ndjson", ".json")
_MALFORMED = "_cbmm_malformed"
_SAMPLED_LINES = 1000


def _detect(sample: Sample) -> str | None:
    if sample.first_line.lstrip()[:1] != "{":
        return None
    return (
        "its name and its first line are those of JSON lines"
        if has_suffix(sample.files, SUFFIXES)
        else ("its first line is a JSON object")
    )


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if sample.first_line.lstrip()[:1] == "[":
        raise InputError(f"{sample.path} is one JSON list; write one object a line (jq -c '.[]' does it)")
    lines = lines_of(spark, sample.path)
    with reading(sample.path):
        roles = _roles(lines.limit(_SAMPLED_LINES).select(_keys()).distinct().collect(), options, sample.path)
    taken = {role: getattr(options.columns, role) for role in ROLES if role not in _given(options)}
    keys = dict.fromkeys(alias for aliases in taken.values() for alias in aliases)
    schema = T.StructType([T.StructField(name, T.StringType()) for name in [*keys, _MALFORMED]])
    parsed = F.from_json(
        "value",
        schema,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED, "allowNonNumericNumbers": "true"},
    )
    frame = lines.select("value", "source", parsed.alias("parsed"))
    frame = frame.select("value", "source", F.col(f"parsed.{_MALFORMED}").alias(_MALFORMED), *_taken(taken, options))
    malformed = F.col(_MALFORMED).isNotNull()
    raw = canonical(
        frame,
        Roles({role: role for role in taken}, roles.notes),
        options,
        sample.path,
        source=F.col("source"),
        problem=F.when(malformed, "malformed_row"),
        raw=F.when(malformed, F.to_json(F.struct(F.col("value").alias("row")))).otherwise(F.col("value")),
    )
    return replace(raw, defaults=assumed(roles, options))


def _keys() -> Column:
    return F.explode(F.json_object_keys("value")).alias("key")


def _roles(rows: list[T.Row], options: ReadOptions, path: str) -> Roles:
    found = sorted(row.key for row in rows)
    if not found:
        raise InputError(f"{path} holds no JSON objects, one a line")
    return assign_roles(found, options, path)


def _given(options: ReadOptions) -> set[str]:
    """Roles that the command line fills."""
    return {role for role, value in (("model", options.model), ("benchmark", options.benchmark)) if value is not None}


def _taken(taken: dict[str, tuple[str, ...]], options: ReadOptions) -> list[Column]:
    """One column a role: the first of its keys that the line has. Unlike rows, lines may differ in their keys."""
    otherwise = {"benchmark": options.default_benchmark, "attempt": str(FIRST_ATTEMPT)}
    return [
        F.coalesce(*(F.col("parsed").getField(key) for key in keys), F.lit(otherwise.get(role))).alias(role)
        for role, keys in taken.items()
    ]


READER = Reader("jsonl", "JSON lines, one object a response", _detect, _read)
