"""Ingest: evaluation results of any known format → `responses`, `models`, `items`, `quarantine`, `ingests`.

The way of a batch: read (`readers`) → validate (`responses`) → one row per key, the one shuffle (`batch`) → look it
over (`checks`) → compare with what is stored, numbers for new keys (`dimensions`), one commit to `responses` with only
the rows that differ (`merge`) → refused rows (`quarantine`) → the report. Repeating an ingest changes nothing but the
list of ingests, and one that was killed anywhere is completed by repeating it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from cbmm_spark.config.load import load_mapping
from cbmm_spark.config.schema import Config, IngestConfig
from cbmm_spark.errors import ConfigError
from cbmm_spark.ingest.batch import make_batch
from cbmm_spark.ingest.checks import check_batch, coverage
from cbmm_spark.ingest.merge import commit_batch
from cbmm_spark.ingest.quarantine import Reread, keep_refused
from cbmm_spark.ingest.report import Example, IngestReport, keep_report
from cbmm_spark.ingest.rules import validate
from cbmm_spark.locations import absolute
from cbmm_spark.readers.base import RawFrame, ReadOptions
from cbmm_spark.readers.files import reading
from cbmm_spark.readers.registry import read_source
from cbmm_spark.spark.scoped import describe_jobs, session_settings
from cbmm_spark.tables import Warehouse, add_provenance, recorded

__all__ = ["Example", "Given", "IngestReport", "ingest", "take_in"]

# A generated method of more bytes is not compiled by the JVM; Spark then does better with many small ones.
_LIMITS = {"spark.sql.codegen.hugeMethodLimit": "8000"}

_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


@dataclass(frozen=True)
class Given:
    """What the person who started an ingest said about its source.

    Attributes
    ----------
    path
        File, folder or glob, or the name of a catalog's table.
    format
        One of `readers.FORMATS`.
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
        A TOML file to lay over `config.ingest` (`config.load_mapping`).
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
    raw, name, reason = read_source(spark, path, format, given.options(rules))
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
    raw: RawFrame,
    format: tuple[str, str],
    reread: Reread | None = None,
    fingerprint: str | None = None,
) -> IngestReport:
    """Take what a reader gave into the warehouse.

    Parameters
    ----------
    warehouse, rules, given
        As for `ingest`.
    raw
        Rows of the source.
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
    name, reason = format
    spark = warehouse.spark
    started = datetime.now(UTC)
    ingest_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    add_provenance(ingest_id=ingest_id)
    with ExitStack() as held:
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: read {given.path}")
        with reading(given.path), session_settings(spark, _LIMITS):
            batch = make_batch(raw, rules, given.path, held)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: check")
        # What quarantine held is taken whole or not at all: it is removed there.
        checked = check_batch(warehouse, batch, rules.checks, whole=reread is not None)
        batch = checked.batch
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: compare and commit")
        outcome = commit_batch(warehouse, batch, rules.duplicates, started)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: quarantine")
        refused = keep_refused(warehouse, batch, started, _judged_again(raw, rules), reread)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: report")
        covered = coverage(batch)
    mapped = () if given.mapping is None else (f"mapping {given.mapping} was laid over [ingest]",)
    report = IngestReport(
        ingest_id=ingest_id,
        path=given.path,
        format=name,
        format_reason=reason,
        notes=(*mapped, *raw.notes),
        read=batch.read,
        accepted=batch.counts.keys,
        new=outcome.became.get("new", 0),
        unchanged=outcome.became.get("unchanged", 0),
        corrected=outcome.became.get("corrected", 0),
        redated=outcome.became.get("redated", 0),
        superseded=outcome.became.get("superseded", 0),
        collapsed=batch.counts.rows - batch.counts.keys,
        missing=batch.counts.missing,
        left_out=batch.left_out,
        defaults=batch.defaults,
        quarantined={reason: count for reason, (count, _) in refused.by_reason.items()},
        examples={
            reason: tuple(example.on_line(raw.first_line) for example in examples)
            for reason, (_, examples) in refused.by_reason.items()
        },
        corrections=outcome.corrections,
        warnings=checked.warnings,
        coverage=tuple(covered),
        given=given.kept(),
        removed=refused.removed,
        lost=refused.lost,
        stopped=checked.stopped,
    )
    # Without a fingerprint the next night reads it again, however often.
    keep_report(warehouse, report, started, None if checked.stopped else fingerprint)
    return report


def _judged_again(raw: RawFrame, rules: IngestConfig) -> Callable[[Sequence[str]], DataFrame] | None:
    """`validate` of the rows of some files with their positions, where the reader can find these."""
    numbered = raw.numbered
    return None if numbered is None else lambda sources: validate(numbered(sources), rules)
