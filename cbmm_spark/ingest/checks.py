"""What is looked for in a batch before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cbmm_spark.config.schema import ChecksConfig, Strictness
from cbmm_spark.errors import InputError
from cbmm_spark.ingest.known import Known, content_text
from cbmm_spark.responses.batch import Batch
from cbmm_spark.responses.members import Members

_SHOWN = 3


@dataclass(frozen=True)
class Coverage:
    """How much of a benchmark the models of a batch answered: shares of the items that any of them has.

    A row without a verdict is no answer (what ended in an error is missing, and coverage shows it).
    """

    benchmark: str
    models: int
    items: int
    lowest: float
    lowest_model: str
    mean: float

    def line(self) -> str:
        """For a person."""
        models = f"{self.models:,} model{'s' * (self.models != 1)} x {self.items:,} items of {self.benchmark!r}"
        if self.lowest == 1.0:
            return f"{models}, all answered"
        return f"{models}, {self.mean:.1%} answered on average, least by {self.lowest_model!r}: {self.lowest:.1%}"


@dataclass(frozen=True)
class Checked:
    """What the checks say of a batch.

    Attributes
    ----------
    warnings
        What a person should look at, in sentences.
    left
        Benchmarks that are not to be stored.
    stopped
        Why not; empty where all are.
    """

    warnings: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    stopped: str = ""


def check_batch(batch: Batch, known: Known, before: Members | None, checks: ChecksConfig, whole: bool) -> Checked:
    """Look a batch over.

    Parameters
    ----------
    batch
        What is to be stored.
    known
        What is stored of its names.
    before
        What the same files held when the same input was last ingested; None: it was not, or nobody asks.
    checks
        How strict to be. A benchmark of which an item has two contents is left out where content is "fail": answers to
        them must not be mixed.
    whole
        Take all benchmarks or none.

    Raises
    ------
    InputError
        A check set to "fail" found something, and nothing is left or all was asked for; nothing was written.
    """
    warnings: list[str] = []
    left: tuple[str, ...] = ()
    stopped = ""
    told = [] if checks.content == "ignore" else _two_contents(batch, known)
    sentences = [sentence for sentence, _ in told]
    if told and checks.content == "fail":
        stopped = "; ".join(sentences)
        left = tuple(sorted({name for _, benchmarks in told for name in benchmarks}))
        if whole or not batch.items.keys() - set(left):
            raise _refused(batch.path, stopped, "content")
    else:
        warnings += sentences
    steps: Sequence[tuple[Strictness, str, Callable[[], list[str]]]] = (
        (checks.names, "names", lambda: _names_alike(batch, known, left)),
        (checks.vanished, "vanished", lambda: _vanished(batch, before, left)),
    )
    for strictness, name, look in steps:
        if strictness == "ignore":
            continue
        found = look()
        if found and strictness == "fail":
            raise _refused(batch.path, found[0], name)
        warnings += found
    return Checked(tuple(warnings), left, stopped)


def _refused(path: str, why: str, check: str, written: str = "nothing was written") -> InputError:
    return InputError(f'{path}: {why}; {written} (ingest.checks.{check} = "warn" lets it pass)')


def stopped_by_content(path: str, why: str) -> InputError:
    """Return the complaint about an input of which some benchmarks were left out."""
    return _refused(path, why, "content", "nothing of these benchmarks was written, the others were")


def coverage(batch: Batch, answered: Mapping[tuple[str, str], int]) -> list[Coverage]:
    """Return the coverage of every benchmark of a batch, by name.

    Parameters
    ----------
    batch
        The input.
    answered
        By benchmark and model, how many items have a verdict.
    """
    by_benchmark: dict[str, list[tuple[int, str]]] = {}
    for (benchmark, model), items in answered.items():
        by_benchmark.setdefault(benchmark, []).append((items, model))
    found = []
    for benchmark, models in sorted(by_benchmark.items()):
        items = len(batch.items[benchmark].names)
        fewest, model = min(models)
        mean = sum(n for n, _ in models) / len(models) / items
        found.append(Coverage(benchmark, len(models), items, fewest / items, model, mean))
    return found


# ------------------------------------------------------------------------------------------------ contents
def _two_contents(batch: Batch, known: Known) -> list[tuple[str, list[str]]]:
    """Items with two contents, within the batch or between it and what is stored: in words, and their benchmarks."""
    within: dict[str, list[str]] = {}
    beside: dict[str, list[str]] = {}
    for benchmark, items in batch.items.items():
        for at in np.flatnonzero(items.has_content).tolist():
            if items.low[at] != items.high[at]:
                within.setdefault(benchmark, []).append(items.names[at])
            stored = known.content.get(items.first + at)
            if stored is not None and content_text(int(items.low[at])) != stored:
                beside.setdefault(benchmark, []).append(items.names[at])
    told = [
        _contents_sentence(within, "for one model than for another"),
        _contents_sentence(beside, "than the stored one"),
    ]
    return [(sentence, benchmarks) for sentence, benchmarks in told if benchmarks]


def _contents_sentence(found: Mapping[str, Sequence[str]], where: str) -> tuple[str, list[str]]:
    names = sorted(found)
    if not names:
        return "", []
    shown = ", ".join(f"{len(found[name])} of {name!r} (such as {min(found[name])!r})" for name in names[:_SHOWN])
    sentence = (
        f"items have another content {where}: {shown}{_and_more(names)}; give the versions of the benchmark names of "
        "their own ([ingest.benchmarks], if need be an ingest and a mapping for each)"
    )
    return sentence, names


# ------------------------------------------------------------------------------------------------ names
def _names_alike(batch: Batch, known: Known, left: Sequence[str]) -> list[str]:
    """Names that differ by case or white space only."""
    told = []
    for kind, mine, stored in (
        ("model", batch.models, known.all_models),
        ("benchmark", [name for name in batch.items if name not in left], known.all_benchmarks),
    ):
        by_folded: dict[str, set[str]] = {}
        for name in (*mine, *stored):
            by_folded.setdefault(_folded(name), set()).add(name)
        here = sorted({_folded(name) for name in mine})
        alike = [sorted(by_folded[folded]) for folded in here if len(by_folded[folded]) > 1]
        if alike:
            shown = "; ".join(" and ".join(map(repr, names[:_SHOWN])) for names in alike[:_SHOWN])
            told.append(
                f"{kind}s whose names differ only by case or spaces are kept apart: {shown}{_and_more(alike)}; "
                f"[ingest.{kind}s] makes them one"
            )
    return told


def _folded(name: str) -> str:
    return re.sub(r"\s+", "", name.lower())


# ------------------------------------------------------------------------------------------------ vanished
def _vanished(batch: Batch, before: Members | None, left: Sequence[str]) -> list[str]:
    """Models and items that the same files had when they were last ingested, and lack now."""
    if before is None:
        return []
    gone = batch.members.lacks(before)
    told = []
    for kind, by_benchmark in (("models", gone.models), ("items", gone.items)):
        names = sorted(name for name in by_benchmark if name in batch.items and name not in left)
        if names:
            shown = ", ".join(
                f"{len(by_benchmark[name])} of {name!r} (such as {min(by_benchmark[name])!r})"
                for name in names[:_SHOWN]
            )
            told.append(
                f"{kind} that these files had before are not in them any more and stay stored: "
                f"{shown}{_and_more(names)}"
            )
    return told


def _and_more(rows: Sequence[object]) -> str:
    return f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
