"""Event logs of OpenAI evals, JSON lines: a specification, events, a final report.

Format: https://github.com/openai/evals/blob/main/docs/run-evals.md and the recorder it names. The specification of a
file (first line: model, name of the eval) is found once a file and joined to its events. Results are the events `match`
and, in a file without any, `metrics`; everything else is counted as no result.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.files import all_files, numbered, origin, reading
from cbmm_spark.readers.logs import as_time, cut, metric_defaults, named_metric, raw_frame
from cbmm_spark.readers.mapping import known_metrics, metric_of

_NAMES = "*.json*"
_MALFORMED = "_malformed"
_SPEC = "struct<completion_fns: array<string>, model_name: string, eval_name: string, created_at: string>"


def _detect(sample: Sample) -> str | None:
    start = sample.first_line[:40].replace(" ", "")
    return "its first line is the specification of an OpenAI evals run" if start.startswith('{"spec":{') else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    with reading(sample.path):
        events = _events(spark, sample.path, options.rules)
        specs = _specs(spark, events, sample.path, options)

    def frame(events: DataFrame) -> DataFrame:
        return _responses(events.join(F.broadcast(specs), "source", "left"), options)

    return RawFrame(
        frame(events),
        ("an eval's name is its benchmark, its version is part of that name",),
        _defaults(options.rules),
        numbered=lambda sources: frame(numbered(events, sources)),
        first_line=1,
    )


def _events(spark: SparkSession, path: str, rules: IngestConfig) -> DataFrame:
    names = [*known_metrics(rules), "_any"]
    data = ", ".join(f"`{name.replace('`', '``')}`: string" for name in names)
    schema = (
        f"spec {_SPEC}, final_report string, sample_id string, type string, created_at string, data struct<{data}>, "
        f"{_MALFORMED} string"
    )
    reader = all_files(spark).schema(schema).option("columnNameOfCorruptRecord", _MALFORMED)
    reader = reader.option("pathGlobFilter", _NAMES)
    return reader.json(path).select("*", *origin())


def _specs(spark: SparkSession, events: DataFrame, path: str, options: ReadOptions) -> DataFrame:
    """One row a file, kept on the driver: its specification, and whether it has events of the type match."""
    spec = F.first("spec", ignorenulls=True).alias("spec")
    files = events.groupBy("source").agg(spec, F.max(F.col("type") == "match").alias("has_match"))
    models = F.filter("spec.completion_fns", lambda name: F.length(name) > 0)
    rows = files.select(
        "source",
        F.coalesce("has_match", F.lit(False)).alias("has_match"),
        F.coalesce(F.get(models, F.lit(0)), "spec.model_name").alias("model"),
        F.coalesce(F.size(models), F.lit(0)).alias("models"),
        F.col("spec.eval_name").alias("eval"),
        F.col("spec.created_at").alias("started"),
    ).toArrow()
    for given, name in ((options.model, "model"), (options.benchmark, "eval")):
        if given is not None and rows.column(name).null_count < rows.num_rows:
            kind = "model" if name == "model" else "benchmark"
            raise InputError(f"{path}: the specification in its first line names the {kind}; leave out --{kind}")
    return spark.createDataFrame(rows)


def _responses(events: DataFrame, options: ReadOptions) -> DataFrame:
    rules = options.rules
    kind = F.col("type")

    def value_of(name: str) -> Column:
        return F.col("data").getField(name)

    score, metric = metric_of(rules, F.col("eval"), value_of)
    malformed = F.col(_MALFORMED).isNotNull()
    is_event = F.col("spec").isNull() & F.col("final_report").isNull()
    is_record = F.coalesce("sample_id", "type").isNotNull()
    problem = (
        F.when(malformed | (is_event & ~is_record), "malformed_row")
        .when(~is_event | ~F.coalesce(kind.isin("match", "metrics"), F.lit(False)), "no_result")
        .when((kind == "metrics") & F.col("has_match"), "other_metric")
        .when(metric.isNull(), "unknown_metric")
    )
    time = F.coalesce("created_at", "started")
    date = as_time(time, rules.date_formats)
    unreadable = problem.isNull() & (F.length(time) > 0) & date.isNull()
    kept = F.struct("sample_id", "type", "created_at", "data", F.col("spec.eval_name").alias("eval_name"))
    return raw_frame(
        events,
        {
            "model_id": F.coalesce("model", F.lit(options.model)),
            "benchmark": F.coalesce("eval", F.lit(options.benchmark)),
            "item_id": F.col("sample_id"),
            "score_raw": score,
            "evaluated_at_raw": date,
            "source": F.col("source"),
            **({"position": F.col("position")} if "position" in events.columns else {}),
            "problem": F.when(unreadable, "unreadable_date").otherwise(problem),
            "raw": F.when(malformed, cut(F.col(_MALFORMED))).otherwise(F.to_json(kept)),
        },
        {
            "_metric": named_metric(rules, F.col("eval"), metric),
            "_first_model": F.col("models") > 1,
        },
    )


def _defaults(rules: IngestConfig) -> dict[str, Column]:
    taken = F.col("problem").isNull()
    conditions = {
        **metric_defaults(rules, "_metric"),
        "first of several completion functions taken as the model": F.col("_first_model"),
    }
    return {name: taken & condition for name, condition in conditions.items()}


READER = Reader("openai-evals", "event logs of OpenAI evals, JSON lines", _detect, _read)
