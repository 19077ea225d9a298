"""Samples of lm-evaluation-harness: `<model>/samples_<task>_<time>.jsonl` beside `results_<time>.json`.

Format: https://github.com/EleutherAI/lm-evaluation-harness/blob/main/docs/interface.md (`--output_path`,
`--log_samples`). Only the few keys that make a response are taken out of a line; prompts and answers are skipped by the
parser. What holds for a whole file (model, revision, task, version, time, the filter that counts) is found once a file
and joined to its lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ANY, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, column
from cbmm_spark.readers.files import all_files, binary_files, numbered, origin, reading
from cbmm_spark.readers.logs import (
    STAMP,
    base_name,
    cut,
    decoded,
    folder_of,
    metric_defaults,
    named_metric,
    raw_frame,
    stamp_as_time,
)
from cbmm_spark.readers.mapping import known_metrics, metric_of, with_revision, with_version

NO_FILTER = "none"
"""The filter of a record that names none, as the harness itself calls it."""

_SAMPLES = "samples_*.json*"
_SAMPLES_NAME = rf"^samples_(.+?)(?:_({STAMP}))?\.jsonl?(?:\.[a-z0-9]+)?$"
_RESULTS = "results_*.json"
_RESULTS_SCHEMA = (
    "model_name string, config struct<model_args: string>, versions map<string, string>, results map<string, string>"
)
_REVISION = r'(?:^|[,{\s])"?revision"?\s*[=:]\s*"?([^,"}\s]+)'
_METRIC_AND_FILTER = r'"[^",]+,([^"]+)"\s*:'
_FOLDERS_LOOKED_INTO = 1000
_MALFORMED = "_malformed"


@dataclass(frozen=True)
class _Choice:
    """The filter of a task that counts, and whether it was taken because there is no other."""

    filter: str
    only: bool


def _detect(sample: Sample) -> str | None:
    names = [path.rpartition("/")[2] for path in sample.files]
    if sample.parquet_columns or not any(re.match(_SAMPLES_NAME, name) for name in names):
        return None
    line = sample.first_line.strip()  # of a samples file, or of a results file on one line or on many
    if line != "{" and '"doc_id"' not in line and '"results"' not in line:
        return None
    return "its files are named samples_<task>_<time>.jsonl, as lm-evaluation-harness does"


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    rules = options.rules
    if options.benchmark is not None:
        raise InputError(f"{sample.path}: each file's name tells its task; leave out --benchmark")
    with reading(sample.path):
        files = _files(spark, sample, options)
        choices = _choose(spark, sample.path, _tasks(files), rules)
        filters = tuple(dict.fromkeys(choice.filter for choice in choices.values()))
        lines = _lines(spark, sample.path, _keys(rules, filters))
        about = F.broadcast(spark.createDataFrame(_with_filters(files, choices)))

    def frame(lines: DataFrame) -> DataFrame:
        return _responses(lines.join(about, "source"), rules, filters)

    return RawFrame(
        frame(lines),
        _notes(files, choices),
        _defaults(rules),
        numbered=lambda sources: frame(numbered(lines, sources)),
        first_line=1,
    )


# What holds for a whole file


def _files(spark: SparkSession, sample: Sample, options: ReadOptions) -> pa.Table:
    """One row a samples file, on the driver: a few short texts each, however large the files are."""
    path = decoded(F.col("source"))
    listed = (
        binary_files(spark, sample.path, _SAMPLES)
        .select(F.col("_metadata.file_path").alias("source"))
        .select("source", folder_of(path).alias("folder"), base_name(path).alias("name"))
        .select("source", "folder", *(F.regexp_extract("name", _SAMPLES_NAME, group).alias(name)
                                      for group, name in ((1, "task"), (2, "stamp"))))
        .where(F.length("task") > 0)
    )  # fmt: skip
    told = listed.join(_results(spark, sample), ["folder", "stamp"], "left")
    folder = F.regexp_replace(base_name(F.col("folder")), "__", "/")
    version = F.element_at("versions", F.col("task"))
    rows = told.select(
        "source", "task",
        F.col("told_model").isNotNull().alias("model_told"),
        F.coalesce("told_model", F.lit(options.model) if options.model is not None else folder).alias("model"),
        "revision",
        F.when(version != "N/A", version).alias("version"),
        stamp_as_time(F.col("stamp")).alias("evaluated_at"),
        F.array_join(F.element_at("filters", F.col("task")), "\n").alias("filters"),
    ).withColumn("model_guessed", ~F.col("model_told") & F.lit(options.model is None)).toArrow()  # fmt: skip
    if rows.num_rows == 0:
        raise InputError(f"{sample.path} holds no files named samples_<task>_<time>.jsonl")
    if options.model is not None and True in rows.column("model_told").unique().to_pylist():
        raise InputError(f"{sample.path}: results_<time>.json beside the samples names the model; leave out --model")
    return rows


def _results(spark: SparkSession, sample: Sample) -> DataFrame:
    """What results files tell: model, revision, and by task its version and the filters that it has."""
    path = decoded(F.col("_metadata.file_path"))
    reader = all_files(spark).schema(_RESULTS_SCHEMA).option("multiLine", "true")
    read = reader.option("pathGlobFilter", _RESULTS).json(_folders(sample))
    filters = F.transform_values(
        "results", lambda _, text: F.array_distinct(F.regexp_extract_all(text, F.lit(_METRIC_AND_FILTER)))
    )
    revision = F.regexp_extract("config.model_args", _REVISION, 1)
    return (
        read.select(
            folder_of(path).alias("folder"),
            F.regexp_extract(base_name(path), rf"^results_({STAMP})\.json$", 1).alias("stamp"),
            F.when(F.length("model_name") > 0, F.col("model_name")).alias("told_model"),
            F.when(F.length(revision) > 0, revision).alias("revision"),
            "versions",
            filters.alias("filters"),
        )
        .where(F.length("stamp") > 0)
        .dropDuplicates(["folder", "stamp"])
    )


def _folders(sample: Sample) -> list[str]:
    """Where results files are: in the source itself, or beside the files where it is only samples files."""
    if any(re.match(r"results_.*\.json$", path.rpartition("/")[2]) for path in sample.files):
        return [sample.path]
    folders = sorted({path.rpartition("/")[0] for path in sample.files})
    if len(folders) > _FOLDERS_LOOKED_INTO:
        return [sample.path]
    return [re.sub(r"([*?\[\]{}\\])", r"\\\1", folder) for folder in folders]


def _tasks(files: pa.Table) -> dict[str, set[str] | None]:
    """The filters of each task, by its results files; None where a samples file has none beside it."""
    tasks: dict[str, set[str] | None] = {}
    for row in files.group_by(["task", "filters"]).aggregate([]).to_pylist():
        known = tasks.setdefault(row["task"], set())
        tasks[row["task"]] = known | set(row["filters"].split("\n")) if row["filters"] and known is not None else None
    return tasks


def _with_filters(files: pa.Table, choices: Mapping[str, _Choice]) -> pa.Table:
    """Files with the filter that counts in each."""
    at = pc.index_in(files.column("task"), pa.array(choices))
    chosen = pa.array([choice.filter for choice in choices.values()], pa.string())
    only = pa.array([choice.only for choice in choices.values()], pa.bool_())
    kept = files.drop_columns(["filters", "model_told"])
    return kept.append_column("chosen", pc.take(chosen, at)).append_column("only_filter", pc.take(only, at))


# The filter that counts


def _choose(
    spark: SparkSession, path: str, tasks: Mapping[str, set[str] | None], rules: IngestConfig
) -> dict[str, _Choice]:
    """The filter of each task that counts.

    The lines of a task are read for it only where neither the configuration nor the results files settle it.
    """
    named = {task for task in tasks if len(rules.filters.get(task, ())) == 1}
    scanned = _scan_filters(spark, path, [task for task in tasks if tasks[task] is None and task not in named])
    present = {task: filters if filters is not None else scanned.get(task, set()) for task, filters in tasks.items()}
    choices = {task: _choice(task, filters, rules) for task, filters in present.items()}
    open_tasks = sorted(task for task, choice in choices.items() if choice is None)
    if open_tasks:
        raise InputError(_undeclared(path, open_tasks, present, rules))
    return {task: choice for task, choice in choices.items() if choice is not None}


def _choice(task: str, present: set[str], rules: IngestConfig) -> _Choice | None:
    declared = rules.filters.get(task, rules.filters.get(ANY, ()))
    if task in rules.filters and len(declared) == 1 and not present:
        return _Choice(declared[0], False)  # not looked for
    for name in declared:
        if name in present:
            return _Choice(name, False)
    if task not in rules.filters and len(present) <= 1:
        return _Choice(next(iter(present), NO_FILTER), True)
    return None


def _undeclared(path: str, tasks: Sequence[str], present: Mapping[str, set[str]], rules: IngestConfig) -> str:
    task, filters = tasks[0], sorted(present[tasks[0]])
    key = task if re.fullmatch(r"[A-Za-z0-9_-]+", task) else json.dumps(task, ensure_ascii=False)
    others = f" (and {len(tasks) - 1} more tasks: {', '.join(tasks[1:4])})" if len(tasks) > 1 else ""
    has = f"{path}: task {task} has the filters {', '.join(filters)}"
    if task in rules.filters:
        return f"{has} and none of those that ingest.filters.{key} names{others}"
    return f'{has}; say which one counts: ingest.filters.{key} = ["{filters[0]}"]{others}'


def _scan_filters(spark: SparkSession, path: str, tasks: Iterable[str]) -> dict[str, set[str]]:
    wanted = list(tasks)
    if not wanted:
        return {}
    name = base_name(decoded(F.col("source")))
    rows = (
        _lines(spark, path, [])
        .where(F.col(_MALFORMED).isNull())
        .groupBy("source", F.coalesce("filter", F.lit(NO_FILTER)).alias("filter"))
        .count()
        .select(F.regexp_extract(name, _SAMPLES_NAME, 1).alias("task"), "filter")
        .where(F.col("task").isin(*wanted))
        .distinct()
        .collect()
    )
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["task"], set()).add(row["filter"])
    return found


# Lines


def _keys(rules: IngestConfig, filters: Iterable[str]) -> list[str]:
    """Keys under which a score may be: METRIC, or METRIC,FILTER as in results files."""
    names = known_metrics(rules)
    return [*names, *(f"{name},{each}" for name in names for each in filters)]


def _lines(spark: SparkSession, path: str, keys: Iterable[str]) -> DataFrame:
    names = dict.fromkeys(["doc_id", "doc_hash", "filter", "metrics", *keys, _MALFORMED])
    schema = ", ".join(f"`{name.replace('`', '``')}` string" for name in names)
    reader = all_files(spark).schema(schema).option("columnNameOfCorruptRecord", _MALFORMED)
    reader = reader.option("pathGlobFilter", _SAMPLES)
    return reader.json(path).select("*", *origin())


def _responses(lines: DataFrame, rules: IngestConfig, filters: Sequence[str]) -> DataFrame:
    chosen, metrics = F.col("chosen"), F.col("metrics")

    def value_of(name: str) -> Column:
        under_filter = (F.when(chosen == each, column(f"{name},{each}")) for each in filters)
        # A metric that the record lists has no verdict where its value is null.
        listed = F.when(F.contains(metrics, F.lit(json.dumps(name))), F.lit(""))
        return F.coalesce(column(name), *under_filter, listed)

    score, metric = metric_of(rules, F.col("task"), value_of)
    by_key = F.coalesce(*(F.when(chosen == each, column(f"{name},{each}"))
                          for name in known_metrics(rules) for each in filters), F.lit(None))  # fmt: skip
    own_filter = F.coalesce("filter", F.when(by_key.isNotNull(), chosen), F.lit(NO_FILTER))
    malformed = F.col(_MALFORMED).isNotNull()
    problem = (
        F.when(malformed, "malformed_row")
        .when(own_filter != chosen, "other_filter")
        .when(metric.isNull(), "unknown_metric")
    )
    kept = [column(name) for name in ("doc_id", "doc_hash", "filter", *_keys(rules, filters))]
    return raw_frame(
        lines,
        {
            "model_id": with_revision(rules, F.col("model"), F.col("revision")),
            "benchmark": with_version(rules, F.col("task"), F.col("version")),
            "item_id": F.col("doc_id"),
            "score_raw": score,
            "evaluated_at_raw": F.col("evaluated_at"),
            "content_hash": F.col("doc_hash"),
            "source": F.col("source"),
            **({"position": F.col("position")} if "position" in lines.columns else {}),
            "problem": problem,
            "raw": F.when(malformed, cut(F.col(_MALFORMED))).otherwise(F.to_json(F.struct(*kept))),
        },
        {
            "_metric": named_metric(rules, F.col("task"), metric),
            "_only_filter": F.col("only_filter"),
            "_model_guessed": F.col("model_guessed"),
            "_no_version": F.col("version").isNull(),
        },
    )


def _defaults(rules: IngestConfig) -> dict[str, Column]:
    taken = F.col("problem").isNull()
    conditions = {
        **metric_defaults(rules, "_metric"),
        "the only filter of its task taken": F.col("_only_filter"),
        "model named after its folder": F.col("_model_guessed"),
        "no version of the task known": F.col("_no_version"),
    }
    return {name: taken & condition for name, condition in conditions.items()}


def _notes(files: pa.Table, choices: Mapping[str, _Choice], most: int = 5) -> tuple[str, ...]:
    notes = []
    by_filter: dict[str, list[str]] = {}
    for task, choice in sorted(choices.items()):
        by_filter.setdefault(choice.filter, []).append(task)
    for name, tasks in by_filter.items():
        more = f" and {len(tasks) - most} more" if len(tasks) > most else ""
        notes.append(f"filter {name} counts for {', '.join(tasks[:most])}{more}")
    guessed = sorted(files.filter(files.column("model_guessed")).column("model").unique().to_pylist())
    if guessed:
        more = f" and {len(guessed) - most} more" if len(guessed) > most else ""
        notes.append(
            f"no results_<time>.json tells the model: named after the folder, {', '.join(guessed[:most])}{more}"
        )
    notes.append("the time in a file's name is taken as UTC")
    return tuple(notes)


READER = Reader("lm-eval", "samples files of lm-evaluation-harness, with results files beside them", _detect, _read)
