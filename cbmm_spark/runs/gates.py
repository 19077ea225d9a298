"""The gate before publishing: tonight against the last published night, as pure functions on two summaries.

`compare_runs` makes the summaries with two small Spark jobs; `verdict_of` decides. `docs/decisions/0044-gates.md` says
what is compared with what.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from cbmm_spark.config.schema import GateActions, GatesConfig
from cbmm_spark.errors import GateError
from cbmm_spark.runs.table import Run, RunKey, is_of_keys, last_published, scales_of
from cbmm_spark.tables import Warehouse

_SHOWN = 3
"""Findings named in a message."""


@dataclass(frozen=True)
class ScaleSummary:
    """What a night says about one scale.

    Attributes
    ----------
    models, items, responses
        How many.
    coverage
        Mean share of the scale's items that a model with answers has answered.
    unread
        Models of status ok without an ability.
    """

    models: int
    items: int
    responses: int
    coverage: float = 0.0
    unread: int = 0


@dataclass(frozen=True)
class Movement:
    """How abilities of one scale moved.

    Attributes
    ----------
    common
        Models of status ok in both nights.
    moved
        How many of these moved by more than the configured number of standard errors.
    linked
        Whether both nights are on one linked scale. Where they are not, each is standardised over its own models, and
        the earlier night is brought to the mean and spread that the common models have tonight first.
    """

    common: int
    moved: int
    linked: bool


@dataclass(frozen=True)
class Comparison:
    """Two nights side by side; `earlier` is empty where there is none."""

    tonight: Mapping[str, ScaleSummary]
    earlier: Mapping[str, ScaleSummary] = field(default_factory=dict)
    movements: Mapping[str, Movement] = field(default_factory=dict)
    earlier_run: Run | None = None


@dataclass(frozen=True)
class Finding:
    """A limit that was crossed.

    Attributes
    ----------
    gate
        Which gate, as in `[gates.actions]`.
    scale
        Where.
    value, limit
        What was found, and what is allowed.
    action
        ``fail`` or ``warn``.
    sentence
        For a person.
    """

    gate: str
    scale: str
    value: float
    limit: float
    action: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What the gates found."""

    findings: tuple[Finding, ...]
    comparison: Comparison
    accepted: bool = False

    @property
    def failures(self) -> list[Finding]:
        """Findings that stop publishing, unless they are accepted."""
        return [finding for finding in self.findings if finding.action == "fail"]

    @property
    def warnings(self) -> list[str]:
        """Sentences of what is published all the same."""
        return [f.sentence for f in self.findings if f.action == "warn" or self.accepted]

    def as_json(self) -> str:
        """Return what is kept in `runs`: what was found, and the largest figure of every kind over all scales."""
        facts = self.facts()
        return json.dumps(
            {
                "compared_with": facts["compared_with"],
                "accepted": self.accepted,
                "findings": [asdict(finding) for finding in self.findings],
                "largest": facts["largest"],
            },
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
        )

    def facts(self) -> dict[str, Any]:
        """Return the event ``gates``: with which run, what was found, and the largest figure of every kind."""
        earlier = self.comparison.earlier_run
        per_scale = figures(self.comparison)
        largest = {}
        for name in ("drop_models", "drop_items", "drop_responses", "coverage_drop", "moved"):
            known = [(each[name], scale) for scale, each in per_scale.items() if each.get(name) is not None]
            if known:
                value, scale = max(known)
                largest[name] = {"value": value, "scale": scale}
        return {
            "compared_with": earlier.run_id if earlier else None,
            "note": None if earlier else "there is no earlier night to compare with",
            "failed": [finding.sentence for finding in self.failures],
            "warned": [finding.sentence for finding in self.findings if finding.action == "warn"],
            "accepted": self.accepted,
            "largest": largest,
        }

    def enforce(self) -> None:
        """Refuse to publish.

        Raises
        ------
        GateError
            A gate failed and is not accepted.
        """
        failures = self.failures
        if not failures or self.accepted:
            return
        more = f" (and {len(failures) - _SHOWN} more)" if len(failures) > _SHOWN else ""
        raise GateError(
            f"{'; '.join(finding.sentence for finding in failures[:_SHOWN])}{more}: nothing published, the last night "
            "stays; if this is as it should be, `cbmm-spark rescore --accept-gates` publishes it; or change [gates]"
        )


