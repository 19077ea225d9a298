"""Which models and items each file of an input held: kept with an ingest, for the next one to see what vanished.

Kept are the names themselves, by file and benchmark, compressed together: names repeat from file to file, and a night
then compares two sets instead of reading what is stored.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]
"""File and benchmark."""


@dataclass(frozen=True)
class Names:
    """Models and items by benchmark."""

    models: Mapping[str, frozenset[str]] = field(default_factory=dict)
    items: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Members:
    """Models and items by file and benchmark."""

    models: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    items: Mapping[Key, frozenset[str]] = field(default_factory=dict)

    def lacks(self, before: Members) -> Names:
        """What these files held before and hold no more, by benchmark; files that are not here now are not asked."""
        files = {file for file, _ in self.models}
        return Names(
            _lost(self.models, before.models, files),
            _lost(self.items, before.items, files),
        )

    def with_earlier(self, before: Members | None) -> Members:
        """These and those of before: what was held once stays stored, so that it is missed until it is back."""
        if before is None:
            return self
        return Members(_joined(self.models, before.models), _joined(self.items, before.items))

    def packed(self) -> bytes:
        """As bytes."""
        names = sorted(set().union(*self.models.values(), *self.items.values()))
        number = {name: at for at, name in enumerate(names)}
        rows = [
            [file, benchmark, _steps(number[name] for name in self.models[file, benchmark]),
             _steps(number[name] for name in self.items.get((file, benchmark), ()))]
            for file, benchmark in sorted(self.models)
        ]  # fmt: skip
        return zlib.compress(json.dumps([names, rows], ensure_ascii=False, separators=(",", ":")).encode("utf-8"))

    @classmethod
    def unpacked(cls, packed: bytes) -> Members:
        """What `packed` gave."""
        names, rows = json.loads(zlib.decompress(packed))
        models, items = {}, {}
        for file, benchmark, its_models, its_items in rows:
            models[file, benchmark] = frozenset(names[at] for at in _sums(its_models))
            items[file, benchmark] = frozenset(names[at] for at in _sums(its_items))
        return cls(models, items)


def _joined(one: Mapping[Key, frozenset[str]], other: Mapping[Key, frozenset[str]]) -> dict[Key, frozenset[str]]:
    return {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in one.keys() | other.keys()}


def _lost(
    now: Mapping[Key, frozenset[str]], before: Mapping[Key, frozenset[str]], files: set[str]
) -> dict[str, frozenset[str]]:
    held: dict[str, set[str]] = {}
    here: dict[str, set[str]] = {}
    for (file, benchmark), names in before.items():
        if file in files:
            held.setdefault(benchmark, set()).update(names)
    for (_, benchmark), names in now.items():
        here.setdefault(benchmark, set()).update(names)
    lost = {benchmark: frozenset(names - here.get(benchmark, set())) for benchmark, names in held.items()}
    return {benchmark: names for benchmark, names in lost.items() if names}


def _steps(numbers: Iterable[int]) -> list[int]:
    """Sorted numbers as runs: first number and length, in turn. Names that stand together in one file usually stand
    together in the list of all names."""
    runs: list[int] = []
    for number in sorted(numbers):
        if runs and runs[-2] + runs[-1] == number:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


def _sums(runs: list[int]) -> list[int]:
    starts, lengths = runs[::2], runs[1::2]
    return [start + step for start, length in zip(starts, lengths, strict=True) for step in range(length)]
