"""Which earlier run a scale is linked to, and the links of all scales of a run.

A scale has a reference run. The first run that has the scale is its own reference: standardised, and from then on
every run of the scale is moved to where the items both have in common agree best (`kernels.linking`). docs/linking.md
has the equations, docs/decisions/0042-linking.md the reasons.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import LinkingConfig, RescoreConfig
from cbmm_spark.errors import GateError, InputError
from cbmm_spark.fit.scales import Scales
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.linking import PROBABILITIES, Bank, Link, link_items, quantiles
from cbmm_spark.kernels.model import F64, Gauge, standard_gauge
from cbmm_spark.results.published_scale import ScaleLink, ordinary_abilities
from cbmm_spark.results.results import RunFits, on_scale
from cbmm_spark.runs.table import all_runs, scales_of
from cbmm_spark.spark.scoped import job_description
from cbmm_spark.tables import Warehouse
from cbmm_spark.tables.arrow_groups import groups

NEW = "new"
"""Stands in `[linking.reference]` for the run itself: the scale begins anew."""

LEAST_SHARE = 0.2
"""Share of a scale's items that its reference must have for the link to rest on it, where another run has more.

A fifth of the test is the rule of thumb for anchors (Angoff 1984; Kolen & Brennan 2014, section 8.2)."""

Tell = Callable[..., Any]


class Origin(NamedTuple):
    """Where a scale comes from: its reference run, and the nearest run that is on that scale."""

    reference: str
    nearest: str

    @property
    def is_established(self) -> bool:
        """Whether more than the reference run itself is on the scale."""
        return self.reference != self.nearest


class EarlierRun(NamedTuple):
    """A published run of another day."""

    scored_on: dt.date
    sigma: float


@dataclass(frozen=True)
class _Common:
    """What a scale shares with an earlier run: the links found, and what is usable on the earlier side alone."""

    link: Link | None
    usable: int
    shared: int
    benchmark: pa.Array
    item_index: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def n_anchors(self) -> int:
        return 0 if self.link is None else int(self.link.anchors.sum())


_NOTHING = _Common(None, 0, 0, pa.array([], pa.string()), np.zeros(0, dtype=np.int64))


def link_scales(
    warehouse: Warehouse,
    run_id: str,
    scored_on: dt.date,
    fits: Mapping[str, ScaleFit],
    scales: Scales,
    solved: DataFrame,
    items: DataFrame,
    linking: LinkingConfig,
    rescore: RescoreConfig,
    sigma: float,
    tell: Tell,
) -> tuple[dict[str, ScaleLink], list[str]]:
    """Link every scale of a run to its reference.

    Parameters
    ----------
    warehouse
        Holds the earlier runs.
    run_id, scored_on
        The run and its day. Runs of the same day are never asked: a night that is run again repeats itself.
    fits, scales
        The fits and the scales they are shown as.
    solved
        The fits' items (`results.solve_fit_items`), computed and persisted: read once, or twice where a reference has
        too few of them.
    items
        The `items` table.
    linking, rescore
        Configuration.
    sigma
        Temperature of the fits.
    tell
        Told of the event ``link`` for every scale.

    Returns
    -------
    links
        By scale.
    complaints
        What must not be published: established scales with too few anchors, one sentence each. Their links are what was
        found nevertheless, for `run_scales`.

    Raises
    ------
    InputError
        A run of ``[linking.reference]`` is not published, or is given for a scale that the run or this one lacks.
    """
    alone = {name: standard_gauge(ordinary_abilities(fits[source], rescore)) for name, source in scales.fitted.items()}
    if linking.method == "off":
        return {name: ScaleLink(gauge, 1.0, 0.0) for name, gauge in alone.items()}, []
    earlier, origins = earlier_runs(warehouse, scored_on, linking, list(scales.fitted))
    links = {}
    for name in (name for name in alone if name not in origins):
        links[name] = own_scale(alone[name], run_id)
        tell("link", scale=name, reference=run_id, own=True)
    reader = ItemReader(warehouse, earlier, fits, scales, solved, items, linking, rescore, sigma)
    by_items, complaints = link_by_items(reader, run_id, origins, tell)
    return links | by_items, list(complaints.values())


def link_by_items(
    reader: ItemReader, run_id: str, origins: Mapping[str, Origin], tell: Tell, may_begin: bool = True
) -> tuple[dict[str, ScaleLink], dict[str, str]]:
    """Link scales to their origins by items.

    Parameters
    ----------
    reader
        Of the run that is linked.
    run_id
        This run.
    origins
        By scale.
    tell
        Told of the event ``link`` for every scale.
    may_begin
        Whether a scale that is not established may begin with this run where the items of its reference cannot hold it.

    Returns
    -------
    links, complaints
        By scale; see `link_scales`.
    """
    fits, scales, linking = reader.fits, reader.scales, reader.linking
    found = reader.common({name: origin.reference for name, origin in origins.items()})
    thin = [name for name in origins if not _rests_on_reference(found[name], fits[scales.fitted[name]], linking)]
    other = reader.common({name: origins[name].nearest for name in thin if origins[name].is_established})
    links: dict[str, ScaleLink] = {}
    complaints: dict[str, str] = {}
    for name, origin in origins.items():
        gauge = standard_gauge(ordinary_abilities(fits[scales.fitted[name]], reader.rescore))
        best, run = found[name], origin.reference
        if name in other and other[name].n_anchors > best.n_anchors:
            best, run = other[name], origin.nearest
        if best.n_anchors < linking.min_anchors:
            begun = origin.is_established or name in linking.reference or best.usable >= linking.min_anchors
            if may_begin and not begun:
                # Items that tell nothing of a scale cannot hold it: it has not begun yet.
                links[name] = own_scale(gauge, run_id)
                tell("link", scale=name, reference=run_id, own=True, instead_of=run, usable_items=best.usable)
                continue
            complaints[name] = _complaint(name, origin, found[name], other.get(name), linking.min_anchors)
        links[name] = _linked(gauge, best, origin.reference, run)
        shown = links[name]
        tell(
            "link",
            scale=name,
            reference=origin.reference,
            linked_to=run,
            slope=shown.slope,
            intercept=shown.intercept,
            anchors=shown.n_anchors,
            drifted=shown.n_drifted,
        )
    return links, complaints


def gate(complaints: Sequence[str]) -> None:
    """Refuse to publish scales that cannot be linked.

    Raises
    ------
    GateError
        There are any; says what to do.
    """
    if complaints:
        more = f" (and {len(complaints) - 3} more)" if len(complaints) > 3 else ""
        raise GateError(
            f"{'; '.join(complaints[:3])}{more}: abilities could not be compared with those of earlier nights, nothing "
            'published; name another run of the scale in [linking.reference] ("new" begins the scale anew), lower '
            'linking.min_anchors, or set linking.method = "off"'
        )


def reference_runs(warehouse: Warehouse) -> set[str]:
    """Return the runs whose item parameters later links rest on: what a retention policy must keep."""
    used = warehouse.read("run_scales").select("reference_run_id").where("reference_run_id IS NOT NULL").distinct()
    return {row[0] for row in used.collect()}


# ------------------------------------------------------------------------------------------------ which run
def earlier_runs(
    warehouse: Warehouse,
    scored_on: dt.date,
    linking: LinkingConfig,
    names: Sequence[str],
    beside: Collection[dt.date] = (),
) -> tuple[dict[str, EarlierRun], dict[str, Origin]]:
    """Return the published runs of other days, and the origin of every scale that has one.

    The nearest run is the one of the nearest day, the earlier of two. The reference is the one given in the
    configuration, else the one that the nearest run has. Only where no run of the scale was ever linked (an earlier
    version made them, or linking was off) the nearest run itself becomes the reference: its scale is what readers see.

    Parameters
    ----------
    warehouse
        Where.
    scored_on
        The day that is scored.
    linking
        Configuration.
    names
        The scales of the run.
    beside
        Days that are scored together with it: their runs are not asked either.

    Raises
    ------
    InputError
        A run named in the configuration is not published, or a scale is not there.
    """
    published = {
        run.run_id: EarlierRun(run.scored_on, run.sigma or 1.0)
        for run in all_runs(warehouse)
        if run.status == "published"
    }
    today = {scored_on, *beside}
    others = {run_id: run for run_id, run in published.items() if run.scored_on not in today}
    origins = _nearest(scales_of(warehouse, others), others, scored_on, set(names))
    for name, run_id in linking.reference.items():
        if name not in names:
            raise InputError(f"linking.reference.{name}: there is no such scale; there are {', '.join(names[:10])}")
        if run_id == NEW:
            origins.pop(name, None)
        elif run_id not in published:
            raise InputError(f"linking.reference.{name}: run {run_id} is not published")
        else:
            near = origins.get(name)
            origins[name] = Origin(run_id, near.nearest if near is not None and near.reference == run_id else run_id)
    named = {run_id: published[run_id] for run_id in linking.reference.values() if run_id in published}
    return others | named, origins


def _nearest(
    rows: Sequence[Mapping[str, Any]], runs: Mapping[str, EarlierRun], scored_on: dt.date, names: Collection[str]
) -> dict[str, Origin]:
    """Return the origin of every scale: of its linked runs the nearest, else of all."""
    best: dict[str, tuple[tuple[bool, int, bool, str], Origin]] = {}
    for row in rows:
        name, run_id, reference = row["scale"], row["run_id"], row["reference_run_id"]
        if name not in names:
            continue
        day = runs[run_id].scored_on
        order = (reference is None, abs((day - scored_on).days), day > scored_on, run_id)
        if name not in best or order < best[name][0]:
            best[name] = order, Origin(reference or run_id, run_id)
    return {name: origin for name, (_, origin) in best.items()}


def _rests_on_reference(found: _Common, fit: ScaleFit, linking: LinkingConfig) -> bool:
    enough = found.n_anchors >= linking.min_anchors
    return enough and found.shared >= LEAST_SHARE * fit.counts.n_items


# ------------------------------------------------------------------------------------------------ what is common
class ItemReader:
    """Reads what scales of a run have in common with others: one job for all items, one for all distributions.

    Parameters are those of `link_scales`, and the runs that may be linked to; `beside` holds, by identifier, those of
    them that are scored in the same job and are not written yet: their fits' items are in `solved`.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        earlier: Mapping[str, EarlierRun],
        fits: Mapping[str, ScaleFit],
        scales: Scales,
        solved: DataFrame,
        items: DataFrame,
        linking: LinkingConfig,
        rescore: RescoreConfig,
        sigma: float,
        beside: Mapping[str, RunFits] | None = None,
    ) -> None:
        self.beside = beside or {}
        self.warehouse, self.earlier, self.fits, self.scales = warehouse, earlier, fits, scales
        self.solved, self.items, self.linking, self.rescore, self.sigma = solved, items, linking, rescore, sigma

    def common(self, wanted: Mapping[str, str]) -> dict[str, _Common]:
        """Link scales to one earlier run each.

        Parameters
        ----------
        wanted
            The run of each scale. A run that is gone has nothing in common with anything.
        """
        there = {name: run for name, run in wanted.items() if run in self.earlier or run in self.beside}
        found = dict.fromkeys(wanted, _NOTHING)
        if not there:
            return found
        description = "cbmm-spark: read the items of earlier runs to link to"
        with job_description(self.warehouse.spark, description):
            rows = self._items(there)
            distributions = self._abilities(there)
        for name, table in rows.items():
            if name in distributions:
                found[name] = self._link(name, table, distributions[name], self._sigma_of(there[name]))
        return found

    def _sigma_of(self, run_id: str) -> float:
        return self.sigma if run_id in self.beside else self.earlier[run_id].sigma

    def _of(self, table: str, wanted: Mapping[str, str]) -> DataFrame:
        """The rows of earlier runs, each scale of its own run."""
        written = {name: run for name, run in wanted.items() if run not in self.beside}
        days = sorted({self.earlier[run].scored_on for run in written.values()})
        pairs = self.warehouse.spark.createDataFrame(sorted(written.items()), "scale string, run_id string")
        rows = self.warehouse.read(table).where(F.col("scored_on").isin(days))
        return rows.join(F.broadcast(pairs), ["scale", "run_id"], "left_semi")

    def _items(self, wanted: Mapping[str, str]) -> dict[str, pa.Table]:
        """Every item of the earlier runs that has parameters, beside tonight's where it has, by scale."""
        fitted = self.scales.fitted
        names = [(self.fits[source].name, name) for name, source in fitted.items() if name in wanted]
        shown_as = self.warehouse.spark.createDataFrame(names, "fit string, scale string")
        tonight = self.solved.join(F.broadcast(shown_as), "fit").select(
            "scale", "benchmark", "item_index", "a", "b", F.col("n_models").alias("n")
        )
        then = (
            self._of("item_parameters", wanted)
            .where("easiness IS NOT NULL")
            .join(self.items.select("benchmark", "item_id", "item_index"), ["benchmark", "item_id"])
            .select("scale", "benchmark", "item_index", "discrimination", "easiness", "n_models")
        )
        unwritten = self._unwritten(wanted)
        if unwritten:
            then = then.unionByName(self._shown(unwritten))
        joined = then.join(tonight, ["scale", "benchmark", "item_index"], "left").toArrow()
        table = joined.sort_by([(key, "ascending") for key in ("scale", "benchmark", "item_index")])
        return {scale: part for (scale,), part in groups(table, "scale")}

    def _unwritten(self, wanted: Mapping[str, str]) -> list[tuple[str, ScaleFit, Gauge]]:
        """The scales that are linked to a run of the same job: name, its fit there and how that is published."""
        runs = {name: self.beside[run] for name, run in wanted.items() if run in self.beside}
        return [(name, run.fit_of(name), run.links[name].gauge) for name, run in runs.items()]

    def _shown(self, scales: Sequence[tuple[str, ScaleFit, Gauge]]) -> DataFrame:
        """The items of such scales, as they will be written."""
        rows = [(fit.name, name, gauge.shift, gauge.stretch) for name, fit, gauge in scales]
        shown_as = self.warehouse.spark.createDataFrame(rows, "fit string, scale string, shift double, stretch double")
        shown = on_scale(self.solved, shown_as, self.sigma).where("easiness IS NOT NULL")
        return shown.select("scale", "benchmark", "item_index", "discrimination", "easiness", "n_models")

    def _abilities(self, wanted: Mapping[str, str]) -> dict[str, F64]:
        """The distribution of ability in the earlier runs as quantiles, by scale: of models of status ok, if any."""
        probabilities = F.array(*[F.lit(float(p)) for p in PROBABILITIES])
        ability = F.col("ability")
        rows = (
            self._of("abilities", wanted)
            .where(ability.isNotNull())
            .groupBy("scale")
            .agg(
                F.coalesce(
                    F.when(
                        F.count_if(F.col("status") == "ok") > 1,
                        F.percentile(F.when(F.col("status") == "ok", ability), probabilities),
                    ),
                    F.percentile(ability, probabilities),
                ).alias("q")
            )
        )
        found = {row["scale"]: np.array(row["q"], dtype=np.float64) for row in rows.collect()}
        for name, fit, gauge in self._unwritten(wanted):
            found[name] = quantiles(gauge.abilities(ordinary_abilities(fit, self.rescore)))
        return found

    def _link(self, name: str, table: pa.Table, theta: F64, sigma: float) -> _Common:
        """Link one scale: the rows are the earlier run's items, null on tonight's side where tonight lacks them."""
        least = float(self.rescore.few_responses)
        a, b, n = (_floats(table, column) for column in ("discrimination", "easiness", "n_models"))
        reference = Bank(a / sigma, b / sigma, n, theta)
        if not np.ptp(theta) > 0.0:
            return _NOTHING
        usable = int(reference.is_usable(least).sum())
        both = np.flatnonzero(np.isfinite(_floats(table, "b")))
        kept = table.take(pa.array(both))
        old = Bank(reference.a[both], reference.b[both], reference.n[both], theta)
        own = ordinary_abilities(self.fits[self.scales.fitted[name]], self.rescore)
        new = Bank(_floats(kept, "a"), _floats(kept, "b"), _floats(kept, "n"), quantiles(own))
        link = None
        if both.size and np.ptp(new.theta) > 0.0 and self.linking.method != "off":
            link = link_items(old, new, self.linking.method, least)
        numbers = kept["item_index"].to_numpy().astype(np.int64)
        return _Common(link, usable, int(both.size), kept["benchmark"].combine_chunks(), numbers)


