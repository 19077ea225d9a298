"""What Delta's log says of a table, read on the driver without a Spark job: version, identifier, columns, commits.

`history` and `detail` of Delta's own interface say the same, each as a query of a quarter of a second or more; a night
asks some forty times. A platform whose Delta keeps its log elsewhere or names it otherwise is asked in that way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

_RECENT = 30


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    Attributes
    ----------
    version
        Its number.
    operation
        What it did, in Delta's words.
    note
        Its ``userMetadata``, if any.
    """

    version: int
    operation: str
    note: str | None


@dataclass(frozen=True)
class TableSnapshot:
    """The last version of a table as its log has it.

    Attributes
    ----------
    version
        Number of the last commit.
    identifier
        Delta's identifier of the table: another one where it was dropped and made anew.
    schema
        Its columns.
    """

    version: int
    identifier: str
    schema: StructType


def delta_log(spark: SparkSession, place: str, by_name: bool) -> Any | None:
    """Return the JVM's log of a table, None where this Delta does not give it or nothing is there.

    Parameters
    ----------
    spark
        Session.
    place
        Path of the table, or its quoted name.
    by_name
        Whether `place` is a name of a catalog.
    """
    jvm: Any = spark._jvm
    try:
        if by_name:
            return DeltaTable.forName(spark, place)._jdt.deltaLog()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place)
        # Delta remembers a log: of a table whose folder is gone it would go on telling what was.
        folder = log.logPath()
        return log if folder.getFileSystem(log.newDeltaHadoopConf()).exists(folder) else None
    except (Py4JError, TypeError, PySparkException):  # TypeError: a package where a class is looked for
        return None  # a catalog that lacks the table says so with an error; whoever reads it is told then


def snapshot_of(spark: SparkSession, log: Any) -> TableSnapshot | None:
    """Return the last version, after a look for newer commits; None where the log cannot tell."""
    none = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    try:
        found = log.update(False, none, none)
        version = int(found.version())
        if version < 0:
            return None
        metadata = found.metadata()
        return TableSnapshot(version, str(metadata.id()), StructType.fromJson(json.loads(found.schema().json())))
    except Py4JError:
        return None


def commits_of(spark: SparkSession, log: Any | None, table: DeltaTable, newest: int) -> Iterator[Commit]:
    """Yield the commits of a table, newest first, as far back as its log reaches.

    Each is read when it is asked for: the note somebody looks for is mostly in the last one.

    Parameters
    ----------
    spark
        Session.
    log
        From `delta_log`.
    table
        The table, asked where the log's files do not tell.
    newest
        Version to begin with.
    """
    version = newest
    while log is not None and version >= 0:
        commit = _commit(spark, log, version)
        if commit is None:
            break
        yield commit
        version -= 1
    if version < 0:
        return
    for limit in (_RECENT, None):
        rows = table.history() if limit is None else table.history(limit)
        for row in rows.select("version", "operation", "userMetadata").orderBy(F.desc("version")).collect():
            if row["version"] <= version:
                version = row["version"] - 1
                yield Commit(int(row["version"]), row["operation"], row["userMetadata"])


def _commit(spark: SparkSession, log: Any, version: int) -> Commit | None:
    """Read what a commit says of itself: one of the first lines of its file."""
    jvm: Any = spark._jvm
    try:
        path = jvm.org.apache.spark.sql.delta.util.FileNames.unsafeDeltaFile(log.logPath(), version)
        lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
    except (Py4JError, TypeError):
        return None
    try:
        while lines.hasNext():
            line = lines.next()
            if line.startswith('{"commitInfo"'):
                info = json.loads(line)["commitInfo"]
                return Commit(version, info.get("operation", ""), info.get("userMetadata"))
    except Py4JError:
        return None
    finally:
        lines.close()
    return None
