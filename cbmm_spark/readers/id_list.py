"""Text that lists the ids of some items under headers that say what became of them, one file a model.

```
Failed instances (2):
django__django-11019
django__django-11422
```

No format of any one tool: the "Failed:" lists that harnesses print and people keep. Only `--items` tells what was left
out of a list, and what is an id and what a header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample
from cbmm_spark.readers.files import reading, whole_files
from cbmm_spark.readers.items import read_items
from cbmm_spark.readers.logs import cut, decoded, raw_frame
from cbmm_spark.readers.rows import FIRST_ATTEMPT
from cbmm_spark.readers.swe_bench import dated_by_name, day_of, model_of

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "unresolved": r"unresolved|unsolved|not (?:re)?solved|fail(?:ed|ures?|ing)?|wrong|incorrect",
        "resolved": r"resolved|solved|pass(?:ed|es|ing)?|success(?:es|ful)?|correct",
        "error": r"errors?|errored|crashed",
        "timeout": r"time(?:d )?-?outs?",
        "empty": r"empty",
        "incomplete": r"incomplete",
    }
)
"""The words of a header that tell a status; the first of these that it has counts."""

_HEADER = r"^\s*#|:\s*$"
_OTHER = "?"  # what a header says that tells no status


def status_of(header: str) -> str | None:
    """Return the status that a header's words tell."""
    found = (name for name, words in WORDS.items() if re.search(_word(words), header.lower()))
    return next(found, None)


def _word(words: str) -> str:
    return rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)"


def _detect(sample: Sample) -> str | None:
    line = sample.first_line
    if sample.parquet_columns or not re.search(_HEADER, line) or "," in line or line.lstrip()[:1] in "{[":
        return None
    status = status_of(line)
    return f"its first line is a header that says {status}" if status else None


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if options.items is None:
        raise InputError(
            f"{sample.path} lists some items only: give the list of all items with --items FILE, one id a line"
        )
    if options.model is not None and len(sample.files) > 1:
        raise InputError(f"{sample.path} holds {len(sample.files):,} files, one for each model: leave out --model")
    with reading(sample.path):
        universe = F.broadcast(read_items(spark, options.items))
    told = _told(_lines(whole_files(spark, sample.path)), universe)
    benchmark = options.benchmark if options.benchmark is not None else options.default_benchmark
    notes = [f"every row is attempt {FIRST_ATTEMPT}"]
    if options.model is None:
        notes.append("the model is the name of the file")
    if options.benchmark is None:
        notes.append(f"no benchmark named: ingest.default_benchmark ({options.default_benchmark}) was taken")
    return RawFrame(_canonical(told, options.model, benchmark), tuple(notes), _defaults(), first_line=1)


def _lines(files: DataFrame) -> DataFrame:
    """One row per line that is not blank; these files are lists, not logs, and one task reads one whole."""
    lines = F.split(F.regexp_replace("value", "^\ufeff", ""), "\r?\n")
    rows = files.select("source", F.posexplode(lines).alias("position", "line"))
    trimmed = F.regexp_replace("line", r"^\s*(?:[-*]\s+)?|\s+$", "")
    rows = rows.select("source", F.col("position").cast("long").alias("position"), "line", trimmed.alias("item"))
    return rows.where(F.length("item") > 0)


def _told(lines: DataFrame, universe: DataFrame) -> DataFrame:
    """One row per id listed, and one per item of the universe that a file does not list."""
    items = universe.select(F.explode("universe").alias("item"), F.lit(True).alias("known"))
    known = lines.join(F.broadcast(items), "item", "left").withColumn("known", F.coalesce("known", F.lit(False)))
    header = F.when(~F.col("known") & F.col("line").rlike(_HEADER), F.coalesce(_status(F.col("line")), F.lit(_OTHER)))
    known = known.withColumn("header", header)
    above = Window.partitionBy("source").orderBy("position").rowsBetween(Window.unboundedPreceding, 0)
    marked = known.withColumn("status", F.last("header", ignorenulls=True).over(above))
    unclear = F.coalesce(F.col("status") == _OTHER, F.lit(True))
    listed = marked.where(F.col("header").isNull()).select(
        *("source", "position", "line", "item", "status"),
        F.when(unclear, "malformed_row").when(~F.col("known"), "unknown_item").alias("problem"),
        F.lit(None).cast("string").alias("by"),
    )
    return listed.unionByName(_rest(marked, universe))


def _rest(marked: DataFrame, universe: DataFrame) -> DataFrame:
    """Items that a file does not list: solved where it lists what was not, not solved where it lists what was."""
    said = [F.collect_set(name).alias(f"all_{name}") for name in ("item", "header")]
    by_file = marked.groupBy("source").agg(*said).crossJoin(F.broadcast(universe))
    solved, failed = (F.array_contains("all_header", name) for name in ("resolved", "unresolved"))
    status = F.when(failed & ~solved, "resolved").when(solved & ~failed, "unresolved")
    nothing = F.lit(None).cast("string")
    return by_file.select(
        "source",
        F.lit(None).cast("long").alias("position"),
        nothing.alias("line"),
        F.explode(F.array_except("universe", "all_item")).alias("item"),
        status.alias("status"),
        nothing.alias("problem"),
        F.coalesce(status, F.lit("none")).alias("by"),
    )


def _status(line: Column) -> Column:
    lower = F.lower(line)
    found = F.lit(None).cast("string")
    for name, words in reversed(tuple(WORDS.items())):
        found = F.when(lower.rlike(_word(words)), name).otherwise(found)
    return found


def _canonical(told: DataFrame, model: str | None, benchmark: str) -> DataFrame:
    name = model_of(decoded(F.col("source")))
    columns = {each: F.col(each) for each in ("source", "position", "problem")}
    columns |= {
        "model_id": F.lit(model) if model is not None else name,
        "benchmark": F.lit(benchmark),
        "item_id": F.col("item"),
        "score_raw": F.col("status"),
        "evaluated_at_raw": day_of(name),
        "raw": cut(F.col("line")),
    }
    return raw_frame(told, columns, {"_by": F.col("by")})


def _defaults() -> dict[str, Column]:
    by = F.coalesce(F.col("_by"), F.lit(""))
    return {
        **dated_by_name(),
        "not listed in a file that lists what was not solved: resolved": by == "resolved",
        "not listed in a file that lists what was solved: unresolved": by == "unresolved",
        "not listed in a file that lists both or neither: no verdict": by == "none",
    }


READER = Reader("id-list", "text with ids of some items under a header such as `Failed:`", _detect, _read)
