"""Logs of Inspect AI in JSON, one a file.

Format: https://inspect.aisi.org.uk/eval-logs.html (`eval` says what was run, `samples` holds one entry for each sample
and epoch). Logs in the binary format `.eval` are turned to JSON by `inspect log convert --to json`. A file is read
whole by one task; of its samples only the identity, the scores and the error are taken out.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.files import all_files, reading
from cbmm_spark.readers.logs import LONGEST_RAW, as_time, cut, metric_defaults, named_metric, nothing, raw_frame
from cbmm_spark.readers.mapping import by_benchmark, with_revision, with_version
from cbmm_spark.readers.rows import FIRST_ATTEMPT

VERDICTS = {"c": "1", "p": "0.5", "i": "0", "n": "0"}
"""Inspect's letters, in small: correct, partially correct, incorrect, no answer. `[ingest.status]` goes before them."""

_NAME = r"^\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}([+-]\d{2}-\d{2}|Z)?_.+\.json$"
_MALFORMED = "_malformed"
_LOG = (
    "eval struct<model: string, task: string, task_version: string, created: string, "
    f"model_args: struct<revision: string>>, samples array<string>, {_MALFORMED} string"
)
_SAMPLE = (
    "id string, epoch string, scores map<string, struct<value: string>>, error string, invalidation string, "
    f"{_MALFORMED} string"
)


def _detect(sample: Sample) -> str | None:
    names = [path.rpartition("/")[2] for path in sample.files]
    line = sample.first_line.lstrip()
    if names and all(name.endswith(".eval") for name in names):
        return "its files are named .eval, as Inspect names its binary logs"
    if not line.startswith("{") or not any(name.endswith(".json") for name in names):
        return None
    if all(f'"{key}"' in line for key in ("eval", "status", "task", "model")):
        return "its first line is a log of Inspect"
    if line.strip() == "{" and any(re.match(_NAME, name) for name in names):
        return "its files are named <time>_<task>_<id>.json, as Inspect names its logs"
    return None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if any(path.endswith(".eval") for path in sample.files):
        raise InputError(
            f"{sample.path} holds binary logs of Inspect (.eval): turn them to JSON first "
            "(inspect log convert --to json --output-dir FOLDER LOGS)"
        )
    for given, name in ((options.model, "model"), (options.benchmark, "benchmark")):
        if given is not None:
            raise InputError(f"{sample.path}: each log tells its {name}; leave out --{name}")
    with reading(sample.path):
        samples = _samples(spark, sample.path)
    return RawFrame(_responses(samples, options.rules), ("an epoch is an attempt",), _defaults(options.rules))


def _samples(spark: SparkSession, path: str) -> DataFrame:
    """One row a sample; one for a file that has none or cannot be read."""
    options = {"columnNameOfCorruptRecord": _MALFORMED}
    reader = all_files(spark).schema(_LOG).options(**options).option("multiLine", "true")
    reader = reader.option("pathGlobFilter", "*.json")
    files = reader.json(path).select(
        F.col("_metadata.file_path").alias("source"),
        "eval",
        "samples",
        F.substring(_MALFORMED, 1, LONGEST_RAW).alias("bad_file"),
    )
    each = files.select("source", "eval", "bad_file", F.posexplode_outer("samples").alias("position", "text"))
    return each.withColumn("sample", F.from_json("text", _SAMPLE, options))


def _verdict(value: Column, status: dict[str, str | None]) -> Column:
    """A scorer's value with Inspect's letters and the declared statuses replaced; "" for no verdict."""
    known = {**VERDICTS, **{name: score or "" for name, score in status.items()}}
    table = F.create_map(*(F.lit(text) for pair in known.items() for text in pair))
    return F.coalesce(table[F.lower(value)], value)


def _scorer(rules: IngestConfig, scores: Column, task: Column) -> Column:
    """The declared scorer that a sample has, or null. A list looked through: a chain of cases would be too long to
    compile."""

    def first(names: object) -> Column:
        assert isinstance(names, tuple)
        declared = F.array(*(F.lit(name) for name in names)) if names else F.array().cast("array<string>")
        return F.get(F.filter(declared, lambda name: F.map_contains_key(scores, name)), F.lit(0))

    return by_benchmark(rules.metrics, task, first)


