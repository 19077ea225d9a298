"""The configured inputs of a night: which of them are there, and which have changed since they were last read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark import __version__
from cbmm_spark.config.schema import IngestConfig, SourceConfig
from cbmm_spark.errors import InputError
from cbmm_spark.locations import PATTERN, table_name
from cbmm_spark.readers.files import binary_files, reading
from cbmm_spark.tables import Warehouse
from cbmm_spark.tables.warehouse import first_line

_MISSING = ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
_NO_DELTA = ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_TABLE_ONLY_OPERATION")


@dataclass(frozen=True)
class SourceContents:
    """What is behind a location.

    Attributes
    ----------
    state
        A text that differs where the content may; None where nothing tells (a catalog's table that is not Delta).
    files
        Number of files; 0 for a table.
    """

    state: str | None
    files: int = 0


@dataclass(frozen=True)
class LastIngest:
    """The last ended ingest of a source, as `ingests` has it.

    Attributes
    ----------
    fingerprint
        Of its input, as it was.
    ingest_id
        Its name.
    read, accepted
        Rows of the input, and responses in it.
    overwritten_by
        A later ingest of anything else that replaced stored scores or dates, which may have been those of this source;
        None where there was none.
    """

    fingerprint: str
    ingest_id: str
    read: int
    accepted: int
    overwritten_by: str | None = None


@dataclass(frozen=True)
class Decision:
    """What a night does with a source.

    Attributes
    ----------
    source
        The source.
    action
        `read`, `skip` (unchanged), `missing` (optional) or `failed` (missing, and not optional).
    reason
        Why, for a person.
    fingerprint
        Of its input as it is now; None where nothing tells.
    """

    source: SourceConfig
    action: str
    reason: str
    fingerprint: str | None = None


def ingest_options(source: SourceConfig) -> dict[str, Any]:
    """Return the keyword arguments of `ingest` for a source; what is not given is left out."""
    options = {name: getattr(source, name) for name in ("format", "benchmark", "model", "items", "mapping")}
    return {name: value for name, value in options.items() if value}


def look_for(spark: SparkSession, location: str) -> SourceContents | None:
    """Return what is behind an input's location, None where there is nothing (a folder without a file is nothing).

    Names, sizes and times of files are asked for, not their content: one small Spark job.

    Raises
    ------
    InputError
        It is there and cannot be listed.
    """
    try:
        table = table_name(location)
        if table is not None:
            return _table(spark, table) if spark.catalog.tableExists(table) else None
        # A pattern names files, never a Delta table.
        if not PATTERN.intersection(location) and DeltaTable.isDeltaTable(spark, location):
            return SourceContents(_version(DeltaTable.forPath(spark, location)))
        return _files(binary_files(spark, location))
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and (error.getCondition() or "").startswith(_MISSING):
            return None
        try:
            with reading(location):
                raise
        except (PySparkException, Py4JJavaError):
            raise InputError(f"{location} cannot be listed: {first_line(error)}") from error


def _files(files: DataFrame) -> SourceContents | None:
    file = (F.col("path"), F.col("length"), F.col("modificationTime"))
    # Sums over files, so that their order does not matter: two hashes of each, 128 bits that must both agree.
    row = files.agg(
        F.count("*").alias("files"),
        F.coalesce(F.sum("length"), F.lit(0)).alias("bytes"),
        F.bit_xor(F.xxhash64(*file)).alias("one"),
        F.sum(F.xxhash64(F.lit("second"), *file).cast("decimal(38,0)")).alias("two"),
    ).head()
    if row is None or not row["files"]:
        return None
    return SourceContents(f"{row['files']} {row['bytes']} {row['one']} {row['two']}", row["files"])


def _table(spark: SparkSession, name: str) -> SourceContents:
    try:
        return SourceContents(_version(DeltaTable.forName(spark, name)))
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_NO_DELTA):
            raise
        return SourceContents(None)


def _version(table: DeltaTable) -> str:
    newest = table.history(1).select("version", "timestamp").head()
    detail = table.detail().select("id").head()
    return f"{detail and detail['id']} {newest and newest['version']} {newest and newest['timestamp']}"


def source_key(source: SourceConfig) -> str:
    """Return the first half of a fingerprint: how an input is asked for, whatever the source is called."""
    return _hash({"input": source.input, **ingest_options(source)})


def fingerprint(source: SourceConfig, rules: IngestConfig, states: Mapping[str, str]) -> str:
    """Return the fingerprint of a source: it differs where reading the source again could give something else.

    Parameters
    ----------
    source
        The source.
    rules
        `config.ingest`.
    states
        `SourceContents.state` by location, of its input and of the files its options name.
    """
    told = {"rules": dataclasses.asdict(rules), "states": dict(states), "version": __version__}
    return f"{source_key(source)}:{_hash(told)}"


_INGEST_COLUMNS = (
    "ingest_id", "input_fingerprint", "started_at", "finished_at", "rows_read", "accepted",
    "corrected + redated AS changed",
)  # fmt: skip


def last_ingests(warehouse: Warehouse) -> dict[str, LastIngest]:
    """Return the last ended ingest with a fingerprint by `source_key`: as many as sources ever were, never as rows."""
    if warehouse.look("ingests") is None:
        return {}
    return last_of_each(warehouse.rows("ingests", *_INGEST_COLUMNS).to_pylist())


def last_of_each(ingests: Sequence[Mapping[str, Any]]) -> dict[str, LastIngest]:
    """Return by `source_key` the last ingest with a fingerprint, and what may have overwritten its responses since.

    Parameters
    ----------
    ingests
        Rows of `ingests`: ingest_id, input_fingerprint, started_at, finished_at, rows_read, accepted, and the number of
        stored responses that the ingest changed.
    """
    last: dict[str, Mapping[str, Any]] = {}
    for row in sorted(ingests, key=lambda row: (row["started_at"], row["ingest_id"])):
        if row["input_fingerprint"] is not None:
            last[row["input_fingerprint"].partition(":")[0]] = row
    changing = [row for row in ingests if row["changed"]]

    def overwritten_by(mine: Mapping[str, Any]) -> str | None:
        later = (r for r in changing if r["finished_at"] >= mine["started_at"] and r["ingest_id"] != mine["ingest_id"])
        newest = max(later, key=lambda row: row["finished_at"], default=None)
        return None if newest is None else newest["ingest_id"]

    return {
        key: LastIngest(
            row["input_fingerprint"], row["ingest_id"], row["rows_read"], row["accepted"], overwritten_by(row)
        )
        for key, row in last.items()
    }


def decide_source(
    source: SourceConfig,
    rules: IngestConfig,
    found: Mapping[str, SourceContents | None],
    last: LastIngest | None,
    skip: bool,
) -> Decision:
    """Say what to do with a source.

    Parameters
    ----------
    source, rules
        The source, and `config.ingest`.
    found
        By location (input, items, mapping), what is there.
    last
        Its last ended ingest.
    skip
        `nightly.skip_unchanged`.
    """
    if found[source.input] is None:
        if source.optional:
            return Decision(source, "missing", "the input does not exist or is empty, and it is optional")
        return Decision(source, "failed", f"the input {source.input} does not exist or is empty")
    for location, listing in found.items():
        if listing is None:
            return Decision(source, "failed", f"{location} does not exist or is empty")
    states = {location: listing.state for location, listing in found.items() if listing is not None}
    known = {location: state for location, state in states.items() if state is not None}
    if len(known) < len(states):
        return Decision(source, "read", "nothing tells whether a table that is not Delta has changed")
    now = fingerprint(source, rules, known)
    if last is None:
        return Decision(source, "read", "not read before", now)
    if last.fingerprint != now:
        return Decision(source, "read", "files or configuration changed since its last ingest", now)
    if last.read and not last.accepted:
        return Decision(source, "read", f"unchanged, but its ingest {last.ingest_id} found no response in it", now)
    if last.overwritten_by is not None:
        reason = (
            f"unchanged, but ingest {last.overwritten_by} replaced stored responses after its ingest {last.ingest_id}"
        )
        return Decision(source, "read", reason, now)
    if not skip:
        return Decision(source, "read", "unchanged; nightly.skip_unchanged is false", now)
    return Decision(source, "skip", f"unchanged since ingest {last.ingest_id}", now)


def decide_all(
    spark: SparkSession, warehouse: Warehouse, sources: Iterable[SourceConfig], rules: IngestConfig, skip: bool
) -> Iterable[Decision]:
    """Look at one source after the other, each only when it is asked for: just before it is read."""
    for source in sources:
        locations = [source.input, *filter(None, (source.items, source.mapping))]
        try:
            found = {location: look_for(spark, location) for location in locations}
        except InputError as error:
            yield Decision(source, "failed", str(error))
            continue
        last = last_ingests(warehouse)  # the ingests of this night so far among them
        yield decide_source(source, rules, found, last.get(source_key(source)), skip)


def _hash(told: Mapping[str, Any]) -> str:
    text = json.dumps(told, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
