"""What is packed: read from the notes that packing leaves with its commits.

Delta has no transaction over two tables. Each of `response_blocks` and `model_benchmarks` says in the `userMetadata` of
its last change which version of which `responses` it holds; a fit reads a pair of versions that say the same.

Two packings at once are kept apart by Delta's application transactions: a commit carries a number one above that of the
note it builds on, and Delta skips a commit whose number is not above the last one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from cbmm_spark.config.schema import PackConfig
from cbmm_spark.tables import Warehouse

TABLES = ("response_blocks", "model_benchmarks")
APPLICATION = "cbmm-spark pack"
LAYOUT = 2
"""Number of what the bytes and rows of both tables mean; another one packs anew."""

_UPKEEP = frozenset(
    {
        *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS", "CLUSTER BY", "UPGRADE PROTOCOL"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT"),
        *("ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS"),
    }
)
"""Operations that leave the rows as they are."""


@dataclass(frozen=True)
class Note:
    """What a commit of packing says.

    Attributes
    ----------
    responses_id
        Delta's identifier of the table `responses`: a table made anew counts its versions from 0 again.
    responses_version
        Its version.
    items_per_block, sparse_below, layout
        How it was packed.
    sequence
        Grows with every commit of packing.
    pack_id
        Identifies the packing.
    """

    responses_id: str
    responses_version: int
    items_per_block: int
    sparse_below: float
    sequence: int
    pack_id: str
    layout: int = LAYOUT

    def metadata(self) -> dict[str, Any]:
        """The note as commit metadata."""
        return {"step": "pack", **asdict(self)}


@dataclass(frozen=True)
class PackedVersion:
    """A version of a packed table and its note."""

    version: int
    note: Note


def packed(warehouse: Warehouse, name: str) -> PackedVersion | str:
    """Return what a table holds, or in words why that cannot be told."""
    if not warehouse.exists(name):
        return f"{name} is not there yet"
    for commit in warehouse.commits(name):
        if commit.operation in _UPKEEP:
            continue
        if commit.operation.startswith("CREATE TABLE"):
            return f"{name} is empty"
        note = _note(commit.note)
        if note is None:
            return f"the last change of {name} ({commit.operation}) does not say what is packed"
        return PackedVersion(commit.version, note)
    return f"the history of {name} no longer says what is packed"


def differs(note: Note, responses_id: str, version: int, config: PackConfig) -> str | None:
    """Return in words why a packed table cannot be continued, None if it can."""
    if note.layout != LAYOUT:
        return "it was packed by another version of cbmm-spark"
    if (note.items_per_block, note.sparse_below) != (config.items_per_block, config.sparse_below):
        return (
            f"[pack] was items_per_block = {note.items_per_block}, sparse_below = {note.sparse_below} "
            f"and is {config.items_per_block}, {config.sparse_below}"
        )
    if note.responses_id != responses_id or note.responses_version > version:
        return "responses is another table than the one that was packed"
    return None


def committed_version(warehouse: Warehouse, name: str, pack_id: str) -> int | None:
    """Return the version that a packing wrote, None where Delta skipped it for another packing's."""
    for commit in warehouse.commits(name):
        note = _note(commit.note)
        if note is not None and note.pack_id == pack_id:
            return commit.version
    return None


def _note(text: str | None) -> Note | None:
    try:
        found = json.loads(text or "")
        return Note(**{name: found[name] for name in Note.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None


__all__ = ["APPLICATION", "TABLES", "Note", "PackedVersion", "committed_version", "differs", "packed"]
