"""What becomes of one model's answers to one benchmark: each key once, beside what is stored.

All arrays of a model and benchmark are sorted by one number, the *place* of a key: its item, then its attempt.
Duplicates and stored values are compared as sorted numbers; no name is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cbmm_spark.readers.rows import FIRST_ATTEMPT
from cbmm_spark.responses.rules import NO_DATE

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

Duplicates = Literal["latest", "first", "error"]
Attempts = Literal["all", "latest", "first", "error"]

NEW, UNCHANGED, CORRECTED, REDATED, SUPERSEDED = range(5)
"""What becomes of a key beside the stored one.

new
    None is stored.
unchanged
    The same score, and no earlier date.
corrected
    Another score, which replaces the stored one.
redated
    The same score with an earlier date, or with a date where none was stored: the date is updated.
superseded
    Another score that loses to the stored one (`latest`: it is dated before it; `first`: it is not dated before it).
"""

BECAME = ("new", "unchanged", "corrected", "redated", "superseded")
"""Their names, in this order."""

_ATTEMPT_BITS = 31
_LATEST = np.iinfo(np.int64).max
_NOTHING = -1.0  # a score of "no verdict" where scores are compared; no score is negative


@dataclass(frozen=True)
class Answers:
    """Answers of one model to items of one benchmark, n of them.

    Attributes
    ----------
    place
        Item and attempt of each, as one number (`place_of`).
    score
        NaN where there is no verdict.
    date
        Microseconds since 1970, `NO_DATE` where there is none.
    source
        Number of the file that each comes from.
    rows
        How many rows of the input say so.
    """

    place: I64
    score: F64
    date: I64
    source: I64
    rows: I64

    def __len__(self) -> int:
        return self.place.size

    def take(self, which: npt.NDArray[Any]) -> Answers:
        """Some of the answers, by number or flag."""
        arrays = (self.place, self.score, self.date, self.source, self.rows)
        return Answers(*(array[which] for array in arrays))

    @property
    def item(self) -> I64:
        """Number of the item of each."""
        return self.place >> _ATTEMPT_BITS

    @property
    def attempt(self) -> I64:
        """Number of the attempt of each."""
        return self.place & ((1 << _ATTEMPT_BITS) - 1)


def place_of(item: I64, attempt: I64) -> I64:
    """Items (below 2^32) and attempts (below 2^31) as one number that sorts by item, then by attempt."""
    return (item.astype(np.int64) << _ATTEMPT_BITS) | attempt


def together(pieces: Sequence[Answers]) -> Answers:
    """Answers of one model and benchmark from several tasks, in one."""
    if len(pieces) == 1:
        return pieces[0]
    arrays = ("place", "score", "date", "source", "rows")
    return Answers(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in arrays))


@dataclass(frozen=True)
class Decided:
    """Each key once.

    Attributes
    ----------
    answers
        Sorted by place, each place once.
    undecided
        Keys whose rows contradict each other and none of them wins (under `error`: any that do).
    several
        Under `attempts = "error"`, the keys of items with several attempts.
    other_attempts
        Rows of attempts beside the one that counts.
    """

    answers: Answers
    undecided: Answers
    several: I64
    other_attempts: int = 0


def decide(answers: Answers, duplicates: Duplicates, attempts: Attempts = "all") -> Decided:
    """Bring the rows of each key together.

    A key whose rows have one score has the earliest of their dates and the smallest of their sources. Where scores
    differ, the rows of the last (`latest`) or of the first date (`first`) decide; a row without a date never wins
    against a dated one. What is then still open is undecided, whatever the order of the rows.

    Parameters
    ----------
    answers
        In any order, keys as often as rows have them.
    duplicates, attempts
        The rules `ingest.duplicates` and `ingest.attempts`.
    """
    nothing = answers.take(np.zeros(0, dtype=np.int64))
    step = np.diff(answers.place)
    if (step > 0).all():  # sorted, each key once: the usual input
        return _one_attempt(Decided(answers, nothing, nothing.place), attempts)
    if (step < 0).any():
        answers = answers.take(np.argsort(answers.place, kind="stable"))
    starts = np.flatnonzero(np.concatenate([[True], np.diff(answers.place) > 0]))
    lowest, highest = _range(answers.score, starts)
    dates = np.minimum.reduceat(np.where(answers.date == NO_DATE, _LATEST, answers.date), starts)
    decided = Answers(
        place=answers.place[starts],
        score=np.where(lowest == _NOTHING, np.nan, lowest),
        date=np.where(dates == _LATEST, NO_DATE, dates),
        source=np.minimum.reduceat(answers.source, starts),
        rows=np.add.reduceat(answers.rows, starts),
    )
    open_keys = lowest < highest
    if not open_keys.any():
        return _one_attempt(Decided(decided, nothing, nothing.place), attempts)
    if duplicates == "error":
        return Decided(decided.take(~open_keys), decided.take(open_keys), nothing.place)
    won, is_open = _by_date(answers, starts, duplicates)
    decided = Answers(
        decided.place,
        np.where(open_keys, won.score, decided.score),
        np.where(open_keys, won.date, decided.date),
        np.where(open_keys, won.source, decided.source),
        decided.rows,
    )
    is_open &= open_keys
    return _one_attempt(Decided(decided.take(~is_open), decided.take(is_open), nothing.place), attempts)


def _range(score: F64, starts: I64, counts: npt.NDArray[np.bool_] | None = None) -> tuple[F64, F64]:
    """The lowest and the highest score of each key, of the rows that count."""
    comparable = np.where(np.isnan(score), _NOTHING, score)
    low = comparable if counts is None else np.where(counts, comparable, np.inf)
    high = comparable if counts is None else np.where(counts, comparable, -np.inf)
    return np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


def _by_date(answers: Answers, starts: I64, rule: Duplicates) -> tuple[Answers, npt.NDArray[np.bool_]]:
    """Let the rows of the winning date decide each key; also whether they, too, contradict each other."""
    if rule == "latest":
        winning = np.maximum.reduceat(answers.date, starts)  # NO_DATE is the smallest number
    else:
        winning = np.minimum.reduceat(np.where(answers.date == NO_DATE, _LATEST, answers.date), starts)
        winning = np.where(winning == _LATEST, NO_DATE, winning)
    sizes = np.diff(np.append(starts, len(answers)))
    wins = answers.date == np.repeat(winning, sizes)
    lowest, highest = _range(answers.score, starts, wins)
    source = np.minimum.reduceat(np.where(wins, answers.source, _LATEST), starts)
    score = np.where(lowest == _NOTHING, np.nan, lowest)
    return Answers(answers.place[starts], score, winning, source, sizes), lowest < highest


def _one_attempt(decided: Decided, rule: Attempts) -> Decided:
    """Of several attempts of a model at an item the one that counts, as the first attempt."""
    answers = decided.answers
    if rule == "all" or not len(answers):
        return decided
    changes = np.diff(answers.item) > 0
    first, last = np.concatenate([[True], changes]), np.concatenate([changes, [True]])
    if rule == "error" and not first.all():
        return replace(decided, several=answers.place[~(first & last)])
    counts = last if rule == "latest" else first
    kept = answers.take(counts)
    place = place_of(kept.item, np.full(len(kept), FIRST_ATTEMPT, dtype=np.int64))
    return replace(
        decided, answers=replace(kept, place=place), other_attempts=int(answers.rows.sum() - kept.rows.sum())
    )


@dataclass(frozen=True)
class Compared:
    """What becomes of decided answers.

    Attributes
    ----------
    answers
        The same answers; the dates are those that are to be stored.
    became
        For each, one of `NEW` … `SUPERSEDED`.
    old_score
        The stored score, NaN where there is no verdict or nothing stored.
    """

    answers: Answers
    became: npt.NDArray[np.int8]
    old_score: F64


def compare(answers: Answers, stored: Answers | None, rule: Duplicates) -> Compared:
    """Compare each answer with the stored one of its key.

    Parameters
    ----------
    answers, stored
        Sorted by place, each place once; None: nothing is stored.
    rule
        `ingest.duplicates`.
    """
    if stored is None or not len(stored):
        became = np.full(len(answers), NEW, dtype=np.int8)
        return Compared(answers, became, np.full(len(answers), np.nan))
    at = np.minimum(np.searchsorted(stored.place, answers.place), len(stored) - 1)
    is_stored = stored.place[at] == answers.place
    old_score = np.where(is_stored, stored.score[at], np.nan)
    old_date = np.where(is_stored, stored.date[at], NO_DATE)
    date = answers.date
    same = (answers.score == old_score) | (np.isnan(answers.score) & np.isnan(old_score))
    has_date, had_date = date != NO_DATE, old_date != NO_DATE
    earlier = has_date & had_date & (date < old_date)
    dated_now = has_date & ~had_date
    loses = ~earlier if rule == "first" else earlier
    became = np.select(
        [~is_stored, same & (earlier | dated_now), same, loses],
        [NEW, REDATED, UNCHANGED, SUPERSEDED],
        CORRECTED,
    ).astype(np.int8)
    # A correction without a date does not erase the date that is known.
    kept_date = np.where((became == CORRECTED) & ~has_date, old_date, date)
    return Compared(replace(answers, date=kept_date), became, old_score)


def sorted_by_place(answers: Answers) -> Answers:
    """Stored answers in the order that `compare` wants."""
    if (np.diff(answers.place) > 0).all():
        return answers
    return answers.take(np.argsort(answers.place, kind="stable"))


__all__ = ["BECAME", "Answers", "Compared", "Decided", "compare", "decide", "place_of", "sorted_by_place", "together"]
