"""What a location names: a folder or file on a local disk, a URI, a table of a catalog, or a schema of one.

One grammar of names for inputs and for warehouses.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cbmm_spark.errors import ConfigError

_PART = r"[^\s./\\:`]+"
_CATALOG = re.compile(rf"{_PART}\.{_PART}")
_TABLE = re.compile(rf"{_PART}\.{_PART}\.({_PART})")
_DOTTED = re.compile(rf"{_PART}(\.{_PART}){{2,}}")
_FILE_ENDINGS = frozenset(
    ("csv", "tsv", "tab", "txt", "json", "jsonl", "ndjson", "parquet", "pq", "gz", "bz2", "zst", "eval", "log")
)

PATTERN = frozenset("*?[{")
"""Signs that make a location a pattern of file names."""

AS_IN_A_NAME = "; brackets, braces, * and ? are a pattern, write \\ before those that belong to a name"


def hint_on_names(location: str) -> str:
    """What to add to a message that nothing is behind a location: how to write names that look like patterns."""
    return AS_IN_A_NAME if PATTERN.intersection(location) else ""


def is_there(path: Path) -> bool:
    """Whether a file or folder has this name; a name that no file can have, for it is too long, is not there."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def local_path(location: str) -> Path | None:
    """The path behind a location on a local disk, None where it is a URI of another scheme."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if "://" in location or (len(parts.scheme) > 1 and parts.path.startswith("/")):
        return None
    return Path(location)


def absolute(location: str) -> str:
    """A location that means the same from any working folder: local paths are made absolute."""
    path = None if table_name(location) is not None else local_path(location)
    return location if path is None or path.is_absolute() else str(path.absolute())


def table_name(location: str) -> str | None:
    """The name of the catalog's table that an input is, None where it is a path.

    `table:NAME` is always a table, `catalog.schema.table` is one unless a file has that name, it ends as files do, or
    it is a pattern. The three names may hold what the two names of a warehouse may.
    """
    prefix = "table:"
    if location.startswith(prefix) and location != prefix:
        return location.removeprefix(prefix)
    parts = None if PATTERN.intersection(location) else _TABLE.fullmatch(location)
    if parts is None or parts.group(1).lower() in _FILE_ENDINGS or is_there(Path(location)):
        return None
    return location


def warehouse_path(warehouse: str) -> Path | None:
    """The folder of a warehouse on a local disk, None where it is elsewhere or a `catalog.schema`.

    Raises
    ------
    ConfigError
        As `Address.parse`.
    """
    return None if Address.parse(warehouse).catalog else local_path(warehouse)


def check_writable(warehouse: str) -> None:
    """See that a warehouse on a local disk can be created or written.

    Raises
    ------
    ConfigError
        Its nearest existing parent is not a folder or not writable, or the name is none for a warehouse.
    """
    path = warehouse_path(warehouse)
    if path is None:
        return
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if is_there(parent))
    if not existing.is_dir():
        raise ConfigError(f"the warehouse {warehouse} cannot be used: {existing} is not a folder; name another one")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"the warehouse {warehouse} cannot be written: no permission to write to {existing}")


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Address:
    """The place of a warehouse.

    Attributes
    ----------
    root
        Folder, URI, or ``catalog.schema``.
    catalog
        Whether `root` names a schema of a catalog.
    """

    root: str
    catalog: bool

    @classmethod
    def parse(cls, root: str) -> Address:
        """Tell a catalog schema (two names joined by a dot) from a path (anything with a slash, a scheme, or no dot).

        Raises
        ------
        ConfigError
            The root is empty or has more than two names.
        """
        text = root.strip()
        if not text:
            raise ConfigError("warehouse is empty: give a folder, a URI, or catalog.schema")
        if _CATALOG.fullmatch(text) and not text.startswith("."):
            return cls(text, catalog=True)
        if _DOTTED.fullmatch(text):
            raise ConfigError(f"warehouse {text!r} is no catalog.schema (two names); write ./{text} if it is a folder")
        return cls(_without_trailing_slash(root), catalog=False)

    @property
    def schema_sql(self) -> str:
        """The catalog schema as SQL identifiers; for a catalog address only."""
        return ".".join(quoted(part) for part in self.root.split("."))

    def location(self, name: str) -> str:
        """Path or full name of a table, as a person types it."""
        return f"{self.root}.{name}" if self.catalog else f"{self.root}/{name}"

    def sql_name(self, name: str) -> str:
        """The table as it is named in SQL."""
        return f"{self.schema_sql}.{quoted(name)}" if self.catalog else f"delta.{quoted(self.location(name))}"


def _without_trailing_slash(path: str) -> str:
    stripped = path.rstrip("/")
    return stripped if stripped and not stripped.endswith(":") else path
