"""New tables of tests as copies of ones that Delta created.

Creating a table is a commit of Delta and takes about a second; tests make hundreds of them, always the same. The first
time in a process the package creates the table; from then on its folder is copied, with an identifier and a note of its
own, as if it had been created. Tests of creation itself say `set_aside`.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cbmm_spark.tables import TableSpec, Warehouse
from cbmm_spark.tables.warehouse import commit_note

_FIRST = "00000000000000000000.json"


class TableCopies:
    """Tables created once, by specification.

    Parameters
    ----------
    folder
        Where the tables that are copied are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._create = Warehouse._create
        self._made: dict[str, TableSpec] = {}

    @contextmanager
    def in_use(self) -> Iterator[TableCopies]:
        """Let tables be copies inside."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Warehouse, "_create", lambda warehouse, spec: self.create(warehouse, spec))
            yield self

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let Delta create every table inside."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Warehouse, "_create", self._create)
            yield

    def create(self, warehouse: Warehouse, spec: TableSpec) -> None:
        """Stand in for `Warehouse._create`."""
        place = Path(warehouse.location(spec.name))
        if warehouse._address.catalog or place.exists() or "://" in warehouse.root:
            self._create(warehouse, spec)
            return
        if self._made.setdefault(spec.name, spec) != spec:  # one as an earlier version of the package made it
            self._create(warehouse, spec)
            return
        source = self._folder / spec.name
        if not source.exists():
            self._create(Warehouse(warehouse.spark, str(self._folder)), spec)
        # Checksums are of the bytes of the source: Delta and Hadoop do without.
        log = shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.crc")) / "_delta_log" / _FIRST
        log.write_text(_renamed(log.read_text(encoding="utf-8")), encoding="utf-8")


def _renamed(log: str) -> str:
    """The first commit of a table with another identifier, made by the command that runs now."""
    actions = [json.loads(line) for line in log.splitlines()]
    seen = set()
    for action in actions:
        for kind, fields in action.items():
            seen.add(kind)
            if kind == "metaData":
                fields["id"] = str(uuid.uuid4())
            elif kind == "commitInfo":
                fields |= {"userMetadata": commit_note({"step": "create"}), "txnId": str(uuid.uuid4())}
    assert {"metaData", "commitInfo"} <= seen, seen
    return "".join(json.dumps(action) + "\n" for action in actions)
