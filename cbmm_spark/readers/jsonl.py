"""JSON lines, one object a response. Format: https://jsonlines.org/.

Each line is kept as text and only the configured keys are taken out of it, as they are written: 7 becomes "7", true
"true".
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import (
    ROLES,
    RawFrame,
    Reader,
    ReadOptions,
    Roles,
    Sample,
    assign_roles,
    assumed,
    canonical,
    unquoted,
)
from cbmm_spark.readers.delimited import has_suffix
from cbmm_spark.readers.files import lines_of, numbered_lines, reading
from cbmm_spark.readers.rows import FIRST_ATTEMPT

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
    path = sample.path
    raw = of_lines(lines, options, path)
    return replace(
        raw,
        notes=(*roles.notes, *raw.notes),
        defaults={**raw.defaults, **assumed(roles, options)},
        numbered=lambda sources: of_lines(numbered_lines(spark, path, sources), options, path).frame,
        first_line=1,
    )


def of_lines(lines: DataFrame, options: ReadOptions, path: str) -> RawFrame:
    """Give lines their canonical columns.

    Parameters
    ----------
    lines
        JSON objects as `value`, their `source`, and their `position` where it is known.
    options, path
        As for a reader.
    """
    taken = {role: getattr(options.columns, role) for role in ROLES if role not in _given(options)}
    flags = options.rules.flags
    keys = dict.fromkeys([*(alias for aliases in taken.values() for alias in aliases), *flags])
    schema = T.StructType([T.StructField(name, T.StringType()) for name in [*keys, _MALFORMED]])
    parsed = F.from_json(
        "value",
        schema,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED, "allowNonNumericNumbers": "true"},
    )
    own = [name for name in ("value", "source", "position") if name in lines.columns]
    frame = lines.select(*own, parsed.alias("parsed"))
    frame = frame.select(
        *(F.col(name).alias(f"_{name}") for name in own),
        F.col(f"parsed.{_MALFORMED}").alias(_MALFORMED),
        *_taken(taken, options),
        *(F.col("parsed").getField(name).alias(f"_flag {name}") for name in flags),
        _has_no_score(taken["score"]).alias("_has_no_score"),
    )
    malformed = F.col(_MALFORMED).isNotNull()
    return canonical(
        frame,
        Roles({role: role for role in taken}),
        options,
        path,
        source=F.col("_source"),
        position=F.col("_position") if "position" in own else None,
        problem=F.when(malformed, "malformed_row").when(F.col("_has_no_score"), "missing_score"),
        raw=F.when(malformed, F.to_json(F.struct(F.col("_value").alias("row")))).otherwise(F.col("_value")),
        flags={name: f"_flag {name}" for name in flags},
    )


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
    found = {
        role: F.coalesce(*(F.col("parsed").getField(key) for key in keys), F.lit(otherwise.get(role)))
        for role, keys in taken.items()
    }
    found["score"] = unquoted(found["score"])
    return [value.alias(role) for role, value in found.items()]


def _has_no_score(keys: tuple[str, ...]) -> Column:
    """Whether a line has none of the keys of a score; one that is null is no verdict."""
    is_null = F.coalesce(*(F.col("parsed").getField(key) for key in keys)).isNull()
    present = F.arrays_overlap(F.json_object_keys("value"), F.array(*map(F.lit, keys)))
    return F.when(is_null, ~F.coalesce(present, F.lit(True))).otherwise(False)  # lines that are no object: malformed


READER = Reader("jsonl", "JSON lines, one object a response", _detect, _read)
