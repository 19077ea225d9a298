"""Putting the dates of a history on one reference scale.

The models of an earlier date are among those of the reference, mostly with the very same answers: where that is so, the
models tell the change of scale, and better than the items can, as the first dates of a leaderboard have too few models
to know an item by. Where the answers are others, items tell it, as for a night. docs/decisions/0047 has the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import LinkingConfig, RescoreConfig
from cbmm_spark.fit.scales import Scales
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.linking import link_models
from cbmm_spark.kernels.model import F64, Gauge, Index, standard_gauge
from cbmm_spark.linking.linking import (
    EarlierRun,
    ItemReader,
    Origin,
    Tell,
    beyond,
    earlier_runs,
    link_by_items,
    own_scale,
)
from cbmm_spark.results.published_scale import ScaleLink, model_statuses, on_published_scale, ordinary_abilities
from cbmm_spark.results.results import RunFits
from cbmm_spark.spark.scoped import job_description
from cbmm_spark.tables import Warehouse
from cbmm_spark.tables.arrow_groups import groups


@dataclass(frozen=True)
class Standing:
    """The models of one scale of one run whose ability can be read as it stands (status ``ok``).

    Attributes
    ----------
    models
        Positions among all models, increasing, shape (N,).
    ability
        Shape (N,).
    items, accuracy
        Answered items and mean score, by which answers are told to be the same, shape (N,).
    """

    models: Index
    ability: F64
    items: F64
    accuracy: F64


@dataclass(frozen=True)
class LinkedHistory:
    """What `link_history` returns.

    Attributes
    ----------
    runs
        Oldest first, each with its links and without the scales that have none.
    left_out
        By run and scale why it cannot be put on the reference scale.
    """

    runs: list[RunFits]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)


def link_history(
    warehouse: Warehouse,
    runs: Sequence[RunFits],
    solved: DataFrame,
    items: DataFrame,
    linking: LinkingConfig,
    rescore: RescoreConfig,
    sigma: float,
    tell: Tell,
) -> LinkedHistory:
    """Put every scale of all runs on one reference scale.

    The reference is the one that the nearest published run of another day has, or that is given in the configuration;
    without any, the newest of the runs that has the scale, which stays standardised.

    Parameters
    ----------
    warehouse
        Holds the earlier runs; those of the days of `runs` are not asked.
    runs
        At least one, oldest first.
    solved
        The items of all fits (`results.solve_fit_items`), under the fits' names. Read only where items are needed.
    items
        The `items` table.
    linking, rescore
        Configuration.
    sigma
        Temperature of the fits.
    tell
        Told of the event ``link`` for every scale that is linked by items, and once of how many were by models.

    Raises
    ------
    InputError
        As `linking.link_scales`.
    """
    if linking.method == "off":
        return LinkedHistory([_standardised(run, rescore) for run in runs])
    days = [run.key.scored_on for run in runs]
    newest = {scale: run for run in runs for scale in run.scales.fitted}
    earlier, origins = earlier_runs(warehouse, days[-1], linking, list(newest), beside=days)
    own: dict[str, RunFits] = {}
    for scale, run in newest.items():
        if scale not in origins:
            run_id = run.key.run_id
            origins[scale] = Origin(run_id, run_id)
            before = own.get(run_id, run)
            own[run_id] = replace(before, links={**before.links, scale: own_scale(_alone(run, scale, rescore), run_id)})
    standings = _published_standings(warehouse, earlier, origins)
    for run_id, run in own.items():
        standings |= {(scale, run_id): shown_standing(run, scale, rescore) for scale in run.links}
    linked, left_out, by_models = [], {}, 0
    for run in runs:
        links = dict(own[run.key.run_id].links) if run.key.run_id in own else {}
        others = {scale: origins[scale] for scale in run.scales.fitted if scale not in links}
        found = links_by_models(run, others, standings, rescore)
        by_models += len(found)
        links |= found
        rest = {scale: origin for scale, origin in others.items() if scale not in found}
        if rest:
            reader = ItemReader(
                warehouse, earlier, run.fits, run.scales, solved, items, linking, rescore, sigma, beside=own
            )
            by_items, complaints = link_by_items(reader, run.key.run_id, rest, tell, may_begin=False)
            links |= {scale: link for scale, link in by_items.items() if scale not in complaints}
            if complaints:
                left_out[run.key.run_id] = complaints
        linked.append(only(replace(run, links=links), links))
    tell("linked", by_models=by_models, references=len({origin.reference for origin in origins.values()}))
    return LinkedHistory(linked, left_out)


def links_by_models(
    run: RunFits,
    origins: Mapping[str, Origin],
    standings: Mapping[tuple[str, str], Standing],
    config: RescoreConfig,
) -> dict[str, ScaleLink]:
    """Return the links of those scales that share enough unchanged models with the reference or a run on its scale."""
    links = {}
    for scale, origin in origins.items():
        fit = run.fit_of(scale)
        own = _standing(fit, fit.theta, config)
        for target in dict.fromkeys((origin.reference, origin.nearest)):
            there = standings.get((scale, target))
            here, other = (own, there) if there is None else unchanged(own, there)
            gauge = None if other is None else link_models(other.ability, here.ability)
            if gauge is not None:
                slope, intercept = beyond(_alone(run, scale, config), gauge)
                links[scale] = ScaleLink(
                    gauge, slope, intercept, origin.reference, target, n_anchor_models=int(here.models.size)
                )
                break
    return links


def unchanged(one: Standing, other: Standing) -> tuple[Standing, Standing]:
    """Return both standings cut down to the models of both whose answers are the same.

    As many answered items and the same mean score: two sets of answers that differ may have both, but hardly will.
    """
    _, a, b = np.intersect1d(one.models, other.models, assume_unique=True, return_indices=True)
    same = (one.items[a] == other.items[b]) & np.isclose(one.accuracy[a], other.accuracy[b], rtol=1e-12, atol=0.0)
    return _at(one, a[same]), _at(other, b[same])


def only(run: RunFits, names: Collection[str]) -> RunFits:
    """Return a run with some of its scales; fits that none of them shows are gone."""
    fitted = {name: source for name, source in run.scales.fitted.items() if name in names}
    benchmarks = {name: run.scales.benchmarks[name] for name in fitted}
    fits = {source: run.fits[source] for source in dict.fromkeys(fitted.values())}
    return replace(run, scales=Scales(benchmarks, fitted), fits=fits)


# ------------------------------------------------------------------------------------------------ standings
def shown_standing(run: RunFits, scale: str, config: RescoreConfig) -> Standing:
    """Return the standing of a linked scale, on its published scale."""
    fit = run.fit_of(scale)
    shown = on_published_scale(fit, config, run.links[scale].gauge)
    return _standing(fit, shown.ability, config)


def _standing(fit: ScaleFit, ability: F64, config: RescoreConfig) -> Standing:
    ok = model_statuses(fit, config) == "ok"
    counts = fit.counts
    accuracy = counts.successes[ok] / counts.attempts[ok]
    return Standing(fit.models[ok], ability[ok], counts.items[ok].astype(np.float64), accuracy)


def _at(standing: Standing, places: Index) -> Standing:
    return Standing(
        standing.models[places], standing.ability[places], standing.items[places], standing.accuracy[places]
    )


def _published_standings(
    warehouse: Warehouse, earlier: Mapping[str, EarlierRun], origins: Mapping[str, Origin]
) -> dict[tuple[str, str], Standing]:
    """Return the standings of earlier runs that scales may be linked to, by scale and run: one job."""
    pairs = sorted({(scale, run) for scale, origin in origins.items() for run in origin if run in earlier})
    if not pairs:
        return {}
    spark = warehouse.spark
    wanted = spark.createDataFrame(pairs, "scale string, run_id string")
    days = sorted({earlier[run].scored_on for _, run in pairs})
    rows = warehouse.read("abilities").where(F.col("scored_on").isin(days) & (F.col("status") == "ok"))
    found = (
        rows.where("ability IS NOT NULL")
        .join(F.broadcast(wanted), ["scale", "run_id"], "left_semi")
        .join(warehouse.read("models").select("model_id", "model_index"), "model_id")
        .select("scale", "run_id", "model_index", "ability", F.col("n_items").cast("double"), "accuracy")
    )
    with job_description(spark, "cbmm-spark: read the abilities of earlier runs to link to"):
        table = found.toArrow().sort_by([(key, "ascending") for key in ("scale", "run_id", "model_index")])
    standings = {}
    for (scale, run), part in groups(table, "scale", "run_id"):
        index = part["model_index"].to_numpy().astype(np.int64) - 1
        ability, items, accuracy = (part[name].to_numpy() for name in ("ability", "n_items", "accuracy"))
        standings[scale, run] = Standing(index, ability, items, accuracy)
    return standings


def _alone(run: RunFits, scale: str, config: RescoreConfig) -> Gauge:
    return standard_gauge(ordinary_abilities(run.fit_of(scale), config))


def _standardised(run: RunFits, config: RescoreConfig) -> RunFits:
    links = {scale: ScaleLink(_alone(run, scale, config), 1.0, 0.0) for scale in run.scales.fitted}
    return replace(run, links=links)
