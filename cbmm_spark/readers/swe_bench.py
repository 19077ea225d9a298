"""Lists of solved and unsolved ids in the SWE-bench manner.

Reports of the harness: https://www.swebench.com/SWE-bench/guides/evaluation/ (`resolved_ids`, `unresolved_ids`,
`submitted_ids` …), and the leaderboard's submissions, https://github.com/SWE-bench/experiments, each a folder with
`results/results.json` (`resolved`, `no_generation`, `no_logs`). A file is one JSON object of lists, or a JSON list of
such objects or of single answers (`instance_id` with `status` or `resolved`), or, as in
https://github.com/scaleapi/SWE-bench_Pro-os, one object that tells of each id whether it was solved (`{"id": true}`).

Statuses go through as text; `[ingest.status]` says what each is worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.files import reading, whole_files
from cbmm_spark.readers.items import read_items
from cbmm_spark.readers.logs import LONGEST_RAW, decoded, raw_frame
from cbmm_spark.readers.rows import FIRST_ATTEMPT

LISTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "resolved": ("resolved", "resolved_ids"),
        "unresolved": ("unresolved", "unresolved_ids"),
        "empty": ("empty", "empty_patch", "empty_patch_ids", "no_generation"),
        "error": (
            "error",
            "errors",
            "error_ids",
            "no_logs",
            "no_apply",
            "install_fail",
            "reset_failed",
            "test_errored",
        ),
        "timeout": ("timeout", "timeout_ids", "test_timeout"),
        "incomplete": ("incomplete", "incomplete_ids"),
    }
)
"""Keys of lists of ids, by the status that they give."""

SUBMITTED = ("submitted", "submitted_ids", "completed", "completed_ids", "generated", "with_logs", "applied")
"""Keys of lists of ids for which the model gave an answer, whatever became of it."""

_MODEL_KEYS = ("model_name_or_path", "model", "model_name")
_ITEM_KEYS = ("instance_id", "item_id")
_NO_NAMES = (
    "results",
    "result",
    "report",
    "resolved",
    "instance_results",
    "eval_results",
)  # of files: the folder has the name
_TELLING = ("resolved_ids", "unresolved_ids", "submitted_ids", "completed_ids", "incomplete_ids", "empty_patch_ids",
            "error_ids", "no_generation", "no_logs", "resolved")  # fmt: skip
_LIST = re.compile(r'"(' + "|".join(_TELLING) + r')"\s*:\s*\[')
_VALUE = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*(\S)')
_ENTRY = "array<struct<item: string, status: string, problem: string, by: string>>"
_UNLISTED, _SUBMITTED_ONLY, _NOT_SUBMITTED = "unlisted", "submitted", "not submitted"


def _detect(sample: Sample) -> str | None:
    found = _LIST.search(sample.beginning)
    if found:
        return f"it has a list {found.group(1)} of ids"
    if not sample.beginning.lstrip().startswith("{"):
        return None
    # The first letters of the values: of true, false and null alone.
    values = {first for key, first in _VALUE.findall(sample.beginning) if key not in _MODEL_KEYS}
    return "it tells of each id true or false" if {"t", "f"} & values and values <= {"t", "f", "n"} else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if options.model is not None and len(sample.files) > 1:
        raise InputError(f"{sample.path} holds {len(sample.files):,} files, one for each model: leave out --model")
    pattern = "*.json" if len(sample.files) > 1 else None
    records = _records(whole_files(spark, sample.path, pattern), options.model)
    if options.items is None:
        _check_complete(records, sample.path)
        records = records.withColumn("universe", F.lit(None).cast("array<string>"))
    else:
        records = records.crossJoin(F.broadcast(read_items(spark, options.items)))
    benchmark = options.benchmark if options.benchmark is not None else options.default_benchmark
    left_out = sum(not name.endswith(".json") for name in sample.files) if pattern else 0
    return RawFrame(_canonical(records, benchmark), _notes(options, left_out), _defaults())


def _notes(options: ReadOptions, left_out: int) -> tuple[str, ...]:
    notes = [f"every row is attempt {FIRST_ATTEMPT}"]
    if options.model is None:
        notes.append(
            "the model is the name of the file, or of the folder where the file is called results.json or report.json"
        )
    if options.benchmark is None:
        notes.append(f"no benchmark named: ingest.default_benchmark ({options.default_benchmark}) was taken")
    if left_out:
        notes.append(f"{left_out:,} files whose names do not end in .json were not read")
    return tuple(notes)


def _defaults() -> dict[str, Column]:
    by = F.coalesce(F.col("_by"), F.lit(""))
    return {
        **dated_by_name(),
        "in no list, and the file does not tell what was submitted or unresolved: unresolved": by == _UNLISTED,
        "submitted, and in no other list: unresolved": by == _SUBMITTED_ONLY,
        "in no list of a file that tells what was submitted or unresolved: no verdict": by == _NOT_SUBMITTED,
    }


def _records(files: DataFrame, model: str | None) -> DataFrame:
    """One row per JSON object: its fields as JSON texts, its position in the file's list, model and date."""
    read = files.select("source", F.btrim("value", F.lit(" \t\r\n\ufeff")).alias("whole"))
    is_list = F.startswith("whole", F.lit("["))
    elements = F.try_variant_get(F.try_parse_json("whole"), "$", "array<variant>")
    texts = F.when(is_list, F.transform(elements, lambda each: _text_of(each))).otherwise(F.array("whole"))
    # What is computed beside an explode is computed for each of its rows: the file is let go of before.
    read = read.select(
        "source",
        is_list.alias("is_list"),
        F.substring("whole", 1, LONGEST_RAW).alias("broken"),
        texts.alias("texts"),
    )
    listed = read.select("source", "is_list", "broken", F.posexplode_outer("texts").alias("position", "record"))
    is_object = F.startswith("record", F.lit("{"))
    fields = F.when(is_object, F.from_json("record", "map<string,string>"))
    named = listed.select(
        "source",
        F.when(F.col("is_list"), F.col("position").cast("long")).alias("position"),
        F.substring(F.coalesce("record", "broken"), 1, LONGEST_RAW).alias("row"),
        fields.alias("fields"),
    )
    own = F.coalesce(*(F.col("fields")[key] for key in _MODEL_KEYS))
    name = model_of(decoded(F.col("source")))
    named = named.withColumns({"model_id": F.lit(model) if model is not None else F.coalesce(own, name), "name": name})
    lists = {f"ids_{status}": _ids(keys) for status, keys in LISTS.items()} | {"ids_submitted": _ids(SUBMITTED)}
    return named.withColumns({"evaluated_at": day_of(F.col("name")), **lists})


