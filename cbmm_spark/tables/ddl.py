"""The statement that creates a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cbmm_spark.tables.spec import Column, TableSpec


def create_statement(spec: TableSpec, sql_name: str) -> str:
    """SQL that creates a table if it is not there, with everything its specification says, in one commit.

    SQL, because Delta's table builder takes no name of three parts and no path with a backtick. The constraints are
    given as properties, so that the table never exists without them.

    Parameters
    ----------
    spec
        The table.
    sql_name
        Its quoted name, ``delta.`path` `` or ``catalog.schema.name``.
    """
    columns = ",\n  ".join(_column(column) for column in spec.columns)
    constraints = {f"delta.constraints.{name}": condition for name, condition in spec.checks.items()}
    properties = ",\n  ".join(f"{literal(k)} = {literal(v)}" for k, v in {**spec.properties, **constraints}.items())
    partitioning = f"PARTITIONED BY ({', '.join(spec.partition_by)})\n" if spec.partition_by else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {sql_name} (\n  {columns}\n)\nUSING DELTA\n{partitioning}"
        f"COMMENT {literal(spec.comment)}\nTBLPROPERTIES (\n  {properties}\n)"
    )


def add_columns_statement(columns: Sequence[Column], sql_name: str) -> str:
    """SQL that adds columns to a table, in one commit.

    Parameters
    ----------
    columns
        Columns that may be null.
    sql_name
        The table's quoted name.
    """
    return f"ALTER TABLE {sql_name} ADD COLUMNS ({', '.join(_column(column) for column in columns)})"


def after_adding_statements(spec: TableSpec, columns: Sequence[Column], sql_name: str) -> Iterator[str]:
    """SQL, each a commit, that gives added columns their statistics and constraints."""
    statistics = "delta.dataSkippingStatsColumns"
    yield f"ALTER TABLE {sql_name} SET TBLPROPERTIES ({literal(statistics)} = {literal(spec.properties[statistics])})"
    for column in columns:
        condition = column.check()
        if condition is not None:
            yield f"ALTER TABLE {sql_name} ADD CONSTRAINT {column.name}_valid CHECK ({condition})"


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _column(column: Column) -> str:
    required = " NOT NULL" if column.required else ""
    kind = column.field().dataType.simpleString()
    return f"{column.name} {kind}{required} COMMENT {literal(column.comment)}"
