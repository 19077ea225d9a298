"""Run folders of HELM: https://crfm-helm.readthedocs.io/.

A run is a folder with `per_instance_stats.json` (the values of every metric for every instance) and `run_spec.json`
(which model was run on what). The prompts and outputs in `scenario_state.json` are not read. The metrics of one answer
may be spread over several records, one for each family of metrics: they are brought together before one is chosen.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.files import whole_files
from cbmm_spark.readers.logs import LONGEST_RAW, base_name, decoded, folder_of, raw_frame
from cbmm_spark.readers.mapping import metric_of
from cbmm_spark.readers.rows import FIRST_ATTEMPT

STATS = "per_instance_stats.json"
SPEC = "run_spec.json"
_RECORD = (
    "instance_id string, perturbation string, train_trial_index string, "
    "stats array<struct<name: struct<name: string, perturbation: string>, mean: string>>"
)
_STAT = "array<struct<name: string, mean: string>>"
_NO_SPEC = "_no_run_spec"


def _detect(sample: Sample) -> str | None:
    runs = sum(name.rsplit("/", 1)[-1] == STATS for name in sample.files)
    return f"it holds {STATS} of {runs:,} {'run' if runs == 1 else 'runs'}" if runs else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    for role, given in (("model", options.model), ("benchmark", options.benchmark)):
        if given is not None:
            raise InputError(f"{sample.path} holds HELM runs, which name their {role}: leave out --{role}")
    if _detect(sample) is None:
        raise InputError(f"{sample.path} holds no {STATS}: give a folder of HELM runs")
    answers = _answers(_records(whole_files(spark, sample.path, STATS)))
    specs = _specs(whole_files(spark, _folder_of(sample.path), SPEC))
    named = answers.join(F.broadcast(specs), "folder", "left")
    run = F.coalesce("run_name", base_name(decoded(F.col("folder"))))
    named = named.withColumns(
        {"model_id": F.coalesce("run_model", _argument(run, "model")), "benchmark": _without_model(run)}
    )
    return RawFrame(
        _canonical(named, options),
        (
            f"the benchmark is the run's name without its model; {SPEC} tells both",
            "HELM tells no date: evaluated_at is empty",
        ),
        {
            f"{SPEC} missing or unreadable: model and benchmark by the folder's name, where _ may stand for /": F.col(
                _NO_SPEC
            )
        },
    )


def _folder_of(path: str) -> str:
    """Where the other files of a run are, if one file was given."""
    return path[: -len(STATS)] or "." if path.endswith(STATS) else path


def _records(files: DataFrame) -> DataFrame:
    """One row per record of the files; a file that is no list is one row without position."""
    # What is computed beside an explode is computed for each of its rows: the file is read and let go of before.
    read = files.select("source", "value", F.from_json("value", "array<string>").alias("records"))
    read = read.select(
        "source",
        F.when(F.col("records").isNull(), F.substring("value", 1, LONGEST_RAW)).alias("broken"),
        "records",
    )
    listed = read.select("source", "broken", F.posexplode_outer("records").alias("position", "record"))
    parsed = listed.withColumn("parsed", F.when(F.startswith("record", F.lit("{")), F.from_json("record", _RECORD)))
    empty = F.col("position").isNull() & F.col("broken").isNull()
    malformed = ~empty & (F.col("parsed.instance_id").isNull() | F.col("parsed.stats").isNull())
    return parsed.select(
        "source",
        F.col("position").cast("long").alias("position"),
        F.when(empty, "no_result").when(malformed, "malformed_row").alias("problem"),
        F.when(malformed, F.coalesce("record", "broken")).alias("row"),
        F.col("parsed.instance_id").alias("item_id"),
        F.col("parsed.perturbation").alias("perturbation"),
        F.col("parsed.train_trial_index").alias("trial"),
        # Metrics of the plain answer; a mean that is left out was taken over nothing: there is no verdict.
        F.filter("parsed.stats", lambda stat: stat["name"]["perturbation"].isNull()).alias("stats"),
    )


def _answers(records: DataFrame) -> DataFrame:
    """One row per answer, with the metrics of all its records."""
    stats = F.transform(
        "stats",
        lambda stat: F.struct(stat["name"]["name"].alias("name"), F.coalesce(stat["mean"], F.lit("")).alias("mean")),
    )
    malformed = F.when(F.col("problem").isNotNull(), F.coalesce("position", F.lit(-1)))
    grouped = records.withColumns({"stats": F.coalesce(stats, F.array().cast(_STAT)), "malformed": malformed})
    answers = grouped.groupBy("source", "item_id", "perturbation", "trial", "malformed").agg(
        F.min("position").alias("position"),
        F.min("problem").alias("problem"),
        F.min("row").alias("row"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_list("stats")))).alias("stats"),
    )
    return answers.withColumn("folder", folder_of(F.col("source")))


def _specs(files: DataFrame) -> DataFrame:
    """What each run's specification says, by folder."""
    spec = F.from_json("value", "name string, adapter_spec struct<model: string>")
    return files.select(
        folder_of(F.col("source")).alias("folder"),
        spec["name"].alias("run_name"),
        spec["adapter_spec"]["model"].alias("run_model"),
    )


def _argument(run: Column, name: str) -> Column:
    """The value of an argument in a run's name such as `mmlu:subject=anatomy,model=a_b`, null where there is none."""
    found = F.regexp_extract(run, f"[:,]{name}=([^,]*)", 1)
    return F.when(found != "", found)


def _without_model(run: Column) -> Column:
    """A run's name without the arguments that name its model."""
    head = F.substring_index(run, ":", 1)
    arguments = F.split(F.substring(run, F.length(head) + 2, F.length(run)), ",")
    kept = F.array_join(F.filter(arguments, lambda each: ~each.rlike("^model(_deployment)?=")), ",")
    return F.when(kept == "", head).otherwise(F.concat(head, F.lit(":"), kept))


def _canonical(named: DataFrame, options: ReadOptions) -> DataFrame:
    """The chosen metric's value; where two records give it two values, both, for the duplicates rule to judge."""

    def means(name: Column) -> Column:
        return F.transform(F.filter("stats", lambda stat: stat["name"] == name), lambda stat: stat["mean"])

    _, metric = metric_of(options.rules, F.col("benchmark"), lambda name: F.get(means(F.lit(name)), F.lit(0)))
    chosen = named.withColumn("metric", metric)
    problem = F.coalesce(
        F.col("problem"),
        F.when(F.col("perturbation").isNotNull(), "other_metric"),
        F.when(F.col("metric").isNull(), "unknown_metric"),
    )
    raw = F.struct(
        F.col("item_id").alias("instance_id"), "perturbation", F.col("trial").alias("train_trial_index"),
        F.map_from_entries(F.transform(F.array_distinct(F.transform("stats", lambda stat: stat["name"])),
                                       lambda name: F.struct(name, F.get(means(name), F.lit(0))))).alias("stats"),
    )  # fmt: skip
    columns = {name: F.col(name) for name in ("model_id", "benchmark", "item_id", "source", "position")}
    columns |= {
        "attempt": F.coalesce("trial", F.lit(str(FIRST_ATTEMPT))),
        "score_raw": F.explode_outer(means(F.col("metric"))),
        "problem": problem,
        "raw": F.when(F.col("row").isNotNull(), F.to_json(F.struct("row"))).otherwise(F.to_json(raw)),
    }
    return raw_frame(chosen, columns, {_NO_SPEC: F.col("run_name").isNull() | F.col("run_model").isNull()})


READER = Reader("helm", f"run folders of HELM, with {STATS}", _detect, _read)
