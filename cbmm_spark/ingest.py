"""Ingest: evaluation results of any known format → `responses`, `models`, `items`, `quarantine`, `ingests`.

The way of a batch: read (`readers`) → validate (`responses`) → one row per key, the one shuffle (`batch`) → look it
over (`checks`) → compare with what is stored, numbers for new keys (`dimensions`), one commit to `responses` with only
the rows that differ (`merge`) → refused rows (`quarantine`) → the report. Repeating an ingest changes nothing but the
list of ingests, and one that was killed anywhere is completed by repeating it.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cbmm_spark.batch import make_batch
from cbmm_spark.checks import check_batch, coverage
from cbmm_spark.config import Config
from cbmm_spark.describe import describe_jobs
from cbmm_spark.errors import ConfigError
from cbmm_spark.ingest_report import Example, IngestReport, keep_report
from cbmm_spark.merge import commit_batch
from cbmm_spark.quarantine import keep_refused
from cbmm_spark.readers import ReadOptions, read_source
from cbmm_spark.readers.files import reading
from cbmm_spark.tables import Warehouse, add_provenance, recorded

__all__ = ["Example", "IngestReport", "ingest"]

_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


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
    path
        File, folder or glob, or the name of a catalog's table.
    format
        One of `readers.FORMATS`.
    benchmark, model
        For a source that has no column for them.
    items
        A file or table of all items of the benchmark, for formats that list only some of them.
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
        The format is unknown or the session is not in UTC.
    ConflictError
        Other ingests kept committing first; what is written is whole, and repeating is safe.
    """
    if spark.conf.get("spark.sql.session.timeZone") not in _UTC_NAMES:
        raise ConfigError("the Spark session is not in UTC: set spark.sql.session.timeZone=UTC")
    started = datetime.now(UTC)
    ingest_id = f"{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    add_provenance(ingest_id=ingest_id)
    describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: look at {path}")
    rules = config.ingest
    options = ReadOptions(rules, benchmark, model, items)
    raw, name, reason = read_source(spark, path, format, options)
    with ExitStack() as held:
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: read {path}")
        with reading(path):
            batch = make_batch(raw, rules, path, held)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: check")
        warnings = check_batch(warehouse, batch, rules.checks)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: compare and commit")
        became = commit_batch(warehouse, batch, rules.duplicates, started)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: quarantine")
        refused = keep_refused(warehouse, batch, started)
        describe_jobs(spark, f"cbmm-spark ingest {ingest_id}: report")
        covered = coverage(batch)
    report = IngestReport(
        ingest_id=ingest_id,
        path=path,
        format=name,
        format_reason=reason,
        notes=raw.notes,
        read=batch.read,
        accepted=batch.counts.keys,
        new=became.get("new", 0),
        unchanged=became.get("unchanged", 0),
        corrected=became.get("corrected", 0),
        redated=became.get("redated", 0),
        superseded=became.get("superseded", 0),
        collapsed=batch.counts.rows - batch.counts.keys,
        missing=batch.counts.missing,
        left_out=batch.left_out,
        defaults=batch.defaults,
        quarantined={reason: count for reason, (count, _) in refused.items()},
        examples={reason: examples for reason, (_, examples) in refused.items()},
        warnings=tuple(warnings),
        coverage=tuple(covered),
    )
    keep_report(warehouse, report, started, fingerprint)
    return report