def _status(rules: IngestConfig) -> dict[str, str | None]:
    return {name: None if score == "missing" else str(score) for name, score in rules.status.items()}


def _responses(samples: DataFrame, rules: IngestConfig) -> DataFrame:
    scores, status, task = F.col("sample.scores"), _status(rules), F.col("eval.task")
    samples = samples.withColumn("metric", _scorer(rules, scores, task).cast("string"))
    metric = F.col("metric")
    only = metric.isNull() & (F.size(scores) == 1)
    scorer = F.when(only, F.get(F.map_keys(scores), F.lit(0))).otherwise(metric)
    samples = samples.withColumns({"only": only, "verdict": scores[scorer]["value"]})
    only = F.col("only")
    failed, invalid = F.col("sample.error").isNotNull(), F.col("sample.invalidation").isNotNull()
    unscored = F.coalesce(F.size(scores), F.lit(0)) <= 0
    error = status.get("error")
    score = (
        F.when(failed, nothing() if error is None else F.lit(error))
        .when(invalid | unscored, nothing())
        .otherwise(_verdict(F.col("verdict"), status))
    )
    malformed_sample = F.col("text").isNotNull() & F.col(f"sample.{_MALFORMED}").isNotNull()
    malformed = (
        F.col("bad_file").isNotNull() | malformed_sample | (F.col("position").isNotNull() & F.col("text").isNull())
    )
    date = as_time(F.col("eval.created"), rules.date_formats)
    problem = (
        F.when(malformed, "malformed_row")
        .when(F.col("position").isNull(), "no_result")
        .when(~failed & ~invalid & ~unscored & metric.isNull() & ~only, "unknown_metric")
        .when((F.length("eval.created") > 0) & date.isNull(), "unreadable_date")
    )
    kept = F.struct("sample.id", "sample.epoch", "sample.scores", F.col("eval.task"), F.col("eval.model"))
    return raw_frame(
        samples,
        {
            "model_id": with_revision(rules, F.col("eval.model"), F.col("eval.model_args.revision")),
            "benchmark": with_version(rules, task, F.col("eval.task_version")),
            "item_id": F.col("sample.id"),
            "attempt": F.coalesce("sample.epoch", F.lit(str(FIRST_ATTEMPT))),
            "score_raw": score,
            "evaluated_at_raw": date,
            "source": F.col("source"),
            "position": F.col("position").cast("long"),
            "problem": problem,
            "raw": F.when(malformed, cut(F.coalesce("bad_file", "text"))).otherwise(F.to_json(kept)),
        },
        {
            "_metric": F.when(~failed & ~invalid & ~unscored, named_metric(rules, task, metric)),
            "_only_scorer": only & ~failed & ~invalid,
            "_letter": F.when(~failed & ~invalid, F.lower("verdict")),
            "_error": failed,
            "_invalid": invalid & ~failed,
            "_unscored": unscored & ~failed & ~invalid,
            "_no_epoch": F.col("sample.epoch").isNull(),
            "_no_version": F.length(F.coalesce("eval.task_version", F.lit(""))) == 0,
        },
    )


def _defaults(rules: IngestConfig) -> dict[str, Column]:
    taken, status = F.col("problem").isNull(), _status(rules)
    error = status.get("error")
    conditions = {
        **metric_defaults(rules, "_metric"),
        "the only scorer of a sample taken": F.col("_only_scorer"),
        f"error counted as {'missing' if error is None else error}": F.col("_error"),
        "invalidated sample counted as missing": F.col("_invalid"),
        "sample without scores counted as missing": F.col("_unscored"),
        "sample without an epoch is attempt 1": F.col("_no_epoch"),
        "no version of the task known": F.col("_no_version"),
    }
    for letter, meaning in (("p", "partially correct (P) counted as 0.5"), ("n", "no answer (N) counted as 0")):
        if letter not in status:
            conditions[meaning] = F.col("_letter").eqNullSafe(letter)
    return {name: taken & condition for name, condition in conditions.items()}


READER = Reader("inspect", "logs of Inspect AI in JSON, one a file", _detect, _read)
