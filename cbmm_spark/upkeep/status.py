"""One screen about a warehouse: its last nights and ingests, who holds a day now, and how large its tables are.

Nothing is written, and nothing is refused for lacking a table or a column: a warehouse of an earlier version, or one
that is not whole, is just what somebody wants to look at.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.console.text_table import duration, size, text_table
from cbmm_spark.errors import InputError
from cbmm_spark.spark.scoped import describe_jobs
from cbmm_spark.tables import SPECS, Warehouse

_AT_ONCE = 4  # questions about tables asked at the same time: most of each is waiting for storage
_LONGEST_NOTE = 60

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Status:
    """What there is to know.

    Attributes
    ----------
    warehouse
        Its root.
    published
        The newest published day, its run and how many days ago it was, or None: what shows that nights fail before they
        claim their day, as those do whose sources cannot be read.
    nights
        The last runs, the newest first.
    claims
        Runs that hold a day now.
    ingests
        The last ended ingests, the newest first.
    tables
        Version, files and bytes of each table that is there; those that are not a Delta table with a `problem`.
    missing
        Tables that are not there.
    """

    warehouse: str
    published: dict[str, Any] | None = None
    nights: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    ingests: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def status(warehouse: Warehouse, nights: int, now: dt.datetime | None = None) -> Status:
    """Look at a warehouse.

    Parameters
    ----------
    warehouse
        Where; tables may be missing.
    nights
        How many runs and ingests to list at most.
    now
        The time that ages count from, with time zone; now, if not given.

    Returns
    -------
    Status
    """
    now = now or dt.datetime.now(dt.UTC)
    with ThreadPoolExecutor(_AT_ONCE) as pool:

        def ask(function: Callable[..., _Answer], *arguments: Any) -> Future[_Answer]:
            return pool.submit(_described, function, warehouse, *arguments)

        details = {name: ask(_detail, name) for name in SPECS}
        runs = ask(_runs, nights)
        ingests, published = ask(_ingests, nights), ask(_published, now)
        found = {name: detail.result() for name, detail in details.items()}
        rows = runs.result()
        return Status(
            warehouse.root,
            published.result(),
            [_night(row, now) for row in rows if row["listed"]],
            [_claim(row, now) for row in rows if row["status"] == "running"],
            ingests.result(),
            [detail for detail in found.values() if detail is not None],
            [name for name, detail in found.items() if detail is None],
        )


# ------------------------------------------------------------------------------------------------ asking
def _described(function: Callable[..., _Answer], warehouse: Warehouse, *arguments: Any) -> _Answer:
    describe_jobs(warehouse.spark, "cbmm-spark status")  # each thread has its own
    return function(warehouse, *arguments)


def _detail(warehouse: Warehouse, name: str) -> dict[str, Any] | None:
    try:
        size = warehouse.size(name)
    except InputError as error:
        return {"table": name, "problem": str(error)}
    return None if size is None else {"table": name, **size}


def _runs(warehouse: Warehouse, nights: int) -> list[dict[str, Any]]:
    """The last runs, and all that are running, with the figures of their scales: one Spark job."""
    runs, scales = _looked(warehouse, "runs"), _looked(warehouse, "run_scales")
    if runs is None:
        return []
    newest = (F.desc("started_at"), F.desc("run_id"))
    last = runs.drop("config").orderBy(*newest).limit(nights).withColumn("listed", F.lit(True))
    others = runs.drop("config").where("status = 'running'").withColumn("listed", F.lit(False))
    listed = last.unionByName(others.join(last.select("run_id"), "run_id", "left_anti"))
    if scales is not None:
        listed = listed.join(_of_scales(scales), "run_id", "left")
    rows = [_as_utc(row) for row in listed.collect()]
    return sorted(rows, key=lambda row: (row["started_at"], row["run_id"]), reverse=True)


def _published(warehouse: Warehouse, now: dt.datetime) -> dict[str, Any] | None:
    runs = _looked(warehouse, "runs")
    if runs is None:
        return None
    newest = runs.where("status = 'published'").orderBy(F.desc("scored_on"), F.desc("started_at"))
    row = newest.select("scored_on", "run_id").first()
    return None if row is None else {**row.asDict(), "days_ago": (now.date() - row["scored_on"]).days}


def _of_scales(scales: DataFrame) -> DataFrame:
    """One row per run: counts of its scales, and the link of its largest scale, `overall` where there is one."""
    largest = F.struct(F.col("scale") == "overall", "n_responses", "scale")

    def of_largest(name: str) -> Column:
        return F.max_by(name, largest).alias(name)

    return scales.groupBy("run_id").agg(
        F.count("*").alias("scales"),
        F.count_if(F.col("converged")).alias("converged"),
        F.max("n_models").alias("models"),
        F.max("n_items").alias("items"),
        F.max("n_responses").alias("responses"),
        *(of_largest(name) for name in ("link_slope", "link_intercept", "n_anchors")),
        F.sum("n_drifted").alias("drifted"),
    )


def _ingests(warehouse: Warehouse, nights: int) -> list[dict[str, Any]]:
    ingests = _looked(warehouse, "ingests")
    if ingests is None:
        return []
    told = ("started_at", "finished_at", "ingest_id", "input", "format", "rows_read", "accepted", "new", "corrected")
    rows = ingests.orderBy(F.desc("started_at"), F.desc("ingest_id")).limit(nights).select(*told, "quarantined")
    found = [_as_utc(row) for row in rows.collect()]
    return [{**row, "seconds": _seconds(row["started_at"], row["finished_at"])} for row in found]


def _looked(warehouse: Warehouse, name: str) -> DataFrame | None:
    """A table, None where it is missing or, which the list of tables tells, no Delta table."""
    try:
        return warehouse.look(name)
    except InputError:
        return None


# ------------------------------------------------------------------------------------------------ telling
def _night(row: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    end = row["finished_at"] or (now if row["status"] == "running" else None)
    names = ("scales", "models", "items", "responses", "converged", "link_slope", "link_intercept", "drifted")
    return {
        "scored_on": row["scored_on"],
        "run_id": row["run_id"],
        "status": row["status"],
        "started_at": row["started_at"],
        "seconds": _seconds(row["started_at"], end),
        **{name: row.get(name) for name in names},
        "gates": gates_in_words(row.get("gates")),
        "error": row["error"],
    }


def _claim(row: Mapping[str, Any], now: dt.datetime) -> dict[str, Any]:
    seen = row.get("heartbeat_at") or row["started_at"]
    return {
        "run_id": row["run_id"],
        "scored_on": row["scored_on"],
        "owner": row.get("owner"),
        "started_at": row["started_at"],
        "seconds_since_sign_of_life": _seconds(seen, now),
    }


def gates_in_words(text: str | None) -> str | None:
    """What the gates found, shortly: `runs.gates` is JSON with a list of findings, each with its gate and action."""
    if text is None:
        return None
    try:
        told = json.loads(text)
        findings = told["findings"] if isinstance(told, dict) else told
        found = [f"{finding['gate']} ({finding['action']})" for finding in findings]
    except (ValueError, TypeError, KeyError):
        return text  # of another version of the package: shown as it is
    return ", ".join(dict.fromkeys(found)) or "passed"


def as_text(told: Status) -> str:
    """The screen."""
    claims = [_claim_in_words(claim) for claim in told.claims] or ["no run holds a day"]
    parts = [f"warehouse {told.warehouse}\n{_published_in_words(told.published)}", _nights_table(told.nights)]
    parts.append("\n".join(claims))
    parts += [_ingests_table(told.ingests), _sizes_table(told.tables)]
    if told.missing:
        parts.append(f"not there: {', '.join(told.missing)}")
    return "\n\n".join(filter(None, parts))


def _published_in_words(published: Mapping[str, Any] | None) -> str:
    if published is None:
        return "nothing is published"
    days = published["days_ago"]
    ago = "today" if days == 0 else f"{abs(days)} day{'s' * (abs(days) != 1)} {'ago' if days > 0 else 'ahead'}"
    return f"last published: {published['scored_on']}, {ago}, by run {published['run_id']}"


def _nights_table(nights: Sequence[Mapping[str, Any]]) -> str:
    heads = ("day", "run", "status", "took", "scales", "models", "items", "responses", "link", "gates", "error")
    rows = [
        (
            *(night["scored_on"], night["run_id"], night["status"], duration(night["seconds"]), _scales(night)),
            *(night["models"], night["items"], night["responses"], _link(night), night["gates"]),
            _shortened(night["error"]),
        )
        for night in nights
    ]
    return text_table(heads, rows) if rows else "no night yet"


def _ingests_table(ingests: Sequence[Mapping[str, Any]]) -> str:
    heads = ("ingest (UTC)", "input", "format", "took", "rows", "new", "corrected", "quarantined")
    rows = [
        (
            *(each["started_at"], _shortened(each["input"]), each["format"], duration(each["seconds"])),
            *(each["rows_read"], each["new"], each["corrected"], each["quarantined"]),
        )
        for each in ingests
    ]
    return text_table(heads, rows) if rows else "no ingest yet"


def _sizes_table(tables: Sequence[Mapping[str, Any]]) -> str:
    rows = [(t["table"], t.get("version"), t.get("files"), size(t.get("bytes")), t.get("problem")) for t in tables]
    heads = ("table", "version", "files", "size", "problem")
    shown = len(heads) if any("problem" in table for table in tables) else len(heads) - 1
    return text_table(heads[:shown], [row[:shown] for row in rows]) if rows else ""


def _scales(night: Mapping[str, Any]) -> str | None:
    if night["scales"] is None:
        return None
    converged = night["converged"] or 0
    return str(night["scales"]) if converged == night["scales"] else f"{converged} of {night['scales']} converged"


def _claim_in_words(claim: Mapping[str, Any]) -> str:
    owner = f" by {claim['owner']}" if claim["owner"] else ""
    seen = duration(claim["seconds_since_sign_of_life"])
    return f"{claim['scored_on']} is held by run {claim['run_id']}{owner}, last sign of life {seen} ago"


def _link(night: Mapping[str, Any]) -> str | None:
    if night["link_slope"] is None or night["link_intercept"] is None:
        return None
    drifted = f", {night['drifted']} drifted" if night["drifted"] else ""
    return f"{night['link_slope']:.3f}·θ {night['link_intercept']:+.3f}{drifted}"


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST_NOTE else text[: _LONGEST_NOTE - 2] + " …"


def _as_utc(row: Row) -> dict[str, Any]:
    """A row whose times are in UTC and say so: Spark hands them out in the machine's own zone."""
    told = row.asDict().items()
    return {name: value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value for name, value in told}


def _seconds(start: dt.datetime | None, end: dt.datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()
