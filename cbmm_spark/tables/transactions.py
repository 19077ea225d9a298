"""Numbers that an application commits with, so that of two commits of one number Delta takes one."""

from __future__ import annotations

import itertools
import json

from cbmm_spark.tables.warehouse import Warehouse


def last_number(warehouse: Warehouse, name: str, application: str) -> int:
    """Return the last number that an application has committed to a table with, 0 where it has not.

    Parameters
    ----------
    warehouse, name
        The table; it must exist.
    application
        As given to `Warehouse.append`.
    """
    # The map that a snapshot keeps; asking the history would be a Spark job.
    snapshot = warehouse.delta(name)._jdt.deltaLog().unsafeVolatileSnapshot()
    found = snapshot.transactions().get(application)
    return int(found.get()) if found.isDefined() else 0


def was_committed(warehouse: Warehouse, name: str, key: str, value: str, commits: int = 20) -> bool:
    """Whether one of the last commits to a table has a value in its note."""
    last = itertools.islice(warehouse.commits(name), commits)
    return any(_note(commit.note).get(key) == value for commit in last)


def _note(text: str | None) -> dict[str, object]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
