"""What an ingest did, for people and for machines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark import __version__
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.checks import Coverage, stopped_by_content
from cbmm_spark.responses.members import Members
from cbmm_spark.tables import SPECS, Warehouse

_BENCHMARKS_SHOWN = 10  # lines of coverage that a person reads; the JSON has all
_LONGEST_EXAMPLE = 300  # characters of a refused row that a report shows; the quarantine table has all


@dataclass(frozen=True)
class Example:
    """A refused row.

    Attributes
    ----------
    source
        Its file or table.
    position
        Its row there, from 0, where known.
    raw
        Its beginning as JSON.
    line
        Its line in the file, from 1, where rows are lines.
    """

    source: str
    position: int | None
    raw: str
    line: int | None = None

    @staticmethod
    def of(source: str, position: int | None, raw: str) -> Example:
        """An example whose row is cut to a readable length, visibly."""
        return Example(source, position, raw if len(raw) <= _LONGEST_EXAMPLE else raw[:_LONGEST_EXAMPLE] + " …")

    def on_line(self, first: int | None) -> Example:
        """The same with its line, if row 0 of its file is on line `first`."""
        if self.position is None or first is None:
            return self
        return dataclasses.replace(self, line=self.position + first)

    def text(self) -> str:
        """For a person."""
        where = self.source
        if self.line is not None:
            where += f" line {self.line}"
        elif self.position is not None:
            where += f" row {self.position}"
        return f"{self.raw}  ({where})"


@dataclass(frozen=True)
class IngestReport:
    """Rows by what became of them.

    read = accepted + collapsed + all of quarantined + all of left_out, and
    accepted = new + unchanged + corrected + redated + superseded.

    Attributes
    ----------
    ingest_id
        Key of the row in `ingests`.
    path, format, format_reason
        The input, the format it was read as, and why.
    notes
        Decisions made on the way, such as a default that was applied.
    read
        Rows of the input (cells of a wide table).
    accepted
        Responses in it: valid rows, each key once.
    new, unchanged
        Responses not seen before; responses that are stored already.
    corrected
        Another score than the stored one, which was replaced.
    redated
        The stored score with an earlier date, or the first date; the date was updated.
    superseded
        Another score than the stored one, which the duplicates rule kept.
    collapsed
        Rows that repeat a response of the same input.
    missing
        Accepted responses without a verdict.
    left_out
        Records that are no responses by the source's own design, by why, and rows of stopped benchmarks.
    defaults
        What was assumed where the source does not say it, and about how many rows.
    quarantined, examples
        Refused rows by reason, and up to three of each.
    corrections
        The first corrections, in words.
    warnings
        What a person should look at.
    coverage
        How much of each benchmark the models of the input answered.
    given
        What was said about the source, to read it again: input, format, benchmark, model, items, mapping.
    removed
        Rows taken out of quarantine, because they were read again and not refused.
    lost
        Rows of quarantine that their files do not hold any more, by file: they stay.
    stopped
        Why some benchmarks were left out (`checks.check_batch`); empty where none was.
    """

    ingest_id: str
    path: str
    format: str
    format_reason: str
    notes: tuple[str, ...]
    read: int
    accepted: int
    new: int
    unchanged: int
    corrected: int
    redated: int
    superseded: int
    collapsed: int
    missing: int
    left_out: Mapping[str, int]
    defaults: Mapping[str, int]
    quarantined: Mapping[str, int]
    examples: Mapping[str, tuple[Example, ...]]
    corrections: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    removed: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""

    @property
    def refused(self) -> int:
        """All quarantined rows."""
        return sum(self.quarantined.values())

    @property
    def changed(self) -> bool:
        """Whether `responses` has a new version."""
        return bool(self.new or self.corrected or self.redated)

    def as_json(self) -> str:
        """One line of JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)

    def lines(self) -> list[str]:
        """The report for a person; counts of zero are left out."""
        told = [f"{self.path}: read as {self.format} ({self.format_reason})"]
        told += [f"  note: {note}" for note in self.notes]
        told.append(f"  {self.read:>12,} rows read")
        for name in ("accepted", "new", "unchanged", "corrected", "redated", "superseded", "collapsed", "missing"):
            count = getattr(self, name)
            if count or name == "accepted":
                told.append(f"  {count:>12,} {_MEANINGS[name]}")
            if name == "corrected":
                told += [f"               {correction}" for correction in self.corrections]
        told += [f"  {count:>12,} left out: {_LEFT_OUT.get(why, why)}" for why, count in self.left_out.items()]
        told += [f"  {count:>12,} rows by default: {what}" for what, count in self.defaults.items()]
        for reason, count in self.quarantined.items():
            told.append(f"  {count:>12,} quarantined: {reason}")
            told += [f"               {example.text()}" for example in self.examples.get(reason, ())]
        if self.removed:
            told.append(f"  {self.removed:>12,} rows of quarantine are not refused any more and were removed")
        told += [f"  {each.line()}" for each in self.coverage[:_BENCHMARKS_SHOWN]]
        if len(self.coverage) > _BENCHMARKS_SHOWN:
            told.append(f"  and {len(self.coverage) - _BENCHMARKS_SHOWN} more benchmarks")
        told += [f"  warning: {warning}" for warning in self.warnings]
        return told


