"""Creating, reading and writing the tables of one warehouse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.locations import Address
from cbmm_spark.spark.scoped import session_settings
from cbmm_spark.tables.catalogue import SPECS
from cbmm_spark.tables.ddl import add_columns_statement, after_adding_statements, create_statement
from cbmm_spark.tables.provenance import current_provenance
from cbmm_spark.tables.retry import CONFLICTS, with_commit_retry
from cbmm_spark.tables.snapshot import Commit, TableSnapshot, commits_of, delta_log, snapshot_of
from cbmm_spark.tables.spec import Column as ColumnSpec
from cbmm_spark.tables.spec import TableSpec

_NOTHING_THERE = {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"}
_NOTE_SETTING = "spark.databricks.delta.commitInfo.userMetadata"
_LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_NO_CATALOG = {"CATALOG_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE"}
_NOT_DELTA = {"DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_ONLY_OPERATION"}

_VIOLATED = re.compile(
    r"DELTA_(?:VIOLATE_CONSTRAINT_WITH_VALUES|NOT_NULL_CONSTRAINT_VIOLATED)\] (.*?)(?: SQLSTATE|\n\tat |\Z)", re.DOTALL
)


MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""How times are written: Spark's own default holds nanoseconds, which for other readers end in 2262."""


class Warehouse:
    """The tables under one root.

    Parameters
    ----------
    spark
        A session with Delta's extension and catalog.
    root
        Folder or URI, or ``catalog.schema`` (two names, no slash, no scheme).

    Raises
    ------
    ConfigError
        `root` is neither.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self._address = Address.parse(root)
        self._kept: dict[tuple[str, str], tuple[int, str, pa.Table]] = {}

    @property
    def root(self) -> str:
        """The root as given, without a trailing slash."""
        return self._address.root

    def location(self, name: str) -> str:
        """Where a table is, to print for a person."""
        return self._address.location(_spec(name).name)

    def sql_name(self, name: str) -> str:
        """The table as named in SQL, quoted."""
        return self._address.sql_name(_spec(name).name)

    def exists(self, name: str) -> bool:
        """Whether a table is there.

        A column that may be null does not have to be there: `ensure` adds it, and `read` shows it as null.

        Raises
        ------
        InputError
            Something else is in its place, or a required column is missing, or one is of another type.
        """
        found = self._found_schema(name)
        if found is None:
            return False
        self._check_schema(found, name, "is", may_lack_nullable=True)
        return True

    def ensure(self, *names: str) -> None:
        """Create the tables that are missing, each in one commit with its comments, constraints and properties.

        A table made by an earlier version is given the columns it lacks, in one commit; their values are null. Two jobs
        may do either at the same time; it is done once.

        Raises
        ------
        InputError
            As `exists`.
        ConflictError
            Others keep creating or altering the table.
        """
        found = {name: self._found_schema(name) for name in names}
        for name, schema in found.items():
            if schema is not None:
                self._check_schema(schema, name, "is", may_lack_nullable=True)
                if self._lacking(schema, name):
                    with_commit_retry(partial(self._add_columns, SPECS[name]), self.location(name))
        missing = [name for name, schema in found.items() if schema is None]
        if missing and self._address.catalog and not self.spark.catalog.databaseExists(self._address.schema_sql):
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self._address.schema_sql}")
        for name in missing:
            with_commit_retry(partial(self._create, SPECS[name]), self.location(name))

    def delta(self, name: str) -> DeltaTable:
        """The table for MERGE, UPDATE and DELETE.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        """
        self._require(name)
        return self._delta(name)

    def _delta(self, name: str) -> DeltaTable:
        if self._address.catalog:
            return DeltaTable.forName(self.spark, self.sql_name(name))
        return DeltaTable.forPath(self.spark, self.location(name))

    def version(self, name: str) -> int:
        """The number of the last commit.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        """
        return self.snapshot(name).version

    def snapshot(self, name: str) -> TableSnapshot:
        """Version, identifier and columns of the last commit.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        """
        found = self._looked_up(name)
        if found is not None:
            self._check_schema(found.schema, name, "is", may_lack_nullable=True)
            return found
        table = self.delta(name)
        newest, detail = table.history(1).select("version").first(), table.detail().select("id").first()
        if newest is None or detail is None:
            raise InputError(f"{self.location(name)} has no history; restore its _delta_log folder")
        return TableSnapshot(int(newest["version"]), str(detail["id"]), table.toDF().schema)

    def commits(self, name: str) -> Iterator[Commit]:
        """Commits of a table, newest first, each read when it is asked for.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        """
        newest = self.snapshot(name).version
        return commits_of(self.spark, self._log(name), self._delta(name), newest)

    def rows(self, name: str, *columns: str) -> pa.Table:
        """Columns of a small table as Arrow, read once for each of its versions.

        Whether there is a newer version is asked of Delta's log each time, so that what others commit is seen as by
        `read`; the rows are read again only where there is one.

        Parameters
        ----------
        name
            A table of as many rows as runs or scales of runs, never of models, items or responses.
        columns
            Names or SQL expressions.

        Raises
        ------
        InputError
            As `read`.
        """
        key = (name, ", ".join(columns))
        before = self.snapshot(name)
        kept = self._kept.get(key)
        if kept is not None and kept[:2] == (before.version, before.identifier):
            return kept[2]
        found = self.read(name).selectExpr(*columns).toArrow()
        # Rows that somebody commits to during the reading may be those of a later version: read, and not kept.
        if self.snapshot(name) == before:
            self._kept[key] = (before.version, before.identifier, found)
        return found

    def _log(self, name: str) -> Any | None:
        place = self.sql_name(name) if self._address.catalog else self.location(name)
        return delta_log(self.spark, place, self._address.catalog)

    def _looked_up(self, name: str) -> TableSnapshot | None:
        """What the log says of the table; None where it does not tell or nothing is there."""
        log = self._log(_spec(name).name)
        return None if log is None else snapshot_of(self.spark, log)

    def read(self, name: str, version: int | None = None) -> DataFrame:
        """A table, in its last or a given version.

        Raises
        ------
        InputError
            As `exists`, or the table or the version is missing.
        """
        try:
            loaded = self._load(name, version) if version is not None or self._looked_up(name) is not None else None
            if loaded is None:  # missing, or something else: said in words
                self._require(name)
                loaded = self._load(name)
            self._check_schema(loaded.schema, name, "is", may_lack_nullable=True)
            lacking = self._lacking(loaded.schema, name)
            nulls = {c.name: F.lit(None).cast(c.field().dataType) for c in lacking}
            return loaded.withColumns(nulls) if nulls else loaded
        except PySparkException as error:
            if version is None:
                raise
            self._require(name)
            raise InputError(f"{self.location(name)} has no version {version}, or VACUUM removed its files") from error

    def look(self, name: str, version: int | None = None) -> DataFrame | None:
        """A table as it is, None where it is missing; for who only looks, also at a warehouse of an earlier version.

        Nothing is written or refused: columns that it lacks are null, those that are not known are left out.

        Raises
        ------
        InputError
            Something that is not a Delta table is in its place.
        """
        found = self._found_schema(name)
        if found is None:
            return None
        here = {field.name for field in found.fields}
        frame = self._load(name, version)
        columns = [
            F.col(field.name) if field.name in here else F.lit(None).cast(field.dataType).alias(field.name)
            for field in SPECS[name].schema.fields
        ]
        return frame.select(*columns)

    def size(self, name: str) -> dict[str, int] | None:
        """Version of the last commit, number of files and of bytes of it; None where the table is missing.

        Raises
        ------
        InputError
            Something that is not a Delta table is in its place.
        """
        if self._found_schema(name) is None:
            return None
        table = self._delta(name)
        detail = table.detail().select("numFiles", "sizeInBytes").head()
        assert detail is not None
        known = self._looked_up(name)  # not `version`, which refuses a table of an earlier version
        newest = None if known is not None else table.history(1).select("version").first()
        version = known.version if known is not None else newest["version"] if newest is not None else None
        return {"version": version, "files": detail["numFiles"], "bytes": detail["sizeInBytes"]}

    def compact(self, name: str, metadata: Mapping[str, Any]) -> tuple[int, int]:
        """Put small files together (OPTIMIZE), in one commit that changes no row; none where nothing is small.

        Returns
        -------
        tuple
            Files removed and files added.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        ConflictError
            Others keep rewriting the same files; nothing was changed.
        """

        def commit() -> tuple[int, int]:
            row = self.delta(name).optimize().executeCompaction().select("metrics").head()
            assert row is not None
            return row["metrics"]["numFilesRemoved"], row["metrics"]["numFilesAdded"]

        with self.noted(metadata):
            return with_commit_retry(commit, self.location(name))

    def vacuum(self, name: str, hours: int, dry_run: bool = False) -> int | None:
        """Remove files that no version of the last `hours` needs.

        Parameters
        ----------
        name
            The table.
        hours
            Retention, at least the 168 that Delta insists on; where the table is to keep more, that holds.
        dry_run
            Only look for them.

        Returns
        -------
        int or None
            In a dry run: how many such files were found. None otherwise.
        """
        kept = max(hours, SPECS[name].deleted_file_hours)
        with session_settings(self.spark, {_LISTING: str(_listing_tasks(self.spark))}):
            found = self.spark.sql(f"VACUUM {self.sql_name(name)} RETAIN {kept} HOURS{' DRY RUN' if dry_run else ''}")
            # Delta lists folders too, those that stay because of what is in them among them.
            return found.where(F.col("path").rlike(r"[.][^./=]+$")).count() if dry_run else None

    def identifier(self, name: str) -> str:
        """Delta's identifier of the table: another one where it was dropped and made anew.

        Raises
        ------
        InputError
            As `exists`, or the table is missing.
        """
        return self.snapshot(name).identifier

    def changes(self, name: str, first: int, last: int) -> DataFrame:
        """The rows that commits changed, as Delta's change data feed has them.

        Parameters
        ----------
        name
            The table.
        first, last
            Versions whose commits count.

        Raises
        ------
        InputError
            As `exists`, or the table is missing, or it has no feed. What else is missing, versions or files, shows only
            when the frame is computed.
        """
        self._require(name)
        options = {"readChangeFeed": "true", "startingVersion": str(first), "endingVersion": str(last)}
        reader = self.spark.read.format("delta").options(**options)
        try:
            frame = reader.table(self.sql_name(name)) if self._address.catalog else reader.load(self.location(name))
            return frame.select("*")
        except (PySparkException, Py4JJavaError) as error:
            raise InputError(f"{self.location(name)} has no change data feed: {first_line(error)}") from error

    def append(
        self,
        df: DataFrame,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        unless: tuple[str, int] | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        df
            The columns of the table by name, in any order, of exactly its types: nothing is cast silently.
        name
            The table.
        metadata
            Said about the commit in its ``userMetadata``, as JSON.
        unless
            As in `overwrite`.

        Raises
        ------
        InputError
            As `exists`, or `df` lacks a column, has one too many or one of another type, or a row breaks a constraint.
        ConflictError
            Others keep committing first.
        """
        self._write(df, name, metadata, lambda writer: writer.append(), unless)

    def replace(
        self,
        df: DataFrame,
        name: str,
        where: str | Column,
        metadata: Mapping[str, Any] | None = None,
        unless: tuple[str, int] | None = None,
    ) -> None:
        """Replace the rows that fulfil a condition, in one commit; a row of `df` outside of it fails the write.

        Parameters are those of `append` and `overwrite`, and `where`, a condition on columns of the table. Repeating it
        changes nothing.

        Raises
        ------
        InputError
            As `append`, or a row of `df` does not fulfil `where`.
        ConflictError
            Others keep committing first.
        """
        try:
            condition = F.expr(where) if isinstance(where, str) else where
            self._write(df, name, metadata, lambda writer: writer.overwrite(condition), unless)
        except PySparkException as error:
            if error.getCondition() != "DELTA_REPLACE_WHERE_MISMATCH":
                raise
            raise InputError(
                f"rows outside of {str(where)!r} were to be written to {self.location(name)}; nothing written"
            ) from error

    def overwrite(
        self,
        df: DataFrame,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        unless: tuple[str, int] | None = None,
    ) -> None:
        """Replace all rows in one commit; parameters and errors are those of `append`.

        With `unless`, an application and its number, Delta skips the commit without a word if the application has
        committed with that number or a higher one before; and a conflict is not tried again here, but raised as Delta
        raises it: the caller begins anew with another number (`with_commit_retry` around the whole).
        """
        self._write(df, name, metadata, lambda writer: writer.overwrite(F.lit(True)), unless)

    @contextmanager
    def noted(self, metadata: Mapping[str, Any]) -> Iterator[None]:
        """Give the commits made inside (MERGE, UPDATE, DELETE of `delta`) their ``userMetadata``."""
        with session_settings(self.spark, {_NOTE_SETTING: commit_note(metadata), **MICROSECONDS}):
            yield

    def _write(
        self,
        df: DataFrame,
        name: str,
        metadata: Mapping[str, Any] | None,
        commit: Callable[[DataFrameWriterV2], None],
        unless: tuple[str, int] | None = None,
    ) -> None:
        self._require(name)
        self._check_schema(df.schema, name, "the rows to write to", extra_is_wrong=True)
        ordered = df.select(*SPECS[name].column_names)
        options = {"userMetadata": commit_note(metadata)}
        if unless is not None:
            options |= {"txnAppId": unless[0], "txnVersion": str(unless[1])}
        try:
            with session_settings(self.spark, MICROSECONDS):
                writer = partial(ordered.writeTo, self.sql_name(name))
                if unless is not None:  # a step of a larger whole, which its caller begins anew after a conflict
                    commit(writer().options(**options))
                else:
                    with_commit_retry(lambda: commit(writer().options(**options)), self.location(name))
        except Py4JJavaError as error:  # Delta's own exceptions are not all known to PySpark
            violated = _VIOLATED.search(str(error))
            if violated is None:
                raise
            rule = " ".join(violated.group(1).split())
            raise InputError(f"a row is not as {self.location(name)} wants it, nothing written: {rule}") from error

    def _require(self, name: str) -> None:
        if not self.exists(name):
            raise InputError(f"there is no table {self.location(name)}; `{SPECS[name].made_by}` makes it")

    def _load(self, name: str, version: int | None = None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self.sql_name(name)) if self._address.catalog else reader.load(self.location(name))

    def _found_schema(self, name: str) -> StructType | None:
        """The schema of the Delta table, None where nothing is."""
        known = self._looked_up(name)
        if known is not None:
            return known.schema
        try:
            if self._address.catalog:
                if not self.spark.catalog.tableExists(self.sql_name(name)):
                    return None
                return DeltaTable.forName(self.spark, self.sql_name(name)).toDF().schema
            return self._load(name).schema
        except (PySparkException, Py4JJavaError) as error:
            condition = error.getCondition() or "" if isinstance(error, PySparkException) else ""
            if condition in _NO_CATALOG:
                raise ConfigError(
                    f"warehouse {self.root!r}: the session has no such catalog; set spark.sql.catalog.<name>, "
                    "or write ./ before the name if it is a folder"
                ) from error
            if condition in _NOTHING_THERE or (condition in _NOT_DELTA and self._is_empty_folder(name)):
                return None
            if condition in _NOT_DELTA:
                raise InputError(
                    f"{self.location(name)} is not a Delta table; move it away or choose another warehouse"
                ) from error
            raise InputError(f"{self.location(name)} cannot be read as a Delta table: {first_line(error)}") from error

    def _is_empty_folder(self, name: str) -> bool:
        """Whether the place of a path table holds no file, so that the table may be created there."""
        if self._address.catalog:
            return False
        escaped = "".join("\\" + c if c in "\\*?[]{}" else c for c in self.location(name))
        return not self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(escaped).inputFiles()

    def _lacking(self, found: StructType, name: str) -> list[ColumnSpec]:
        """The columns of the specification that a table made by an earlier version does not have and may do without."""
        return [column for column in SPECS[name].columns if not column.required and column.name not in found.names]

    def _check_schema(
        self,
        found: StructType,
        name: str,
        subject: str,
        extra_is_wrong: bool = False,
        may_lack_nullable: bool = False,
    ) -> None:
        types = {field.name: field.dataType for field in found.fields}
        wanted = {field.name: field.dataType for field in SPECS[name].schema.fields}
        spared = {column.name for column in self._lacking(found, name)} if may_lack_nullable else set()
        place = self.location(name)
        where = f"{place} {subject}" if subject == "is" else f"{subject} {place}"
        for column, kind in wanted.items():
            if column in spared:
                continue
            if column not in types:
                prefix = f"{place} lacks" if subject == "is" else f"{where} lack"
                raise InputError(f"{prefix} the column {column} ({kind.simpleString()})")
            if types[column] != kind:
                owner = place if subject == "is" else where
                raise InputError(
                    f"{owner}: column {column} should be {kind.simpleString()}, found {types[column].simpleString()}"
                )
        if extra_is_wrong and (extra := [column for column in types if column not in wanted]):
            raise InputError(f"{where} have columns that the table lacks: {', '.join(extra)}")

    def _add_columns(self, spec: TableSpec) -> None:
        """Add the columns that are still lacking, then what is said about them beside their type.

        The statistics and the constraints are commits of their own. A kill between them costs checks that the one
        writer of the table passes anyway.
        """
        schema = self._found_schema(spec.name)
        lacking = [] if schema is None else self._lacking(schema, spec.name)
        if not lacking:
            return
        sql_name = self.sql_name(spec.name)
        try:
            self.spark.sql(add_columns_statement(lacking, sql_name))
        except CONFLICTS:
            raise
        except PySparkException:
            schema = self._found_schema(spec.name)
            if schema is None or self._lacking(schema, spec.name):
                raise
            return  # the other of two jobs at once has added them, and says the rest
        for statement in after_adding_statements(spec, lacking, sql_name):
            with_commit_retry(partial(self.spark.sql, statement), self.location(spec.name))

    def _create(self, spec: TableSpec) -> None:
        statement = create_statement(spec, self.sql_name(spec.name))
        try:
            with self.noted({"step": "create"}):
                self.spark.sql(statement)
        except CONFLICTS:
            raise
        except PySparkException:
            # The other of two jobs that create it at once may win in a way that Delta does not report as a conflict.
            if self._found_schema(spec.name) is None:
                raise


