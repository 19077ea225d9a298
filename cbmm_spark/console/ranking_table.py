"""The top of a ranking as plain text, for a terminal or a log."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wcwidth import iter_graphemes, wcswidth

_NOTHING = "-"
_GAP = "  "
_NARROWEST_NAME = 12
_JOINERS = (
    "\u200c\u200d"  # inside of emoji and of Persian or Indic words; all other format characters are shown escaped
)


class _TextColumn(NamedTuple):
    title: str
    text: Callable[[Mapping[str, Any]], str]
    left: bool = False


def top_table(rows: Sequence[Mapping[str, Any]], truth: Mapping[str, float] | None = None, width: int = 120) -> str:
    """Lay out the top of one scale: rank, interval, model, ability, accuracy, and how the two rankings differ.

    Parameters
    ----------
    rows
        Rows of `abilities` of one run and scale, as mappings; sorted here by rank, models without one last.
    truth
        The true ability of simulated models by model_id, shown beside the estimate; None for real data.
    width
        Columns of the terminal. Long names are shortened in their middle to fit, to twelve columns at the least.

    Returns
    -------
    str
        Lines without a newline at the end. Where ranks have no interval, the ability's normal interval stands instead.
    """
    if not rows:
        return "no model has a result"
    ordered = sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0, row["model_id"]))
    columns = _columns(ordered, truth)
    cells = [[column.text(row) for column in columns] for row in ordered]
    at_name = next(i for i, column in enumerate(columns) if column.title == "model")
    others = sum(
        _widest([column.title, *(line[i] for line in cells)]) + len(_GAP)
        for i, column in enumerate(columns)
        if i != at_name
    )
    for line in cells:
        line[at_name] = shorten(line[at_name], max(_NARROWEST_NAME, width - others))
    lines = [[column.title for column in columns], *cells]
    widths = [_widest([line[i] for line in lines]) for i in range(len(columns))]
    lines.insert(1, ["-" * size for size in widths])
    return "\n".join(_join(line, widths, columns) for line in lines)


def printable(text: str) -> str:
    """A name that can stand in one line: control, direction and other invisible characters escaped, letters kept."""
    return "".join(c.encode("unicode_escape").decode("ascii") if _is_invisible(c) else c for c in text)


def shorten(text: str, width: int) -> str:
    """A text in at most `width` terminal columns: what is too long loses its middle to an ellipsis, which shows it."""
    if _width(text) <= width:
        return text
    graphemes = list(iter_graphemes(text))
    head_width = width // 2  # the ellipsis takes one column, the head the odd one
    head = "".join(_fitting(graphemes, head_width))
    tail = _fitting(graphemes[::-1], width - 1 - _width(head))
    return head + "…" + "".join(tail[::-1])


def _columns(rows: Sequence[Mapping[str, Any]], truth: Mapping[str, float] | None) -> list[_TextColumn]:
    columns = [
        _TextColumn("rank", lambda row: _integer(row["rank"])),
        _interval_column(rows),
        _TextColumn("model", lambda row: printable(row["model_id"]), left=True),
        _TextColumn("ability ± SE", _ability),
        _TextColumn("accuracy", lambda row: _number(row["accuracy"], "{:.2%}")),
        _TextColumn("acc. rank", lambda row: _integer(row["accuracy_rank"])),
        _TextColumn("shift", lambda row: _number(row["rank_shift"], "{:+d}")),
    ]
    if truth is not None:
        columns.append(_TextColumn("true ability", lambda row: _number(truth.get(row["model_id"]), "{:.3f}")))
    if any(row.get("status", "ok") != "ok" for row in rows):
        columns.append(_TextColumn("status", lambda row: str(row.get("status", "")), left=True))
    return columns


def _interval_column(rows: Sequence[Mapping[str, Any]]) -> _TextColumn:
    ranked = [row for row in rows if row["rank"] is not None]
    if ranked and all(row["rank_lower"] is not None and row["rank_upper"] is not None for row in ranked):
        return _TextColumn("rank interval", lambda row: _interval(row["rank_lower"], row["rank_upper"], "{:d}"))
    return _TextColumn("ability interval", lambda row: _interval(row["ability_lower"], row["ability_upper"], "{:.3f}"))


def _interval(lower: float | None, upper: float | None, form: str) -> str:
    return _NOTHING if lower is None or upper is None else f"{form.format(lower)} to {form.format(upper)}"


def _ability(row: Mapping[str, Any]) -> str:
    if row["ability"] is None:
        return _NOTHING
    return f"{row['ability']:.3f} ± {_number(row['ability_se'], '{:.3f}')}"


def _integer(value: int | None) -> str:
    return _number(value, "{:d}")


def _number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else form.format(value)


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and character not in _JOINERS


def _fitting(graphemes: Sequence[str], width: int) -> list[str]:
    """As many graphemes from the first on as fit."""
    used = 0
    taken: list[str] = []
    for grapheme in graphemes:
        used += _width(grapheme)
        if used > width:
            break
        taken.append(grapheme)
    return taken


def _width(text: str) -> int:
    """Terminal columns of a text without control characters."""
    return max(0, wcswidth(text))


def _widest(texts: Sequence[str]) -> int:
    return max(_width(text) for text in texts)


def _join(cells: Sequence[str], widths: Sequence[int], columns: Sequence[_TextColumn]) -> str:
    padded = []
    for cell, size, column in zip(cells, widths, columns, strict=True):
        space = " " * (size - _width(cell))
        padded.append(cell + space if column.left else space + cell)
    return _GAP.join(padded).rstrip()