def members_before(warehouse: Warehouse, path: str) -> Members | None:
    """Return what the files of an input held when it was last ingested; None where it was not, or nobody noted it."""
    if not warehouse.exists("ingests"):
        return None
    noted = (F.col("input") == path) & F.col("members").isNotNull()
    row = warehouse.read("ingests").where(noted).orderBy(F.desc("started_at")).select("members").head()
    return None if row is None else Members.unpacked(bytes(row["members"]))


def complaint(warehouse: Warehouse, report: IngestReport) -> InputError | None:
    """Return what an ingest that ended is to fail with: every row was refused, or a benchmark was stopped."""
    if report.stopped:
        return stopped_by_content(report.path, report.stopped)
    if not report.read or report.accepted:
        return None
    return InputError(
        f"none of the {report.read:,} rows of {report.path} is a response; they are in "
        f"{warehouse.location('quarantine')} with their reasons"
    )


def keep_report(
    warehouse: Warehouse,
    report: IngestReport,
    started: datetime,
    fingerprint: str | None = None,
    members: Members | None = None,
) -> None:
    """Add a report to the table `ingests`, with the fingerprint of its input where one was taken, and its members.

    Raises
    ------
    ConflictError
        Other ingests kept committing first.
    """
    warehouse.ensure("ingests")
    names = ("accepted", "new", "unchanged", "corrected", "redated", "superseded", "collapsed", "missing")
    row = (
        *(report.ingest_id, started, datetime.now(UTC), report.path, report.format, report.format_reason, report.read),
        *(getattr(report, name) for name in names),
        *(sum(report.left_out.values()), report.refused, report.as_json(), __version__, fingerprint),
        None if members is None else members.packed(),
    )
    frame = warehouse.spark.createDataFrame([row], SPECS["ingests"].schema)
    warehouse.append(frame.coalesce(1), "ingests", {"command": "ingest", "input": report.path})


_MEANINGS = {
    "accepted": "responses accepted, of these",
    "new": "new",
    "unchanged": "unchanged",
    "corrected": "corrected: another score replaced the stored one",
    "redated": "redated: the same score with an earlier or a first date",
    "superseded": "superseded: the stored score was kept by the duplicates rule",
    "collapsed": "rows repeated a response of this input",
    "missing": "accepted responses have no verdict",
}


_LEFT_OUT = {
    "other_filter": "the same answers read by another filter than the one that counts",
    "other_metric": "other measures of answers that are taken already",
    "no_result": "records that carry no answer",
    "other_attempt": "attempts beside the one that counts (ingest.attempts)",
    "stopped_benchmark": "rows of benchmarks of which an item has two contents (ingest.checks.content)",
}
