"""Details of the Open LLM Leaderboard, Parquet: `details_<task>_<time>.parquet`, one row an example.

Format: https://huggingface.co/docs/lighteval/saving-and-reading-results and, for the first leaderboard,
https://huggingface.co/docs/leaderboards/open_llm_leaderboard/archive. Metrics are fields of the column `metrics`, in
older files columns of their own; their types differ from file to file, so that each file is read by itself (by Arrow,
only the columns needed). Rows have no id: an item is named by a hash of its example and choices, which holds however a
run ordered or cut the examples. Newer files of lighteval put everything into the columns `doc` and `metric` (`__doc__`
and `__metric__` until version 0.12); there an item has the id `doc.id`, and the hash tells contents apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.readers.base import RawFrame, Reader, ReadOptions, Sample, column
from cbmm_spark.readers.files import binary_files, reading
from cbmm_spark.readers.logs import STAMP, base_name, metric_defaults, named_metric, raw_frame, stamp_as_time
from cbmm_spark.readers.mapping import known_metrics, metric_of

_FILES = "details_*.parquet"
_NAME = rf"^details_(.+)_({STAMP})\.parquet$"
_HUB = rf"/details_([^/]+)/(?:{STAMP}/)?[^/]*$"
_LOCAL = rf"/details/(.+?)/(?:{STAMP}/)?[^/]*$"
_PARENT = rf"/([^/]+)/(?:{STAMP}/)?[^/]*$"

_IDS = ("id", "doc_id", "sample_id")
_TEXTS = ("example", "query", "question", "full_prompt")
_HASHES = ("hashes", "hash")
_DOCS = ("doc", "__doc__")
_METRICS = ("metrics", "metric", "__metric__")
_IN_DOC = ("query", "choices", "id")
_SIGNS = (*_DOCS, "metrics", "full_prompt", "example", "gold_index", "predictions")


def _detect(sample: Sample) -> str | None:
    names = [path.rpartition("/")[2] for path in sample.files]
    if not any(re.match(_NAME, name) for name in names) or not set(_SIGNS) & set(sample.parquet_columns):
        return None
    return "its files are named details_<task>_<time>.parquet and hold examples, as Open LLM Leaderboard details do"


def _read(spark: SparkSession, sample: Sample, options: ReadOptions) -> RawFrame:
    if options.benchmark is not None:
        raise InputError(f"{sample.path}: each file's name tells its task; leave out --benchmark")
    folders = {model_of(path) for path in sample.files}
    if options.model is not None and len(folders) > 1:
        raise InputError(
            f"{sample.path} holds details of {len(folders)} models; leave out --model or give one's folder"
        )
    names = known_metrics(options.rules)
    with reading(sample.path):
        rows = _rows(spark, sample.path, names)
    notes = ["an item is named by the SHA-256 of its example and choices", "the time in a file's name is taken as UTC"]
    if options.model is None:
        notes.append("models are named after their folders, __ standing for /")
    return RawFrame(_responses(rows, names, options), tuple(notes), _defaults(options))


def model_of(path: str) -> str:
    """Return the model that a file's folders name: a repository's of the Hub, else lighteval's, else the last one."""
    for pattern in (_HUB, _LOCAL, _PARENT):
        found = re.search(pattern, path)
        if found:
            return found.group(1).replace("__", "/")
    return ""


def _model(path: Column) -> Column:
    """As `model_of`, in Spark."""
    found = (F.regexp_extract(path, pattern, 1) for pattern in (_HUB, _LOCAL, _PARENT))
    return F.replace(F.coalesce(*(F.when(F.length(each) > 0, each) for each in found)), F.lit("__"), F.lit("/"))


# Parquet to rows of text


def _rows(spark: SparkSession, path: str, metrics: Sequence[str]) -> DataFrame:
    schema = pa.schema(
        [("source", pa.string()), ("position", pa.int64()),
         *((name, pa.string()) for name in ("id", "text", "choices", "hash", "broken")),
         *((f"m{at}", pa.string()) for at in range(len(metrics)))]
    )  # fmt: skip

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file, content in zip(batch.column("path"), batch.column("content"), strict=True):
                yield from _parse_file(file.as_py(), content.as_buffer(), metrics, schema)

    kinds = {pa.string(): "string", pa.int64(): "long"}
    spark_schema = ", ".join(f"{each.name} {kinds[each.type]}" for each in schema)
    return binary_files(spark, path, _FILES).select("path", "content").mapInArrow(parse, spark_schema)


