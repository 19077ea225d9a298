"""The tables of what came in: responses, what was refused, models, items, and their packed form."""

from __future__ import annotations

from dataclasses import replace

from cbmm_spark.tables.spec import COUNT, FRACTION, FROM_ONE, NOT_EMPTY, POSITIVE, Column, TableSpec

BENCHMARK_BUCKETS = 64
"""Number of values of ``benchmark_bucket``: bounds the partitions, however many benchmarks there are."""

_FIRST_EVALUATED = Column("first_evaluated_at", "timestamp", "Earliest evaluation, UTC; null where no row has a date")
_LAST_EVALUATED = Column("last_evaluated_at", "timestamp", "Latest evaluation, UTC; null where no row has a date")
_MODEL_ID = Column(
    "model_id", "string", "Name of the model with its revision, exactly as given", NOT_EMPTY, required=True
)
_MODEL_INDEX = Column("model_index", "int", "Dense number of the model, from 1, never changes", FROM_ONE, required=True)
_BENCHMARK = Column("benchmark", "string", "Name of the benchmark with its version", NOT_EMPTY, required=True)
_ITEM_ID = Column(
    "item_id", "string", "Name of the item within its benchmark, exactly as given", NOT_EMPTY, required=True
)
_ITEM_INDEX = Column(
    "item_index", "int", "Dense number of the item within its benchmark, from 1, never changes", FROM_ONE, required=True
)
_BUCKET = Column(
    "benchmark_bucket",
    "int",
    f"pmod(xxhash64(benchmark), {BENCHMARK_BUCKETS}): the partition, so that no name is ever part of a path",
    f"{{c}} BETWEEN 0 AND {BENCHMARK_BUCKETS - 1}",
    required=True,
)


def _count(name: str, meaning: str) -> Column:
    return Column(name, "long", meaning, COUNT, required=True)


# Minima and maxima of names are dear to collect. Files are laid out by number, so that they would skip next to nothing:
# who looks for one model or item asks by its number.
RESPONSES = TableSpec(
    name="responses",
    comment="One row per model, benchmark, item and attempt: the validated, unique truth. Written by ingest.",
    made_by="cbmm-spark ingest",
    key=("model_id", "benchmark", "item_id", "attempt"),
    partition_by=("benchmark_bucket",),
    columns=(
        replace(_MODEL_ID, statistics=False),
        _BENCHMARK,
        replace(_ITEM_ID, statistics=False),
        Column(
            "attempt",
            "int",
            "Number of the attempt; repeated runs of one model on one item differ in it",
            COUNT,
            required=True,
            statistics=False,
        ),
        Column(
            "score",
            "double",
            "Share solved, from 0 (wrong) to 1 (right); null = no verdict",
            FRACTION,
            statistics=False,
        ),
        Column("evaluated_at", "timestamp", "When the model was evaluated, UTC; null where the source has no date"),
        Column("source", "string", "File or table the row came from", statistics=False),
        Column("ingested_at", "timestamp", "When the row was taken in, UTC", required=True),
        _MODEL_INDEX,
        _ITEM_INDEX,
        _BUCKET,
    ),
    extra_properties={
        # Packing asks the feed which rows a night added or corrected; the feed is kept for a month.
        "delta.enableChangeDataFeed": "true",
        "delta.logRetentionDuration": "interval 90 days",
        "delta.deletedFileRetentionDuration": "interval 30 days",
    },
)

QUARANTINE = TableSpec(
    name="quarantine",
    comment="One row per refused input row, with the reason. Written by ingest.",
    made_by="cbmm-spark ingest",
    key=("source", "position", "raw"),
    columns=(
        Column("raw", "string", "The refused row as JSON", required=True, statistics=False),
        Column("reason", "string", "Why it was refused", NOT_EMPTY, required=True),
        Column("source", "string", "File or table the row came from", statistics=False),
        Column("position", "long", "Number of the row within its file where the format has one", COUNT),
        Column("ingested_at", "timestamp", "When the row was refused, UTC", required=True),
    ),
)

MODELS = TableSpec(
    name="models",
    comment="One row per model: its number and attributes. Written by ingest.",
    made_by="cbmm-spark ingest",
    key=("model_id",),
    columns=(
        _MODEL_ID,
        _MODEL_INDEX,
        _FIRST_EVALUATED,
        _LAST_EVALUATED,
        Column("release_date", "date", "Day the model was released, where known"),
        Column("size", "double", "Number of parameters of the model, where known", POSITIVE),
        Column("model_group", "string", "Family or maker of the model, where known"),
    ),
)

ITEMS = TableSpec(
    name="items",
    comment="One row per item of a benchmark: its number and attributes. Written by ingest.",
    made_by="cbmm-spark ingest",
    key=("benchmark", "item_id"),
    columns=(
        _BENCHMARK,
        _ITEM_ID,
        _ITEM_INDEX,
        _FIRST_EVALUATED,
        _LAST_EVALUATED,
        Column("item_group", "string", "Subject or category of the item, where known"),
        Column("content_hash", "string", "Hash of the item's content, where the source tells contents apart"),
    ),
)