def _text_of(element: Column) -> Column:
    """A JSON value's text; that of a text is put in quotes, so that it is never taken for an object."""
    text = F.try_variant_get(element, "$", "string")
    return F.when(F.schema_of_variant(element) == "STRING", F.concat(F.lit('"'), text, F.lit('"'))).otherwise(text)


def model_of(path: Column) -> Column:
    """Return the name that a file gives to a model: its own, or its folder's where its own says nothing."""
    parts = F.split(path, "/")
    stem = F.regexp_replace(F.element_at(parts, -1), r"[.](json|txt|log|lst|md)([.]gz)?$", "")
    folder, above = F.get(parts, F.size(parts) - 2), F.get(parts, F.size(parts) - 3)
    return (
        F.when(~stem.isin(*_NO_NAMES), stem)
        .when(~folder.isin(*_NO_NAMES), folder)
        .otherwise(F.coalesce(above, folder, stem))
    )


def day_of(name: Column) -> Column:
    """Return the day that a name begins with, as in 20250805_name; null where these are no date."""
    digits = F.regexp_extract(name, "^((19|20)[0-9]{6})[_-]", 1)
    return F.when(digits != "", F.try_to_timestamp(digits, F.lit("yyyyMMdd"))).cast("timestamp")


def dated_by_name() -> dict[str, Column]:
    """Return the default that `day_of` is, and the rows it was applied to."""
    return {"evaluated_at by the date that the name of the file or folder begins with":
            F.col("evaluated_at_raw").isNotNull()}  # fmt: skip