def commit_note(metadata: Mapping[str, Any] | None) -> str:
    """The ``userMetadata`` of a commit: JSON with sorted keys, the `provenance` of the command included."""
    told = {**current_provenance(), **(metadata or {})}
    return json.dumps(told, sort_keys=True, default=str, ensure_ascii=False)


def lacks_files(error: Exception) -> bool:
    """Whether a query failed because a data file is gone, as after VACUUM."""
    if isinstance(error, PySparkException) and "FILE_NOT_EXIST" in (error.getCondition() or ""):
        return True
    return isinstance(error, PySparkException | Py4JJavaError) and "FileNotFoundException" in str(error)


def _listing_tasks(spark: SparkSession) -> int:
    """How many tasks VACUUM lists a table's folders with: a few a core, or what is set if that is less.

    Spark's default, 10,000, is for listing as many folders. Delta makes that many tasks whatever there is to list, for
    all tables that takes minutes on two cores; a table here has a folder a bucket at most.
    """
    allowed = spark.conf.get(_LISTING)  # Spark's default where nothing is set
    assert allowed is not None
    return min(int(allowed), max(8, 4 * spark.sparkContext.defaultParallelism))


def first_line(error: Exception) -> str:
    """The first telling line of a Spark error, without its SQLSTATE."""
    message = None
    if isinstance(error, PySparkException):
        with suppress(Py4JJavaError):  # PySpark does not find the texts of all of Delta's conditions
            message = error.getMessage()
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or error.java_exception.getClass().getName())
    lines = [line.strip() for line in (message or str(error)).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].split(" SQLSTATE:")[0]


def _spec(name: str) -> TableSpec:
    if name not in SPECS:
        raise KeyError(f"no table is called {name!r}; there are {', '.join(SPECS)}")
    return SPECS[name]
