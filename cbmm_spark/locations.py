"""Where the tables of a warehouse are: a folder or URI by path, or a schema of a catalog."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cbmm_spark.errors import ConfigError

_PART = r"[^\s./\\:`]+"
_CATALOG = re.compile(rf"{_PART}\.{_PART}")
_DOTTED = re.compile(rf"{_PART}(\.{_PART}){{2,}}")


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