def _ids(keys: tuple[str, ...]) -> Column:
    """The elements of all lists under some keys, null where there is no such list."""
    lists = [F.try_variant_get(F.try_parse_json(F.col("fields")[key]), "$", "array<variant>") for key in keys]
    nothing = F.array().cast("array<variant>")
    return F.when(F.coalesce(*lists).isNotNull(), F.concat(*(F.coalesce(each, nothing) for each in lists)))


def _check_complete(records: DataFrame, path: str) -> None:
    """Refuse files that tell only what was solved: the items that were not would be missing and not wrong.

    Raises
    ------
    InputError
        There is such a file.
    """
    tells = F.col("ids_unresolved").isNotNull() | F.col("ids_submitted").isNotNull()
    with reading(path):
        short = records.where(F.col("ids_resolved").isNotNull() & ~tells).select("source", "position")
        first = short.orderBy("source", "position").head()
    if first is not None:
        raise InputError(
            f"{path} lists the solved items but not all items (the first such file is {first['source']}): "
            "give the list of all items with --items FILE, one id a line"
        )


def _strings(elements: Column) -> Column:
    """The ids among a list's elements: texts, and numbers as text."""
    return F.transform(F.filter(elements, lambda each: ~_is_no_id(each)), lambda e: F.try_variant_get(e, "$", "string"))


def _is_no_id(element: Column) -> Column:
    """Whether an element is null, true or false, a list or an object."""
    return F.coalesce(F.schema_of_variant(element).rlike("^(OBJECT|ARRAY|VOID|BOOLEAN)"), F.lit(True))


def _entries(items: Column, status: str | None, problem: str | None = None, by: str | None = None) -> Column:
    def entry(item: Column) -> Column:
        texts = [F.lit(text).cast("string").alias(name) for name, text in
                 (("status", status), ("problem", problem), ("by", by))]  # fmt: skip
        return F.struct(item.alias("item"), *texts)

    return F.transform(items, entry).cast(_ENTRY)


def _of_lists() -> Column:
    """What an object of lists says about every item of the universe, and about others that it names."""
    none = F.array().cast("array<string>")
    ids = {status: F.coalesce(_strings(F.col(f"ids_{status}")), none) for status in LISTS}
    submitted = F.coalesce(_strings(F.col("ids_submitted")), none)
    listed = F.array_distinct(F.concat(*ids.values()))
    universe = F.coalesce(F.col("universe"), F.array_union(listed, submitted))
    rest = F.array_except(universe, listed)
    told = F.col("ids_submitted").isNotNull() | F.col("ids_unresolved").isNotNull()
    parts = [_entries(F.array_intersect(each, universe), status) for status, each in ids.items()]
    parts += [_entries(F.array_except(each, universe), status, "unknown_item") for status, each in ids.items()]
    parts.append(_entries(F.array_except(F.array_except(submitted, universe), listed), None, "unknown_item"))
    parts.append(_entries(F.array_intersect(rest, submitted), "unresolved", None, _SUBMITTED_ONLY))
    others = F.array_except(rest, submitted)
    parts.append(F.when(told, _entries(others, None, None, _NOT_SUBMITTED)).otherwise(
        _entries(others, "unresolved", None, _UNLISTED)))  # fmt: skip
    all_elements = F.concat(*(F.coalesce(F.col(f"ids_{name}"), F.array().cast("array<variant>"))
                              for name in (*LISTS, "submitted")))  # fmt: skip
    nested = F.transform(F.filter(all_elements, _is_no_id), lambda e: F.try_variant_get(e, "$", "string"))
    parts.append(_entries(nested, None, "malformed_row"))
    return F.concat(*parts)


