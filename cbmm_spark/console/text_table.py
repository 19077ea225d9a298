"""Small tables of plain text, for a terminal or a log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from wcwidth import wcswidth

from cbmm_spark.console.ranking_table import printable

_GAP = "  "
_NOTHING = "-"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out rows under their heads, numbers to the right, texts to the left, nothing as ``-``.

    Parameters
    ----------
    heads
        Titles of the columns.
    rows
        Values; a column is of numbers where every value that is not None is one.

    Returns
    -------
    str
        Lines without a newline at the end.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    left = [not all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(heads))]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    lines = [list(heads), ["-" * width for width in widths], *cells]
    return "\n".join(_GAP.join(map(_padded, line, widths, left)).rstrip() for line in lines)


def size(number: int | None) -> str | None:
    """A number of bytes for a person: three digits and a unit."""
    if number is None:
        return None
    value, units = float(number), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 99.5 else f"{value:.3g} {units[0]}"


def duration(seconds: float | None) -> str | None:
    """A number of seconds for a person."""
    if seconds is None:
        return None
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    return printable(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _width(text: str) -> int:
    return max(0, wcswidth(text))


def _padded(cell: str, width: int, left: bool) -> str:
    space = " " * (width - _width(cell))
    return cell + space if left else space + cell