def figures(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Return by scale what the limits are about; None where there is nothing to compare with."""
    found: dict[str, dict[str, Any]] = {}
    for name, tonight in comparison.tonight.items():
        earlier, movement = comparison.earlier.get(name), comparison.movements.get(name)
        found[name] = {
            "drop_models": None if earlier is None else drop(earlier.models, tonight.models),
            "drop_items": None if earlier is None else drop(earlier.items, tonight.items),
            "drop_responses": None if earlier is None else drop(earlier.responses, tonight.responses),
            "coverage_drop": None if earlier is None else max(earlier.coverage - tonight.coverage, 0.0),
            "moved": movement.moved / movement.common if movement is not None and movement.common else None,
            "common_models": None if movement is None else movement.common,
            "linked": None if movement is None else movement.linked,
            "unread": tonight.unread,
        }
    return found


def drop(before: int, after: int) -> float:
    """Return by which share of what was there before a number fell; 0 where it did not."""
    return max(before - after, 0) / before if before else 0.0


def verdict_of(comparison: Comparison, config: GatesConfig, accepted: bool = False) -> Verdict:
    """Hold a comparison against the limits.

    Parameters
    ----------
    comparison
        The two nights.
    config
        Limits, and what to do where one is crossed.
    accepted
        Whether failing gates are known and accepted.
    """
    limits = {
        "models": ("drop_models", config.max_drop_models, "has {:.1%} fewer models"),
        "items": ("drop_items", config.max_drop_items, "has {:.1%} fewer items"),
        "responses": ("drop_responses", config.max_drop_responses, "has {:.1%} fewer responses"),
        "coverage": ("coverage_drop", config.max_coverage_drop, "lost {:.1%} of coverage"),
        "moved": ("moved", config.max_moved, f"has {{:.1%}} of its models moved by over {config.moved_se:g} SE"),
    }
    per_scale = figures(comparison)
    found: list[Finding] = []
    for gate, (figure, limit, text) in limits.items():
        for scale, values in per_scale.items():
            value = values[figure]
            if value is not None and value > limit:
                sentence = f"gate {gate}: scale {scale!r} {text.format(value)} since {_named(comparison)}, at most "
                found.append(_finding(gate, scale, value, limit, f"{sentence}{limit:.1%} allowed", config.actions))
    for scale in sorted(comparison.earlier.keys() - comparison.tonight.keys()):
        sentence = f"gate scales: scale {scale!r} of {_named(comparison)} is gone"
        found.append(_finding("scales", scale, 1.0, 0.0, sentence, config.actions))
    for scale, summary in comparison.tonight.items():
        if summary.unread:
            sentence = f"gate nulls: {summary.unread} models of scale {scale!r} have status ok and no ability"
            found.append(_finding("nulls", scale, float(summary.unread), 0.0, sentence, config.actions))
    return Verdict(tuple(each for each in found if each.action != "ignore"), comparison, accepted)


def _finding(gate: str, scale: str, value: float, limit: float, sentence: str, actions: GateActions) -> Finding:
    return Finding(gate, scale, value, limit, getattr(actions, gate), sentence)


def _named(comparison: Comparison) -> str:
    run = comparison.earlier_run
    return f"run {run.run_id} of {run.scored_on}" if run else "the earlier night"


# ------------------------------------------------------------------------------------------------ on Spark
def compare_runs(warehouse: Warehouse, key: RunKey, moved_se: float) -> Comparison:
    """Summarise a run as written and the last published run of an earlier day, in two jobs.

    Parameters
    ----------
    warehouse
        Where both are.
    key
        Tonight's run; its `abilities` and `run_scales` are written.
    moved_se
        Number of standard errors above which a model has moved.

    Returns
    -------
    Comparison
        Runs of the same day are not asked: a night that is run again to repair it is held against the day before, as
        the first time.
    """
    earlier = last_published(warehouse, key.scored_on)
    run_ids = [key.run_id] if earlier is None else [key.run_id, earlier.run_id]
    scales = _scale_rows(warehouse, run_ids)
    linked = [] if earlier is None else _linked(scales[key.run_id], scales[earlier.run_id], earlier.run_id)
    rows = _ability_summaries(warehouse, key, earlier, linked, moved_se)

    def summaries(run_id: str, suffix: str) -> dict[str, ScaleSummary]:
        found = {}
        for scale, facts in scales[run_id].items():
            row = rows.get(scale, {})
            found[scale] = ScaleSummary(
                facts["n_models"],
                facts["n_items"],
                facts["n_responses"],
                row.get(f"coverage{suffix}") or 0.0,
                row.get(f"unread{suffix}") or 0,
            )
        return found

    tonight = summaries(key.run_id, "")
    if earlier is None:
        return Comparison(tonight)
    movements = {
        scale: Movement(row["common"], row["moved"], scale in linked)
        for scale, row in rows.items()
        if scale in scales[key.run_id] and scale in scales[earlier.run_id]
    }
    return Comparison(tonight, summaries(earlier.run_id, "_before"), movements, earlier)


def judge_alone(warehouse: Warehouse, keys: Sequence[RunKey], config: GatesConfig) -> dict[str, Verdict]:
    """Judge runs as written without an earlier night: whether abilities are there (gate ``nulls``); one job for all.

    Parameters
    ----------
    warehouse
        Where they are.
    keys
        The runs; their `abilities` are written.
    config
        What to do.

    Returns
    -------
    dict
        Verdicts by run.
    """
    unread = (F.col("status") == "ok") & F.col("ability").isNull()
    rows = warehouse.read("abilities").where(is_of_keys(keys)).groupBy("run_id", "scale")
    counted = rows.agg(F.count("*").alias("models"), F.count_if(unread).alias("unread")).collect()  # one a scale
    found: dict[str, dict[str, ScaleSummary]] = {key.run_id: {} for key in keys}
    for row in counted:
        found[row["run_id"]][row["scale"]] = ScaleSummary(row["models"], 0, 0, unread=row["unread"])
    return {run_id: verdict_of(Comparison(scales), config) for run_id, scales in found.items()}


def _scale_rows(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return rows of `run_scales` by run and scale."""
    found: dict[str, dict[str, dict[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in scales_of(warehouse, run_ids):  # one a scale
        found[row["run_id"]][row["scale"]] = row
    return found


def _linked(
    tonight: Mapping[str, Mapping[str, Any]], earlier: Mapping[str, Mapping[str, Any]], earlier_run: str
) -> list[str]:
    """Return the scales on which both nights are linked to one reference."""
    found = []
    for scale in tonight.keys() & earlier.keys():
        now, before = tonight[scale], earlier[scale]
        reference = now.get("reference_run_id")
        same = reference in (None, earlier_run, before.get("reference_run_id"))
        is_reference = reference == earlier_run and reference is not None
        if now["link_slope"] is not None and same and (before["link_slope"] is not None or is_reference):
            found.append(scale)
    return sorted(found)


def _ability_summaries(
    warehouse: Warehouse, key: RunKey, earlier: Run | None, linked: Iterable[str], moved_se: float
) -> dict[str, dict[str, Any]]:
    abilities = warehouse.read("abilities")
    columns = ("status", "ability", "ability_se", "coverage", "n_items")
    tonight = abilities.where(is_of_keys([key])).select("scale", "model_id", *columns)
    if earlier is None:
        rows = tonight.groupBy("scale").agg(*_one_night(""))
    else:
        before = abilities.where(is_of_keys([RunKey(earlier.run_id, earlier.scored_on)]))
        before = before.select("scale", "model_id", *(F.col(name).alias(f"{name}_before") for name in columns))
        rows = _movements(tonight.join(before, ["scale", "model_id"], "full_outer"), linked, moved_se)
    return {row["scale"]: row.asDict() for row in rows.collect()}  # one a scale


def _one_night(suffix: str) -> list[Column]:
    coverage, items = F.col(f"coverage{suffix}"), F.col(f"n_items{suffix}")
    unread = (F.col(f"status{suffix}") == "ok") & F.col(f"ability{suffix}").isNull()
    return [
        F.avg(F.when(items > 0, coverage)).alias(f"coverage{suffix}"),
        F.count_if(unread).alias(f"unread{suffix}"),
    ]


def _movements(joined: DataFrame, linked: Iterable[str], moved_se: float) -> DataFrame:
    """Return by scale both summaries and how many models are common and moved."""
    both = (F.col("status") == "ok") & (F.col("status_before") == "ok")
    both &= F.col("ability").isNotNull() & F.col("ability_before").isNotNull()
    scale = Window.partitionBy("scale")

    def over(function: Any, name: str) -> Column:
        return function(F.when(both, F.col(name))).over(scale)

    known = F.col("scale").isin(*linked) if linked else F.lit(False)
    spread, spread_before = over(F.stddev_pop, "ability"), over(F.stddev_pop, "ability_before")
    # Fewer than two common models, or all alike: there is no spread to go by.
    stretch = F.when(known | ~(spread_before > 0) | ~(spread > 0), F.lit(1.0)).otherwise(spread / spread_before)
    shift = F.when(known, F.lit(0.0)).otherwise(
        over(F.avg, "ability") - F.col("stretch") * over(F.avg, "ability_before")
    )
    placed = joined.withColumn("stretch", stretch).withColumn("shift", shift)
    distance = F.abs(F.col("ability") - F.col("stretch") * F.col("ability_before") - F.col("shift"))
    error = F.greatest(F.col("ability_se"), F.col("stretch") * F.col("ability_se_before"))
    return placed.groupBy("scale").agg(
        *_one_night(""),
        *_one_night("_before"),
        F.count_if(both).alias("common"),
        F.count_if(both & (distance > moved_se * error)).alias("moved"),
    )
