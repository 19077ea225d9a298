"""Reading rows of `quarantine` again under another mapping: `cbmm-spark quarantine resubmit`.

The files that refused rows come from are ingested again, those alone of an input of many. Where a file is gone, rows of
long tables are read from what `quarantine` keeps of them. In both cases the responses are committed first; the same
commit to `quarantine` that keeps what is refused again then removes what is not, so that killing it anywhere and
repeating it loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.load import load_mapping
from cbmm_spark.config.schema import ColumnsConfig, Config, IngestConfig
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.gather import Source
from cbmm_spark.ingest.job import Given, check_utc, take_in
from cbmm_spark.ingest.quarantine import Reread
from cbmm_spark.ingest.quarantine_admin import Selection
from cbmm_spark.ingest.report import IngestReport
from cbmm_spark.locations import table_name
from cbmm_spark.readers import jsonl
from cbmm_spark.readers.base import RawFrame
from cbmm_spark.readers.files import files_of
from cbmm_spark.readers.registry import open_source
from cbmm_spark.readers.rows import Scan
from cbmm_spark.tables import Warehouse, recorded

_ISO = "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"  # how Spark writes a time into JSON
_MODEL_AND_ITEM = ColumnsConfig(model=("model",), item=("item",), score=("score",))
LONG: Mapping[str, ColumnsConfig | None] = MappingProxyType(
    {
        **dict.fromkeys(("csv", "jsonl", "parquet", "delta", "table")),
        **dict.fromkeys(("wide-models", "wide-items"), _MODEL_AND_ITEM),
        "py-irt": ColumnsConfig(model=("subject_id",), item=("item",), score=("response",)),
    }
)
"""Formats of which quarantine keeps whole rows as JSON, and the names of their columns; None: those of the
configuration."""

_UNKNOWN = "the ingest that refused it did not end; say how to read it: --format NAME, and --benchmark … as it needs"
_LOST = "its file does not hold these rows any more; `cbmm-spark quarantine drop` removes them"
_UNREADABLE = "malformed_row"  # rows that are no JSON of their columns, but text


@dataclass(frozen=True)
class Left:
    """Selected rows that were not read again, and why."""

    source: str | None
    rows: int
    why: str


@dataclass(frozen=True)
class Resubmitted:
    """What became of the selected rows.

    Attributes
    ----------
    selected
        Rows of quarantine that were selected.
    ingests
        What was read again.
    removed
        Rows that left quarantine.
    left
        Rows that could not be read again; they stay.
    """

    selected: int
    ingests: Sequence[IngestReport]
    removed: int
    left: Sequence[Left]

    def lines(self) -> list[str]:
        """For a person."""
        told = [line for report in self.ingests for line in report.lines()]
        told.append(f"{self.selected:,} rows of quarantine selected, {self.removed:,} rows left it")
        told += [f"  {each.rows:>12,} not read again, of {each.source}: {each.why}" for each in self.left]
        return told


@dataclass(frozen=True)
class _Source:
    """A file or table with selected rows, how it is to be read (None: unknown) and as which format it was read."""

    name: str | None
    given: Given | None
    format: str | None
    rows: int


@recorded("resubmit")
def resubmit(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    selection: Selection,
    instead: Mapping[str, str],
) -> Resubmitted:
    """Read selected rows of `quarantine` again.

    Every file that has selected rows is read whole, so that its other refused rows are decided about as well.

    Parameters
    ----------
    spark, warehouse, config
        As for `ingest`.
    selection
        Which rows.
    instead
        What to give to the ingest instead of what was given then: format, benchmark, model, items, mapping.

    Raises
    ------
    InputError
        No row is selected.
    ConfigError
        The mapping cannot be read or the session is not in UTC.
    ConflictError
        Ingests kept committing first; repeating is safe.
    """
    check_utc(spark)
    sources = _selected(warehouse, selection, instead)
    if not sources:
        raise InputError(f"nothing in quarantine fits: {selection.text()} (`cbmm-spark quarantine list` shows it)")
    reports: list[IngestReport] = []
    left = [Left(each.name, each.rows, _UNKNOWN) for each in sources if each.given is None]
    for given, members in _by_input(sources).items():
        rules = (config if given.mapping is None else load_mapping(config, given.mapping)).ingest
        there = _there(spark, given, members)
        for group, read in ((there, _read_files), ([each for each in members if each not in there], _read_rows)):
            if not group:
                continue
            try:
                reports += read(spark, warehouse, rules, given, group, selection, left)
            except InputError as error:
                left += [Left(each.name, each.rows, str(error)) for each in group]
    removed = sum(report.removed for report in reports)
    return Resubmitted(sum(each.rows for each in sources), tuple(reports), removed, tuple(left))


def _selected(warehouse: Warehouse, selection: Selection, instead: Mapping[str, str]) -> list[_Source]:
    """The files with selected rows and how each was read; kept on the driver, as an ingest keeps its list of files."""
    if not warehouse.exists("quarantine"):
        return []
    rows = warehouse.read("quarantine").where(selection.condition())
    found = rows.groupBy("source", "ingested_at").agg(F.count("*").alias("rows"))
    if warehouse.exists("ingests"):
        # A refused row has the time at which its ingest began.
        ingests = (
            warehouse.read("ingests").groupBy("started_at").agg(F.max_by(F.struct("*"), "ingest_id").alias("ingest"))
        )
        found = found.join(ingests, F.col("ingested_at") == F.col("started_at"), "left")
    else:
        found = found.withColumn("ingest", F.lit(None).cast("struct<report: string, format: string>"))
    given = F.from_json(F.get_json_object("ingest.report", "$.given"), "map<string, string>")
    last = found.select("source", "ingested_at", "rows", given.alias("given"), F.col("ingest.format").alias("format"))
    # Rows of one file that several ingests refused: the last of them that ended says how to read it.
    order = F.struct(F.col("given").isNotNull(), "ingested_at")
    by_source = last.groupBy("source").agg(
        F.sum("rows").alias("rows"), F.max_by(F.struct("given", "format"), order).alias("last")
    )
    return [
        _Source(row["source"], _given(row["source"], row["last"]["given"], instead), row["last"]["format"], row["rows"])
        for row in by_source.orderBy("source").collect()
    ]


def _given(source: str, kept: Mapping[str, str] | None, instead: Mapping[str, str]) -> Given | None:
    """How to read a source: as its ingest did; of an ingest that did not end by itself, if its format is given now."""
    if kept is None and "format" not in instead:
        return None
    told = {**(kept or {"input": by_itself(source)}), **instead}
    names = ("benchmark", "model", "items", "mapping")
    return Given(told["input"], told.get("format", "auto"), **{name: told.get(name) for name in names})


def by_itself(source: str) -> str:
    """A file as an input: the name of a file that Spark tells is a URI, and a pattern takes some letters otherwise."""
    plain = unquote(source) if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", source) else source
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", plain)


def _by_input(sources: Sequence[_Source]) -> dict[Given, list[_Source]]:
    groups: dict[Given, list[_Source]] = {}
    for each in sources:
        if each.given is not None:
            groups.setdefault(each.given, []).append(each)
    return groups


def _there(spark: SparkSession, given: Given, members: Sequence[_Source]) -> list[_Source]:
    """Those of the sources that are still behind an input."""
    if table_name(given.path) is not None:
        return [each for each in members if each.name == given.path]
    found = files_of(spark, given.path)
    return [each for each in members if each.name in found or (found and each.name == given.path)]


def _read_files(
    spark: SparkSession,
    warehouse: Warehouse,
    rules: IngestConfig,
    given: Given,
    members: Sequence[_Source],
    _selection: Selection,
    left: list[Left],
) -> list[IngestReport]:
    names = [str(each.name) for each in members]
    source, *format = open_source(spark, given.path, given.format, given.options(rules))
    note = f"only {len(names):,} of its files were read, those with selected rows in quarantine"
    read = replace(_only(source, names), notes=(*source.notes, note))
    # Formats of which whole rows are kept show a row as it is written, whatever the mapping.
    reread = Reread(names, by_text=format[0] in LONG)
    report = take_in(warehouse, rules, given, read, (format[0], format[1]), reread)
    left += [Left(source, rows, _LOST) for source, rows in sorted(report.lost.items())]
    return [report]


def _only(source: Source, names: Sequence[str]) -> Source:
    """A source without the files that are not named."""
    if isinstance(source, Scan):
        return replace(source, parts=[part for part in source.parts if part.source in names])
    return replace(source, frame=source.frame.where(F.col("source").isin(list(names))))


def _read_rows(
    spark: SparkSession,
    warehouse: Warehouse,
    rules: IngestConfig,
    given: Given,
    members: Sequence[_Source],
    selection: Selection,
    left: list[Left],
) -> list[IngestReport]:
    """Of files that are gone: the rows that quarantine keeps, format by format."""
    reports = []
    for format in sorted({each.format or "" for each in members}):
        group = [each for each in members if (each.format or "") == format]
        if format not in LONG:
            why = (
                f"it is gone, and quarantine keeps no whole rows of {format}"
                if format
                else "it is gone, and its ingest did not end"
            )
            left += [Left(each.name, each.rows, why) for each in group]
            continue
        names = [str(each.name) for each in group]
        rows = warehouse.read("quarantine").where(selection.condition() & F.col("source").isin(names))
        counts = rows.groupBy("source", "reason").count().collect()
        left += [
            Left(row["source"], row["count"], "it is gone, and these are no rows but text")
            for row in counts
            if row["reason"] == _UNREADABLE
        ]
        reasons = sorted({row["reason"] for row in counts} - {_UNREADABLE})
        if reasons:
            raw = _of_rows(rows.where(F.col("reason").isin(reasons)), format, given, rules)
            told = (format, "the format that the rows in quarantine were read as")
            reports.append(take_in(warehouse, _for_rows(rules), given, raw, told, Reread(names, reasons)))
    return reports


def _of_rows(rows: DataFrame, format: str, given: Given, rules: IngestConfig) -> RawFrame:
    columns = LONG[format]
    named = rules if columns is None else replace(rules, columns=columns)
    dated = replace(named, date_formats=tuple(dict.fromkeys((_ISO, *rules.date_formats))))
    lines = rows.select(F.col("raw").alias("value"), "source", "position")
    raw = jsonl.of_lines(lines, given.options(dated), given.path)
    return replace(raw, notes=("the files are gone: read from the rows in quarantine", *raw.notes))


def _for_rows(rules: IngestConfig) -> IngestConfig:
    """A few rows of a file say nothing about what vanished from it."""
    dated = tuple(dict.fromkeys((_ISO, *rules.date_formats)))
    return replace(rules, date_formats=dated, checks=replace(rules.checks, vanished="ignore"))
