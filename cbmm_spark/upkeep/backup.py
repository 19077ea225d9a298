"""A consistent copy of a warehouse, which is a warehouse itself: what is read from it needs no restoring.

Delta has no transaction over several tables. The copy is consistent all the same, because of the order in which the
versions to copy are pinned: `runs` before the results (a published run has all its rows in every later version), and
`responses` before the numbers of models and items (a number is given before the first row that uses it). A run that
is published meanwhile may remove the rows of the one it replaces: where `runs` has moved on by then, all is pinned
anew. VACUUM leaves what was current within its retention.

Restoring is the same in the other direction: `cbmm-spark maintain --only backup --warehouse BACKUP --backup WAREHOUSE`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cbmm_spark.errors import ConfigError, ConflictError, InputError
from cbmm_spark.tables import SPECS, Warehouse

PACKED = ("model_benchmarks", "response_blocks")
"""Not copied: the next night makes them from `responses`."""

COPIED = (
    *("responses", "quarantine", "runs", "run_scales", "run_iterations", "run_abilities", "abilities"),
    *("item_parameters", "latest_abilities", "latest_item_parameters", "models", "items", "ingests"),
)
"""In the order in which they are pinned."""

_PIN_ATTEMPTS = 5


@dataclass(frozen=True)
class BackupReport:
    """What was copied.

    Attributes
    ----------
    source, target
        Roots of the two warehouses.
    versions
        The version copied, by table.
    rows
        Rows copied, by table.
    missing
        Tables that the source does not have.
    """

    source: str
    target: str
    versions: Mapping[str, int]
    rows: Mapping[str, int]
    missing: tuple[str, ...]


def backup(
    source: Warehouse, target: Warehouse, tables: Collection[str] = COPIED, dry_run: bool = False
) -> BackupReport:
    """Copy tables of one warehouse to another place.

    Parameters
    ----------
    source
        Where they are; jobs may be at work there.
    target
        Where none of them is yet.
    tables
        Which ones, all by default.
    dry_run
        Only pin, check and count.

    Returns
    -------
    BackupReport

    Raises
    ------
    InputError
        One of the tables is there already, or the source has none of them, or a copy has another number of rows.
    ConflictError
        `runs` never stood still for long enough to pin the versions.
    """
    names = [name for name in COPIED if name in tables]
    check_target(source, target, names)
    versions = _pinned(source, names)
    if not versions:
        raise InputError(f"there is nothing to copy: {source.root} has none of {', '.join(names)}")
    missing = tuple(name for name in names if name not in versions)
    rows = {name: _count(source, name, version) for name, version in versions.items()}
    if not dry_run:
        # Nothing can be seen of results without `runs`, so a copy that was killed does not pass for a whole one.
        for name in sorted(versions, key=lambda name: name == "runs"):
            copied = _copy(source, target, name, versions[name])
            if copied != rows[name]:
                raise InputError(
                    f"{target.location(name)} has {copied:,} rows, version {versions[name]} of "
                    f"{source.location(name)} has {rows[name]:,}: remove the copy and make another one"
                )
    return BackupReport(source.root, target.root, versions, rows, missing)


def check_target(source: Warehouse, target: Warehouse, names: Collection[str]) -> None:
    """See that a copy can be made.

    Raises
    ------
    InputError
        The target is the source, has one of the tables, or blocks that were packed from other responses.
    """
    if source.root == target.root:
        raise InputError(f"{target.root} is the warehouse itself: give another place for its copy")
    there = [name for name in names if target.look(name) is not None]
    if there:
        raise InputError(
            f"{target.root} has {', '.join(there)} already: give a new place, or when restoring remove what is to be "
            "replaced, or leave it out with --tables"
        )
    stale = [name for name in PACKED if target.look(name) is not None] if "responses" in names else []
    if stale:
        raise InputError(
            f"{target.root} has {' and '.join(stale)}, packed from other responses: remove them, the next night makes "
            "them again"
        )


def _pinned(source: Warehouse, names: Collection[str]) -> dict[str, int]:
    for _ in range(_PIN_ATTEMPTS):
        sizes = {name: source.size(name) for name in names}
        versions = {name: size["version"] for name, size in sizes.items() if size is not None}
        if "runs" not in versions or source.version("runs") == versions["runs"]:
            return versions
    raise ConflictError(f"runs keep starting or ending in {source.root}: make the backup when none does")


def _count(warehouse: Warehouse, name: str, version: int | None) -> int:
    rows = warehouse.look(name, version)
    assert rows is not None
    return rows.count()  # Delta answers from its log


def _copy(source: Warehouse, target: Warehouse, name: str, version: int) -> int:
    rows = source.look(name, version)
    assert rows is not None
    target.ensure(name)
    # Not shuffled: files keep their rows and order, and there are no more of them than before.
    target.append(rows, name, {"step": "backup", "source": source.location(name), "source_version": version})
    return _count(target, name, None)


def check_tables(names: Collection[str]) -> None:
    """See that tables can be copied by name.

    Raises
    ------
    ConfigError
        One cannot.
    """
    unknown = [name for name in names if name not in COPIED]
    if unknown:
        packed = [name for name in unknown if name in SPECS]
        why = "is made again by the next night" if packed == unknown else "is no table of a warehouse"
        raise ConfigError(f"{', '.join(unknown)} {why}; tables to copy: {', '.join(COPIED)}")
