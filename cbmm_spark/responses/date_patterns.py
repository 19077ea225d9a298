"""Times in texts by declared patterns, as Spark's `to_timestamp` reads them, without Spark.

The letters are those of Java's and Spark's patterns: y u M d H h m s S a X x Z, text in quotes, and optional parts in
brackets. A pattern that has another letter is refused by name.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

from cbmm_spark.errors import ConfigError

US_A_SECOND = 1_000_000
_DAY = 86_400

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
                "november", "december")  # fmt: skip

_OFFSETS = {
    "X": r"Z|[+-]\d{2}(?:\d{2})?",
    "XX": r"Z|[+-]\d{4}",
    "XXX": r"Z|[+-]\d{2}:\d{2}",
    "x": r"[+-]\d{2}(?:\d{2})?",
    "xx": r"[+-]\d{4}",
    "xxx": r"[+-]\d{2}:\d{2}",
    "Z": r"[+-]\d{4}",
    "ZZ": r"[+-]\d{4}",
    "ZZZ": r"[+-]\d{4}",
}
_TWO_DIGITS = {"d": "day", "H": "hour", "h": "half", "m": "minute", "s": "second"}
_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|\[|\]|.", re.DOTALL)


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression whose groups are the parts of a time.

    Raises
    ------
    ConfigError
        A letter is unknown, a part is given twice, or brackets do not close.
    """
    parts: list[str] = []
    depth = 0
    for token in (match.group(0) for match in _TOKEN.finditer(pattern)):
        if token == "[":
            depth += 1
            parts.append("(?:")
        elif token == "]":
            depth -= 1
            parts.append(")?")
        else:
            parts.append(_expression(token, pattern))
        if depth < 0:
            break
    try:
        if depth:
            raise re.error("brackets do not close")
        return re.compile("".join(parts), re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"ingest.date_formats: the pattern {pattern!r} cannot be read: {error}") from None


def _expression(token: str, pattern: str) -> str:
    if token.startswith("'"):
        return re.escape(token[1:-1].replace("''", "'") or "'")
    letter, width = token[0], len(token)
    if not (letter.isalpha() and letter.isascii()):
        return re.escape(token)
    if letter in "yu" and width != 3:
        return {1: r"(?P<year>\d{1,4})", 2: r"(?P<short_year>\d{2})"}.get(width, rf"(?P<year>\d{{{width}}})")
    if letter in "ML":
        names = {3: ("month_name", _MONTHS), 4: ("long_month_name", _LONG_MONTHS)}
        if width in names:
            group, words = names[width]
            return f"(?P<{group}>{'|'.join(words)})"
        return r"(?P<month>\d{2})" if width == 2 else r"(?P<month>\d{1,2})"
    if letter in _TWO_DIGITS and width <= 2:
        return rf"(?P<{_TWO_DIGITS[letter]}>\d{{{'2' if width == 2 else '1,2'}}})"
    if letter == "S" and width <= 9:
        return rf"(?P<fraction>\d{{1,{width}}})"
    if letter == "a" and width == 1:
        return r"(?P<noon>am|pm)"
    if token in _OFFSETS:
        return f"(?P<offset>{_OFFSETS[token]})"
    raise ConfigError(
        f"ingest.date_formats: {token!r} in the pattern {pattern!r} is not known; "
        "known are y u M d H h m s S a X x Z, text in quotes, and [ ] around what may be missing"
    )


@dataclass(frozen=True)
class DatePatterns:
    """Several patterns; the first that fits decides.

    Raises
    ------
    ConfigError
        One of them cannot be read.
    """

    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            compiled(pattern)

    def read(self, text: str) -> int | None:
        """Return the microseconds since 1970 (UTC) of a text without space around it, None where no pattern fits.

        A time without an offset is in UTC; what a pattern does not have is the first of its kind.
        """
        for pattern in self.patterns:
            found = compiled(pattern).fullmatch(text)
            value = None if found is None else _microseconds(found.groupdict())
            if value is not None:
                return value
        return None


def _microseconds(parts: dict[str, str | None]) -> int | None:
    year, month, day = _year(parts), _month(parts), int(parts.get("day") or 1)
    hour, minute, second = _hour(parts), int(parts.get("minute") or 0), int(parts.get("second") or 0)
    if not (1 <= year <= 9999 and 1 <= month <= 12 and 0 <= hour < 24 and minute < 60 and second < 60):
        return None
    start = np.datetime64(f"{year:04d}-{month:02d}", "M").astype("datetime64[D]")
    length = int(((start.astype("datetime64[M]") + 1).astype("datetime64[D]") - start).astype(int))
    if not 1 <= day <= length:
        return None
    offset = _offset(parts.get("offset"))
    if offset is None:
        return None
    fraction = (parts.get("fraction") or "").ljust(6, "0")[:6]  # further digits are cut off, as Spark does
    seconds = (int(start.astype(int)) + day - 1) * _DAY + hour * 3600 + minute * 60 + second - offset
    return seconds * US_A_SECOND + int(fraction)


def _year(parts: dict[str, str | None]) -> int:
    short = parts.get("short_year")
    if short is not None:
        return 2000 + int(short)
    return int(parts.get("year") or 1970)


def _month(parts: dict[str, str | None]) -> int:
    for name, words in (("month_name", _MONTHS), ("long_month_name", _LONG_MONTHS)):
        word = parts.get(name)
        if word is not None:
            return words.index(word.lower()) + 1
    return int(parts.get("month") or 1)


def _hour(parts: dict[str, str | None]) -> int:
    half, noon = parts.get("half"), parts.get("noon")
    if half is None:
        return int(parts.get("hour") or 0)
    if not 1 <= int(half) <= 12:
        return -1
    return int(half) % 12 + (12 if noon is not None and noon.lower() == "pm" else 0)


def _offset(text: str | None) -> int | None:
    """Seconds east of UTC; None where there is no such offset."""
    if text is None or text in ("Z", "z"):
        return 0
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if minutes > 59 or hours * 60 + minutes > 18 * 60:
        return None
    return (1 if text[0] == "+" else -1) * (hours * 3600 + minutes * 60)


__all__ = ["DatePatterns", "compiled"]
