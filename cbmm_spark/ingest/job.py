"""Ingest: evaluation results of any known format → `responses`, `models`, `items`, `quarantine`, `ingests`.

The way of an input: read, judge and encode it, each row once (`gather`) → look it over (`checks`) → bring the answers
of each model and benchmark together with what is stored, number new names, one commit to `responses` with only what
differs (`commit`) → refused rows (`quarantine`) → the report. Repeating an ingest changes nothing but the list of
ingests, and one that was killed anywhere is completed by repeating it.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cbmm_spark.config.load import load_mapping
from cbmm_spark.config.schema import Config, IngestConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.ingest.checks import Checked, check_batch, coverage
from cbmm_spark.ingest.commit import Outcome, commit_batch
from cbmm_spark.ingest.gather import Source, gather, refused_of, texts_of
from cbmm_spark.ingest.known import known_names
from cbmm_spark.ingest.quarantine import Kept, Reread, keep_refused
from cbmm_spark.ingest.report import Example, IngestReport, keep_report, members_before
from cbmm_spark.locations import absolute
from cbmm_spark.readers.base import ReadOptions
from cbmm_spark.readers.files import reading
from cbmm_spark.readers.registry import open_source
from cbmm_spark.responses.batch import OTHER_ATTEMPT, STOPPED, Batch
from cbmm_spark.spark.scoped import describe_jobs
from cbmm_spark.tables import Warehouse, add_provenance, recorded

__all__ = ["Example", "Given", "IngestReport", "ingest", "take_in"]

_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


@dataclass(frozen=True)
class Given:
    """What the person who started an ingest said about its source.

    Attributes
    ----------
    path
        File, folder or glob, or the name of a catalog's table.
    format
        One of `registry.FORMATS`.
    benchmark, model
        For a source that has no column for them.
    items
        A file or table of all items of the benchmark, for formats that list only some of them.
    mapping
        A TOML file that was laid over `[ingest]`.
    """

    path: str
    format: str = "auto"
    benchmark: str | None = None
    model: str | None = None
    items: str | None = None
    mapping: str | None = None

    def options(self, rules: IngestConfig) -> ReadOptions:
        """As readers take it."""
        return ReadOptions(rules, self.benchmark, self.model, self.items)

    def kept(self) -> dict[str, str]:
        """What was given, to read the source again from anywhere: local paths are absolute."""
        given = {"input": absolute(self.path), "format": self.format, "benchmark": self.benchmark, "model": self.model}
        given |= {name: absolute(path) for name in ("items", "mapping") if (path := getattr(self, name)) is not None}
        return {name: value for name, value in given.items() if value is not None}


@recorded("ingest")
def ingest(
    spark: SparkSession,
    warehouse: Warehouse,
    config: Config,
    path: str,
    format: str = "auto",
    benchmark: str | None = None,
    model: str | None = None,
    items: str | None = None,
    mapping: str | None = None,
    fingerprint: str | None = None,
) -> IngestReport:
    """Take evaluation results into the warehouse.

    Parameters
    ----------
    spark
        A session with Delta, in UTC.
    warehouse
        Its tables are created if the input is good.
    config
        `ingest` is read.
    path, format, benchmark, model, items
        As in `Given`.
    mapping
        A TOML file to lay over `config.ingest` (`load.load_mapping`).
    fingerprint
        What `sources.fingerprint` said of the input before it was read, kept in `ingests`: a night leaves an input
        alone whose fingerprint is still the same.

    Returns
    -------
    IngestReport
        What became of each row.

    Raises
    ------
    InputError
        The input is missing, empty or unusable, or rows contradict each other under `duplicates = "error"`. Nothing is
        written.
    ConfigError
        The format is unknown, the mapping cannot be read or the session is not in UTC.
    ConflictError
        Other ingests kept committing first; what is written is whole, and repeating is safe.
    """
    check_utc(spark)
    given = Given(path, format, benchmark, model, items, mapping)
    rules = (config if mapping is None else load_mapping(config, mapping)).ingest
    describe_jobs(spark, f"cbmm-spark ingest: look at {path}")
    raw, name, reason = open_source(spark, path, format, given.options(rules))
    return take_in(warehouse, rules, given, raw, (name, reason), fingerprint=fingerprint)


def check_utc(spark: SparkSession) -> None:
    """See that times are read as UTC.

    Raises
    ------
    ConfigError
        The session has another time zone.
    """
    if spark.conf.get("spark.sql.session.timeZone") not in _UTC_NAMES:
        raise ConfigError("the Spark session is not in UTC: set spark.sql.session.timeZone=UTC")


def take_in(
    warehouse: Warehouse,
    rules: IngestConfig,
    given: Given,
    source: Source,
    format: tuple[str, str],
    reread: Reread | None = None,
    fingerprint: str | None = None,
) -> IngestReport:
    """Take what a reader gave into the warehouse.

    Parameters
    ----------
    warehouse, rules, given
        As for `ingest`.
    source
        What a reader gave.
    format
        The format's name, and why it was taken.
    reread
        Rows of `quarantine` that this input decides about anew.
    fingerprint
        As for `ingest`.

    Raises
    ------
    InputError, ConflictError
        As `ingest`.
    """
    spark = warehouse.spark
    started = datetime.now(UTC)
    ingest_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    add_provenance(ingest_id=ingest_id)

    def at(step: str) -> None:
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: {step}")

    with ExitStack() as held:
        at(f"read {given.path}")
        with reading(given.path):
            gathered = gather(spark, source, rules, given.path, held)
        batch = gathered.batch
        at("check")
        known = known_names(warehouse, batch)
        asks = rules.checks.vanished != "ignore" and reread is None
        before = members_before(warehouse, given.path) if asks else None
        # What quarantine held is taken whole or not at all: it is removed there.
        checked = check_batch(batch, known, before, rules.checks, whole=reread is not None)
        at("compare and commit")
        outcome = commit_batch(warehouse, gathered, rules, started, known, checked.left)
        at("quarantine")
        refused = refused_of(spark, gathered, source, rules, outcome.undecided)
        texts = texts_of(spark, source, rules) if reread is not None and reread.by_text else None
        kept = keep_refused(warehouse, given.path, refused, started, reread, texts)
        at("report")
    report = _report(given, source, format, gathered.batch, checked, outcome, kept, ingest_id)
    # Without a fingerprint the next night reads it again, however often.
    members = batch.members.with_earlier(before) if asks else None
    keep_report(warehouse, report, started, None if checked.stopped else fingerprint, members)
    return report


def _report(
    given: Given,
    source: Source,
    format: tuple[str, str],
    batch: Batch,
    checked: Checked,
    outcome: Outcome,
    kept: Kept,
    ingest_id: str,
) -> IngestReport:
    mapped = () if given.mapping is None else (f"mapping {given.mapping} was laid over [ingest]",)
    left_out = batch.left_out
    for why, rows in ((OTHER_ATTEMPT, outcome["other_attempts"]), (STOPPED, outcome.stopped)):
        if rows:
            left_out[why] = rows
    return IngestReport(
        ingest_id=ingest_id,
        path=given.path,
        format=format[0],
        format_reason=format[1],
        notes=(*mapped, *source.notes),
        read=batch.read,
        accepted=outcome["keys"],
        new=outcome["new"],
        unchanged=outcome["unchanged"],
        corrected=outcome["corrected"],
        redated=outcome["redated"],
        superseded=outcome["superseded"],
        collapsed=outcome["rows"] - outcome["keys"],
        missing=outcome["missing"],
        left_out=left_out,
        defaults=batch.defaults,
        quarantined={reason: count for reason, (count, _) in kept.by_reason.items()},
        examples={
            reason: tuple(example.on_line(source.first_line) for example in examples)
            for reason, (_, examples) in kept.by_reason.items()
        },
        corrections=outcome.corrections,
        warnings=checked.warnings,
        coverage=tuple(coverage(batch, outcome.answered)),
        given=given.kept(),
        removed=kept.removed,
        lost=kept.lost,
        stopped=checked.stopped,
    )