INGESTS = TableSpec(
    name="ingests",
    comment="One row per ingest that ended well: what became of the rows of its input. Written by ingest.",
    made_by="cbmm-spark ingest",
    key=("ingest_id",),
    columns=(
        Column("ingest_id", "string", "Identifier of the ingest", NOT_EMPTY, required=True),
        Column("started_at", "timestamp", "When the ingest began, UTC", required=True),
        Column("finished_at", "timestamp", "When the ingest had ended, UTC", required=True),
        Column("input", "string", "The input as given", required=True, statistics=False),
        Column("format", "string", "The format it was read as", required=True),
        Column("format_reason", "string", "Why that format was taken", statistics=False),
        _count("rows_read", "Rows of the input"),
        _count("accepted", "Responses in the input"),
        _count("new", "Responses not seen before"),
        _count("unchanged", "Responses stored already"),
        _count("corrected", "Responses whose stored score was replaced"),
        _count("redated", "Responses whose stored date was replaced"),
        _count("superseded", "Responses whose stored score was kept by the rule for duplicates"),
        _count("collapsed", "Rows that repeat a response of the same input"),
        _count("missing", "Accepted responses without a verdict"),
        _count("left_out", "Records that are no responses by the source's own design"),
        _count("quarantined", "Rows that were refused"),
        Column("report", "string", "The whole report as JSON", required=True, statistics=False),
        Column("package_version", "string", "Version of cbmm-spark"),
        Column(
            "input_fingerprint",
            "string",
            "Hash of how the input was asked for, a colon, and hash of its files' paths, sizes and times; null where a "
            "single ingest was asked for",
            statistics=False,
        ),
        Column(
            "members",
            "binary",
            "Models and items of each file of the input, packed, for the next ingest of it to see what vanished",
            statistics=False,
        ),
    ),
)

MODEL_BENCHMARKS = TableSpec(
    name="model_benchmarks",
    comment="One row per model and benchmark: how much was answered, and when. Internal; written by packing.",
    made_by="cbmm-spark rescore",
    key=("model_index", "benchmark"),
    columns=(
        _MODEL_INDEX,
        _MODEL_ID,
        _BENCHMARK,
        Column("n_rows", "long", "Rows in responses", COUNT, required=True),
        Column("n_null", "long", "Rows of these without a verdict", COUNT, required=True),
        _FIRST_EVALUATED,
        _LAST_EVALUATED,
    ),
    row_checks={"nulls_are_rows": "n_null <= n_rows"},
)

RESPONSE_BLOCKS = TableSpec(
    name="response_blocks",
    comment=(
        "One row per tile of items of one benchmark by models: the responses packed. Internal; written by packing, "
        "the bytes are known to packing alone."
    ),
    made_by="cbmm-spark rescore",
    key=("benchmark", "item_block", "model_start"),
    partition_by=("benchmark_bucket",),
    columns=(
        _BENCHMARK,
        _BUCKET,
        Column("item_block", "int", "Number of the item block within its benchmark, from 0", COUNT, required=True),
        Column("item_start", "int", "item_index of the first item of the tile", FROM_ONE, required=True),
        Column("n_items", "int", "Items of the tile", FROM_ONE, required=True),
        Column("model_start", "int", "model_index of the first model of the tile", FROM_ONE, required=True),
        Column("n_models", "int", "Models of the tile", FROM_ONE, required=True),
        Column("encoding", "string", "How the planes are encoded", NOT_EMPTY, required=True),
        Column("n_responses", "long", "Responses with a verdict in the tile", COUNT, required=True),
        Column("attempted", "binary", "Plane of the attempted cells", required=True),
        Column("solved", "binary", "Plane of the solved cells", required=True),
        Column("responses_version", "long", "Version of responses the tile was packed from", COUNT, required=True),
    ),
)

SCALE = Column(
    "scale", "string", "Set of items that share one ability: a benchmark, a group, or overall", NOT_EMPTY, required=True
)
RUN_ID = Column("run_id", "string", "Identifier of the run that wrote the row", NOT_EMPTY, required=True)

RUN_ABILITIES = TableSpec(
    name="run_abilities",
    comment=(
        "One row per run, scale and iteration: the abilities reached, from which a killed run resumes. "
        "Internal; written by rescore."
    ),
    made_by="cbmm-spark rescore",
    key=("run_id", "scale", "iteration"),
    columns=(
        RUN_ID,
        SCALE,
        Column("iteration", "int", "Number of the outer iteration; 0 is the start", COUNT, required=True),
        Column("model_indices", "binary", "model_index of each model, little-endian 32-bit integers", required=True),
        Column(
            "abilities", "binary", "Ability of each model in the same order, little-endian 64-bit floats", required=True
        ),
    ),
)

INPUTS = (RESPONSES, QUARANTINE, MODELS, ITEMS, INGESTS)
INTERNAL = (MODEL_BENCHMARKS, RESPONSE_BLOCKS, RUN_ABILITIES)

__all__ = ["BENCHMARK_BUCKETS", "INPUTS", "INTERNAL", "RUN_ID", "SCALE"]