def _parse_file(path: str, content: pa.Buffer, metrics: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
    except pa.ArrowInvalid as error:
        broken = {"source": path, "broken": str(error).splitlines()[0]}
        yield pa.RecordBatch.from_pylist([broken], schema=schema)
        return
    present = set(file.schema_arrow.names)
    doc = next((name for name in _DOCS if name in present), None)
    in_doc = () if doc is None else tuple(f"{doc}.{name}" for name in _IN_DOC)
    text = next((name for name in _TEXTS if name in present), "")
    wanted = (text, *_IDS, "choices", *_METRICS, *_HASHES, *metrics)
    start = 0
    for batch in file.iter_batches(batch_size=4096, columns=[*(name for name in wanted if name in present), *in_doc]):
        none = pa.nulls(batch.num_rows, pa.string())
        id, example, choices = _of_columns(batch, text) if doc is None else _of_doc(batch, doc)
        columns = [
            pa.array([path]).take(pa.array([0] * batch.num_rows)),
            pa.array(range(start, start + batch.num_rows), pa.int64()),
            none if id is None else id,
            none if example is None else example,
            none if choices is None else choices,
            _hash(batch, none),
            none,
            *(_metric(batch, name, none) for name in metrics),
        ]
        start += batch.num_rows
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


_Content = tuple[pa.Array | None, pa.Array | None, pa.Array | None]
"""Id, example and choices of each row; None where a file has none."""


def _of_columns(batch: pa.RecordBatch, text: str) -> _Content:
    """Each from a column of its own."""

    def first(*names: str) -> pa.Array | None:
        return next((_as_text(batch.column(name)) for name in names if name in batch.schema.names), None)

    return first(*_IDS), first(text), first("choices")


def _of_doc(batch: pa.RecordBatch, name: str) -> _Content:
    """Each from a field of one column. An empty id is none.

    Where its fields fit no schema lighteval writes the column as text, which is not taken apart: no item has a name.
    """
    if name not in batch.schema.names or not pa.types.is_struct(batch.column(name).type):
        return None, None, None
    doc = batch.column(name)

    def field(name: str) -> pa.Array | None:
        return _as_text(pc.struct_field(doc, name)) if doc.type.get_field_index(name) >= 0 else None

    id = field("id")
    if id is not None:
        id = pc.if_else(pc.equal(id, ""), None, id)
    return id, field("query"), field("choices")


def _as_text(values: pa.Array) -> pa.Array:
    """Values as text; lists of texts joined, anything else that has no text named by its type (and so unreadable)."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_list(kind) and kind.value_type in (pa.string(), pa.large_string()):
        return pc.binary_join(pc.cast(values, pa.list_(pa.string())), "\x1f")
    if pa.types.is_nested(kind):
        return pc.if_else(values.is_valid(), str(kind), None)
    return pc.cast(values, pa.string())


def _metric(batch: pa.RecordBatch, name: str, none: pa.Array) -> pa.Array:
    """A metric: a field of the metrics' column, else a column of its own. Null where a file has it: no verdict, ""."""
    values = batch.column(name) if name in batch.schema.names else none
    metrics = next((batch.column(each) for each in _METRICS if each in batch.schema.names), none)
    if pa.types.is_struct(metrics.type) and metrics.type.get_field_index(name) >= 0:
        values = pc.struct_field(metrics, name)
    if values is none or pa.types.is_null(values.type):
        return none
    return pc.fill_null(_as_text(values), "")


def _hash(batch: pa.RecordBatch, none: pa.Array) -> pa.Array:
    """The harness's own hash of the example, without its prompt."""
    for name in _HASHES:
        if name in batch.schema.names:
            values = batch.column(name)
            if pa.types.is_struct(values.type):
                return (
                    _as_text(pc.struct_field(values, "example"))
                    if values.type.get_field_index("example") >= 0
                    else none
                )
            return _as_text(values)
    return none


# Rows to responses


def _responses(rows: DataFrame, metrics: Sequence[str], options: ReadOptions) -> DataFrame:
    rules = options.rules
    at = {name: column(f"m{index}") for index, name in enumerate(metrics)}
    name = base_name(F.col("source"))
    task, stamp = (F.regexp_extract(name, _NAME, group) for group in (1, 2))
    rows = rows.withColumns({"task": F.when(F.length(task) > 0, task), "stamp": stamp})
    score, metric = metric_of(rules, F.col("task"), lambda each: at[each])
    by_content = F.when(F.col("text").isNotNull(), F.sha2(F.concat_ws("\x1e", "text", "choices"), 256))
    named = F.coalesce("id", by_content, "hash")
    broken = F.col("broken").isNotNull()
    problem = F.when(broken, "malformed_row").when(metric.isNull(), "unknown_metric")
    kept = F.struct(
        named.alias("item"), "task", F.substring("text", 1, 200).alias("example"),
        *(value.alias(each) for each, value in at.items()),
    )  # fmt: skip
    return raw_frame(
        rows,
        {
            "model_id": F.lit(options.model) if options.model is not None else _model(F.col("source")),
            "benchmark": F.col("task"),
            "item_id": named,
            "score_raw": score,
            "evaluated_at_raw": stamp_as_time(F.col("stamp")),
            "content_hash": F.coalesce("hash", F.when(F.col("id").isNotNull(), by_content)),
            "source": F.col("source"),
            "position": F.col("position"),
            "problem": problem,
            "raw": F.when(broken, F.to_json(F.struct(F.col("broken").alias("row")))).otherwise(F.to_json(kept)),
        },
        {"_metric": named_metric(rules, F.col("task"), metric), "_named_by_hash": F.col("id").isNull()},
    )


def _defaults(options: ReadOptions) -> dict[str, Column]:
    rules: IngestConfig = options.rules
    taken = F.col("problem").isNull()
    conditions = {
        **metric_defaults(rules, "_metric"),
        "item named by a hash of its example": F.col("_named_by_hash"),
        "no version of the task known": F.lit(True),
    }
    if options.model is None:
        conditions["model named after its folder"] = F.lit(True)
    return {name: taken & condition for name, condition in conditions.items()}


READER = Reader("open-llm-details", "details of the Open LLM Leaderboard or lighteval, Parquet", _detect, _read)
