"""What a table is: its columns, the rules its rows obey, and how it is laid out.

Everything a reader of a table has to know is said here once. `Warehouse` creates the table from it, the test-suite
checks against it, and `docs/tables.md` is printed from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: Mapping[str, DataType] = {
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}

_WITHOUT_STATISTICS = {"binary", "boolean"}  # Delta refuses to collect a minimum and maximum of them

_LARGEST = "1.7976931348623157E308"

# A finite double, said without isnan(): in Spark NaN is equal to itself and greater than infinity, elsewhere it
# compares as false with everything, and both readings refuse it here. So do all rules below with an upper bound.
FINITE = "{c} BETWEEN -" + _LARGEST + " AND " + _LARGEST
NOT_NEGATIVE = "{c} BETWEEN 0 AND " + _LARGEST
POSITIVE = "{c} > 0 AND {c} <= " + _LARGEST
FRACTION = "{c} BETWEEN 0 AND 1"
CORRELATION = "{c} BETWEEN -1 AND 1"
COUNT = "{c} >= 0"
FROM_ONE = "{c} >= 1"
NOT_EMPTY = "{c} <> ''"

# Reader version 1 is what Power BI, DuckDB, Polars, Trino and delta-rs all read. Each feature that would raise it is
# refused by name, because a cluster may have switched it on for every new table.
BASE_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "none",
        "delta.enableTypeWidening": "false",
        "delta.checkpointPolicy": "classic",
        "delta.logRetentionDuration": "interval 30 days",
        "delta.deletedFileRetentionDuration": "interval 7 days",
    }
)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name
        The public name; changing it is a breaking change.
    kind
        One of binary, boolean, date, double, int, long, string, timestamp.
    comment
        Meaning, unit and sign convention, in one sentence.
    rule
        SQL condition on ``{c}`` that every value which is not null fulfils; doubles are at least finite.
    required
        The column is never null.
    statistics
        Whether Delta collects minimum and maximum per file (never of binary and boolean columns).
    """

    name: str
    kind: str
    comment: str
    rule: str | None = None
    required: bool = False
    statistics: bool = True

    def field(self) -> StructField:
        """The Spark field, with the comment in its metadata."""
        return StructField(self.name, _TYPES[self.kind], not self.required, {"comment": self.comment})

    def check(self) -> str | None:
        """The CHECK condition of this column, or None. A CHECK must be true, and null is not true."""
        rule = self.rule or (FINITE if self.kind == "double" else None)
        if rule is None:
            return None
        condition = rule.format(c=self.name)
        return condition if self.required else f"{self.name} IS NULL OR ({condition})"


@dataclass(frozen=True)
class TableSpec:
    """One Delta table.

    Attributes
    ----------
    name
        Name of the table, its folder in a path warehouse.
    comment
        What one row is, who writes it.
    columns
        The columns in their order.
    key
        The columns that identify a row (Delta does not enforce it, the one writer does).
    partition_by
        Partition columns; never a name given by a person, since it would become part of a path.
    row_checks
        CHECK conditions over several columns, by the name of the constraint.
    made_by
        The command that fills the table, for the message where it is missing.
    extra_properties
        Delta properties in addition to the common ones.
    """

    name: str
    comment: str
    columns: Sequence[Column]
    key: Sequence[str]
    made_by: str
    partition_by: Sequence[str] = ()
    row_checks: Mapping[str, str] = field(default_factory=dict)
    extra_properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> StructType:
        """Column names, types, nullability and comments."""
        return StructType([column.field() for column in self.columns])

    @property
    def column_names(self) -> list[str]:
        """Names in the order of the table."""
        return [column.name for column in self.columns]

    @property
    def checks(self) -> dict[str, str]:
        """All CHECK constraints, those of single columns named ``<column>_valid``."""
        single = {f"{c.name}_valid": check for c in self.columns if (check := c.check()) is not None}
        return {**single, **self.row_checks}

    @property
    def properties(self) -> dict[str, str]:
        """Delta table properties, without the constraints."""
        indexed = [
            c.name
            for c in self.columns
            if c.statistics and c.kind not in _WITHOUT_STATISTICS and c.name not in self.partition_by
        ]
        return {**BASE_PROPERTIES, "delta.dataSkippingStatsColumns": ",".join(indexed), **self.extra_properties}

    @property
    def deleted_file_hours(self) -> int:
        """How long files of earlier versions are kept at least, in hours."""
        days = re.fullmatch(r"interval (\d+) days", self.properties["delta.deletedFileRetentionDuration"])
        assert days is not None
        return 24 * int(days.group(1))


def one_of(*values: str) -> str:
    """The rule that a text is one of the given values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{{c}} IN ({listed})"
