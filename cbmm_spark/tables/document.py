"""`docs/tables.md`, printed from the specifications."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

from cbmm_spark.tables.inputs import INPUTS, INTERNAL
from cbmm_spark.tables.results import RESULTS
from cbmm_spark.tables.spec import BASE_PROPERTIES, TableSpec

_WIDTH = 120

_INTRODUCTION = """\
# Tables

Printed from the specifications by `python -m cbmm_spark.tables > docs/tables.md`; do not edit.

Every table is a Delta table with reader version 1: no deletion vectors, no column mapping, no type widening. Timestamps
are UTC. A null means "has no value"; no NaN and no infinity can be written. The conditions below are CHECK constraints
that Delta enforces on every write; "required" columns are NOT NULL. Delta does not enforce keys, the one writer of each
table does.

Read `abilities` and `item_parameters` joined on `run_id` with the rows of `runs` whose status is `published`, or read
`latest_abilities` and `latest_item_parameters`, which hold the last published run alone.
"""


def document() -> str:
    """The whole page as Markdown, ending with a newline."""
    parts = [_INTRODUCTION]
    for title, specs in (("Inputs", INPUTS), ("Results", RESULTS), ("Internal", INTERNAL)):
        parts += [f"## {title}\n", *(_table(spec) for spec in specs)]
    return "\n".join(parts)


def _table(spec: TableSpec) -> str:
    lines = [f"### {spec.name}", "", fill(spec.comment, _WIDTH, break_on_hyphens=False), "", f"Key: {_code(spec.key)}."]
    if spec.partition_by:
        lines[-1] += f" Partitioned by {_code(spec.partition_by)}."
    lines += ["", "| column | type | required | meaning | condition |", "|---|---|---|---|---|"]
    for column in spec.columns:
        condition = "" if column.rule is None else f"`{_cell(column.rule.format(c=column.name))}`"
        required = "yes" if column.required else ""
        kind = column.field().dataType.simpleString()
        lines.append(f"| {column.name} | {kind} | {required} | {_cell(column.comment)} | {condition} |")
    if spec.row_checks:
        lines += ["", "Conditions on rows:", ""]
        lines += [f"- {name}: `{condition}`" for name, condition in spec.row_checks.items()]
    own = {key: value for key, value in spec.extra_properties.items() if BASE_PROPERTIES.get(key) != value}
    if own:
        lines += ["", "Properties:", "", *(f"- `{key}` = `{value}`" for key, value in own.items())]
    return "\n".join(lines) + "\n"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
