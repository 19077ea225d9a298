"""What configuration says about a source, as column expressions: metrics, filters, revisions, versions, other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from cbmm_spark.config.schema import ANY, IngestConfig


def by_benchmark(table: Mapping[str, object], benchmark: Column, make: Callable[[object], Column]) -> Column:
    """Return the expression made of a table's entry for the row's benchmark, else of the entry "*", else null.

    Parameters
    ----------
    table
        Entries by benchmark.
    benchmark
        The row's benchmark.
    make
        From an entry to an expression.
    """
    otherwise = make(table[ANY]) if ANY in table else F.lit(None)
    found = None
    for name, entry in table.items():
        if name != ANY:
            found = (F if found is None else found).when(benchmark == name, make(entry))
    return otherwise if found is None else found.otherwise(otherwise)


def first_present(names: Sequence[str], value_of: Callable[[str], Column]) -> tuple[Column, Column]:
    """Return the value of the first name that a record has, and that name; null where it has none of them."""
    values = {name: value_of(name) for name in names}
    if not values:
        return F.lit(None).cast("string"), F.lit(None).cast("string")
    name = F.coalesce(*(F.when(value.isNotNull(), F.lit(name)) for name, value in values.items()))
    return F.coalesce(*values.values()), name


def metric_of(rules: IngestConfig, benchmark: Column, value_of: Callable[[str], Column]) -> tuple[Column, Column]:
    """Return a record's score and the metric it comes from, by `[ingest.metrics]`; null where none is known.

    Parameters
    ----------
    rules
        `[ingest]`.
    benchmark
        The row's benchmark, without a version.
    value_of
        The value that a record has under a metric's name, null where it has none.
    """

    def value(names: object) -> Column:
        return first_present(_texts(names), value_of)[0]

    def name(names: object) -> Column:
        return first_present(_texts(names), value_of)[1]

    return by_benchmark(rules.metrics, benchmark, value), by_benchmark(rules.metrics, benchmark, name)


def known_metrics(rules: IngestConfig) -> tuple[str, ...]:
    """All names of metrics in `[ingest.metrics]`, each once."""
    return tuple(dict.fromkeys(name for names in rules.metrics.values() for name in names))


def with_revision(rules: IngestConfig, model: Column, revision: Column) -> Column:
    """Return NAME@REVISION where a revision is told and `ingest.revision` makes it part of the name."""
    if rules.revision == "ignore":
        return model
    return F.when(revision.isNull() | (revision == ""), model).otherwise(F.concat(model, F.lit("@"), revision))


def with_version(rules: IngestConfig, benchmark: Column, version: Column) -> Column:
    """Return NAME@VERSION where a version is told and `ingest.version` makes it part of the name."""
    if rules.version == "ignore":
        return benchmark
    return F.when(version.isNull() | (version == ""), benchmark).otherwise(F.concat(benchmark, F.lit("@"), version))


def renamed(column: Column, names: Mapping[str, str]) -> Column:
    """Return a column with other names replaced by the name under which each is stored."""
    if not names:
        return column
    table = F.create_map(*(F.lit(text) for pair in names.items() for text in pair))
    return F.coalesce(table[column], column)


def full_score(rules: IngestConfig, benchmark: Column) -> Column | None:
    """Return the score that means fully solved, by `[ingest.full_score]`; None where it is 1 throughout.

    An entry holds for a benchmark with its version, or for all versions.
    """
    if not rules.full_score:
        return None

    def number(value: object) -> Column:
        return F.lit(value).cast("double")

    bare = F.element_at(F.split(benchmark, "@"), 1)
    return F.coalesce(
        by_benchmark(rules.full_score, benchmark, number), by_benchmark(rules.full_score, bare, number), F.lit(1.0)
    )


def _texts(names: object) -> tuple[str, ...]:
    assert isinstance(names, tuple)
    return names
