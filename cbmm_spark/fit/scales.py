"""Which benchmarks share an ability scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cbmm_spark.config.schema import ScalesConfig
from cbmm_spark.errors import ConfigError

OVERALL = "overall"


@dataclass(frozen=True)
class Scales:
    """The scales of a run.

    Attributes
    ----------
    benchmarks
        By scale name, in the order of publication.
    fitted
        For every scale the scale whose fit it shows: itself, or an earlier one over the same benchmarks, so that the
        same items are never fitted twice.
    """

    benchmarks: dict[str, frozenset[str]]
    fitted: dict[str, str]

    @property
    def to_fit(self) -> dict[str, frozenset[str]]:
        """Return the scales that have a fit of their own."""
        return {name: self.benchmarks[name] for name in self.benchmarks if self.fitted[name] == name}

    def shown_by(self, fitted: str) -> list[str]:
        """Return the names under which a fit is published."""
        return [name for name, source in self.fitted.items() if source == fitted]


def choose_scales(config: ScalesConfig, benchmarks: Sequence[str]) -> Scales:
    """Return the scales for the benchmarks that have responses.

    Raises
    ------
    ConfigError
        No scale is left, a group names a benchmark that is not there, or two scales would have one name.
    """
    if config.overall and OVERALL in benchmarks and len(benchmarks) > 1:
        raise ConfigError(
            f"a benchmark is called {OVERALL!r}, like the scale over all benchmarks: set scales.overall = false, or "
            "ingest the benchmark under another name (--benchmark)"
        )
    named: dict[str, frozenset[str]] = {}
    wanted: list[tuple[str, frozenset[str]]] = []
    if config.overall:
        wanted.append((OVERALL, frozenset(benchmarks)))
    for group, listed in sorted(config.groups.items()):
        missing = sorted(set(listed) - set(benchmarks))
        if missing or not listed:
            known = ", ".join(sorted(benchmarks)[:10])
            raise ConfigError(f"scales.groups.{group} names {missing or 'no benchmark'}; there are: {known}")
        wanted.append((group, frozenset(listed)))
    if config.per_benchmark:
        wanted.extend((name, frozenset([name])) for name in sorted(benchmarks))
    for name, members in wanted:
        if name in named and named[name] != members:
            raise ConfigError(
                f"two scales would be called {name!r}: rename the group, set scales.overall = false or "
                "scales.per_benchmark = false"
            )
        named[name] = members
    if not named:
        raise ConfigError("no scale to fit: set scales.overall or scales.per_benchmark to true, or name a group")
    fitted: dict[str, str] = {}
    first: dict[frozenset[str], str] = {}
    for name, members in named.items():
        fitted[name] = first.setdefault(members, name)
    return Scales(named, fitted)