def _of_answer(item: Column) -> Column:
    """What an object about one item says."""
    fields = F.col("fields")
    resolved = F.lower(fields["resolved"])
    status = F.coalesce(
        fields["status"], F.when(resolved == "true", "resolved").when(resolved == "false", "unresolved")
    )
    known = F.col("universe").isNull() | F.array_contains("universe", item)
    problem = F.when(~known, "unknown_item").when(status.isNull(), "malformed_row")
    entry = F.struct(item.alias("item"), status.alias("status"), problem.alias("problem"), F.lit(None).alias("by"))
    return F.array(entry).cast(_ENTRY)


def _is_map() -> Column:
    """Whether an object tells of each id whether it was solved, and nothing else but the model."""
    known = [key for keys in LISTS.values() for key in keys]
    fields = F.map_filter("fields", lambda key, _: ~key.isin(*_MODEL_KEYS))
    values = F.map_values(fields)
    plain = ~F.exists(values, lambda each: F.coalesce(each.rlike(r"^\s*[\[{]"), F.lit(False)))
    told = F.exists(values, lambda each: F.coalesce(each.isin("true", "false"), F.lit(False)))
    return plain & told & ~F.exists(F.map_keys(fields), lambda key: key.isin(*known, *SUBMITTED))


def _of_map() -> Column:
    """What an object of ids says about each of them, and about the rest of the universe."""

    def entry(item: Column, value: Column) -> Column:
        status = F.when(value == "true", "resolved").when(value == "false", "unresolved").otherwise(value)
        known = F.col("universe").isNull() | F.array_contains("universe", item)
        problem = F.when(~known, "unknown_item")
        return F.struct(item.alias("item"), status.alias("status"), problem.alias("problem"), F.lit(None).alias("by"))

    fields = F.map_filter("fields", lambda key, _: ~key.isin(*_MODEL_KEYS))
    told = F.transform(F.map_entries(fields), lambda each: entry(each["key"], each["value"])).cast(_ENTRY)
    others = F.array_except(F.coalesce("universe", F.map_keys(fields)), F.map_keys(fields))
    return F.concat(told, _entries(others, None, None, _NOT_SUBMITTED))


def _canonical(records: DataFrame, benchmark: str) -> DataFrame:
    item = F.coalesce(*(F.col("fields")[key] for key in _ITEM_KEYS))
    has_lists = F.coalesce(*(F.col(f"ids_{name}") for name in (*LISTS, "submitted"))).isNotNull()

    def only(problem: str) -> Column:
        return F.array(F.struct(*(F.lit(text) for text in (None, None, problem, None)))).cast(_ENTRY)

    entries = (
        F.when(F.col("fields").isNull(), only("malformed_row"))
        .when(has_lists, _of_lists())
        .when(item.isNotNull(), _of_answer(item))
        .when(_is_map(), _of_map())
        .otherwise(only("no_result"))
    )
    rows = records.select("source", "position", "model_id", "evaluated_at", "row", F.explode(entries).alias("entry"))
    entry = F.col("entry")
    told = F.struct(F.col("model_id").alias("model"), entry["item"].alias("item"), entry["status"].alias("status"))
    columns = {name: F.col(name) for name in ("model_id", "source", "position")}
    columns |= {
        "benchmark": F.lit(benchmark),
        "item_id": entry["item"],
        "score_raw": entry["status"],
        "evaluated_at_raw": F.col("evaluated_at"),
        "problem": entry["problem"],
        "raw": F.when(entry["item"].isNull(), F.to_json(F.struct("row"))).otherwise(
            F.to_json(told, {"ignoreNullFields": "false"})
        ),
    }
    return raw_frame(rows, columns, {"_by": entry["by"]})


READER = Reader("swe-bench", "JSON lists of resolved and other ids in the SWE-bench manner", _detect, _read)