def _floats(table: pa.Table, column: str) -> F64:
    """A column as floats, NaN where null."""
    return np.asarray(table[column].cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


# ------------------------------------------------------------------------------------------------ results
def own_scale(gauge: Gauge, run_id: str) -> ScaleLink:
    """Return how a run shows a scale whose reference it is."""
    return ScaleLink(gauge, 1.0, 0.0, reference_run_id=run_id)


def beyond(alone: Gauge, published: Gauge) -> tuple[float, float]:
    """Return slope and intercept that lead from the standardised to the published scale."""
    step = alone.inverse().then(published)
    return 1.0 / step.stretch, -step.shift / step.stretch


def _linked(alone: Gauge, found: _Common, reference: str, run: str) -> ScaleLink:
    """The published gauge and its facts; the standardised one where there is no link at all."""
    if found.link is None:
        return ScaleLink(alone, None, None, reference, run, 0, 0)
    link = found.link
    names = found.benchmark.to_numpy(zero_copy_only=False)
    drifted = {
        str(benchmark): found.item_index[link.drifted & (names == benchmark)].astype(np.int32)
        for benchmark in np.unique(names[link.drifted].astype(str))
    }
    slope, intercept = beyond(alone, link.gauge)
    counts = int(link.anchors.sum()), int(link.drifted.sum())
    return ScaleLink(link.gauge, slope, intercept, reference, run, *counts, drifted)


def _complaint(name: str, origin: Origin, found: _Common, other: _Common | None, least: int) -> str:
    def said(run: str, common: _Common) -> str:
        return f"{common.n_anchors} stable items with run {run} ({common.shared} in common)"

    also = "" if other is None else f" and {said(origin.nearest, other)}"
    return f"scale {name!r} has {said(origin.reference, found)}{also}, linking.min_anchors = {least}"
