"""The dates of a history, as they are named on a command line."""

from __future__ import annotations

import calendar
import datetime as dt
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from cbmm_spark.errors import ConfigError

Every = Literal["day", "week", "month", "change"]

MOST_DATES = 5_000
"""Thirteen years of days. A history of more is asked for by mistake: every date is a run in every table of results."""


def dates_between(first: dt.date, last: dt.date, every: Every, changes: Sequence[dt.date]) -> list[dt.date]:
    """Return the dates of a history, oldest first.

    Parameters
    ----------
    first, last
        Its ends; the last date is always one of the dates (with ``change`` only if something was evaluated then).
    every
        ``day``, ``week`` and ``month`` count from the first date on (a month that lacks its day takes its last one);
        ``change`` takes the days on which something was evaluated.
    changes
        Those days, oldest first.

    Raises
    ------
    ConfigError
        The first date is after the last, or there are more than `MOST_DATES`.
    """
    if first > last:
        raise ConfigError(f"--from {first} is after --to {last}: swap them")
    dates = list(itertools.islice(_dates(first, last, every, changes), MOST_DATES + 1))
    if len(dates) > MOST_DATES:
        raise ConfigError(
            f"a history from {first} to {last} has more than {MOST_DATES:,} dates, each a published run: "
            "narrow it with --from and --to (a single response with a wrong date may be what makes it long)"
        )
    return dates


def _dates(first: dt.date, last: dt.date, every: Every, changes: Sequence[dt.date]) -> Iterator[dt.date]:
    if every == "change":
        yield from (day for day in changes if first <= day <= last)
        return
    if every == "month":
        months = (last.year - first.year) * 12 + last.month - first.month
        steps = (_months_after(first, number) for number in range(months + 1))
    else:
        step = 7 if every == "week" else 1
        steps = (first + dt.timedelta(days=n) for n in range(0, (last - first).days + 1, step))
    yield from (day for day in steps if day < last)
    yield last


def _months_after(first: dt.date, number: int) -> dt.date:
    year, month = divmod(first.year * 12 + first.month - 1 + number, 12)
    return dt.date(year, month + 1, min(first.day, calendar.monthrange(year, month + 1)[1]))


def parse_dates(text: str, where: str) -> list[dt.date]:
    """Return the dates of a text, separated by commas, spaces or line ends, oldest first, each once.

    Raises
    ------
    ConfigError
        A word is not a date, or there is none; `where` tells of what the text is.
    """
    found = set()
    for word in text.replace(",", " ").split():
        try:
            found.add(dt.date.fromisoformat(word))
        except ValueError:
            raise ConfigError(f"{where}: {word!r} is not a date, write it as YYYY-MM-DD") from None
    if not found:
        raise ConfigError(f"{where} names no date, write them as YYYY-MM-DD, separated by commas or line ends")
    return sorted(found)
