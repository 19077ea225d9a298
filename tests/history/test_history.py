"""Dates, plans, portions, links and stale days: what a backfill decides before and after Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cbmm_spark.config.schema import PackConfig, RescoreConfig, ScalesConfig
from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.fit.scales import Scales
from cbmm_spark.history.blocks import PASS_NUMBERS, portions
from cbmm_spark.history.dates import MOST_DATES, dates_between, parse_dates
from cbmm_spark.history.fits import History
from cbmm_spark.history.job import BackfillReport
from cbmm_spark.history.link import Standing, links_by_models, only, shown_standing
from cbmm_spark.history.plan import plan_fits
from cbmm_spark.history.stale_days import Change, find_stale
from cbmm_spark.history.states import Evaluated, check_dates, small_enough
from cbmm_spark.kernels.alternation import ScaleFit
from cbmm_spark.kernels.in_process import fit_blocks
from cbmm_spark.kernels.linking import LEAST_MODELS
from cbmm_spark.kernels.model import standard_gauge
from cbmm_spark.linking.linking import Origin, own_scale
from cbmm_spark.results.published_scale import on_published_scale
from cbmm_spark.results.results import RunFits
from cbmm_spark.runs.table import RunKey
from tests.kernels.layouts import blocks_of, drawn


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def days(*texts: str) -> list[dt.date]:
    return [day(text) for text in texts]


# ------------------------------------------------------------------------------------------------ dates
CHANGES = days("2026-01-03", "2026-01-31", "2026-03-01")


@pytest.mark.parametrize(
    ("every", "first", "last", "expected"),
    [
        ("day", "2026-02-27", "2026-03-01", days("2026-02-27", "2026-02-28", "2026-03-01")),
        ("week", "2026-01-01", "2026-01-20", days("2026-01-01", "2026-01-08", "2026-01-15", "2026-01-20")),
        ("week", "2026-01-01", "2026-01-08", days("2026-01-01", "2026-01-08")),
        (
            "month",
            "2025-12-31",
            "2026-04-15",
            days("2025-12-31", "2026-01-31", "2026-02-28", "2026-03-31", "2026-04-15"),
        ),
        ("month", "2026-01-15", "2026-02-14", days("2026-01-15", "2026-02-14")),
        ("change", "2026-01-03", "2026-02-28", days("2026-01-03", "2026-01-31")),
        ("change", "2026-01-04", "2026-01-30", []),
        ("day", "2026-01-01", "2026-01-01", days("2026-01-01")),
    ],
)
def test_dates_of_a_history(every: str, first: str, last: str, expected: list[dt.date]) -> None:
    assert dates_between(day(first), day(last), every, CHANGES) == expected  # type: ignore[arg-type]


def test_a_history_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="--from 2026-02-01 is after --to 2026-01-01"):
        dates_between(day("2026-02-01"), day("2026-01-01"), "day", [])


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_a_history_of_mistaken_length_is_refused(every: str) -> None:
    """One response with a date from long ago or far ahead."""
    with pytest.raises(ConfigError, match=r"from 0001-01-01 to 2999-01-01 has more than 5,000 dates.*--from and --to"):
        dates_between(day("0001-01-01"), day("2999-01-01"), every, [])  # type: ignore[arg-type]


FEWEST_TOO_MANY = {"day": "1914-09-24", "week": "1996-11-06", "month": "2317-08-16", "change": "1914-09-24"}


@pytest.mark.parametrize("every", FEWEST_TOO_MANY)
def test_a_history_of_as_many_dates_as_there_may_be_is_not_refused(every: str) -> None:
    """What counts are the dates from the first to the last, not those on which something was ever evaluated."""
    changes = [day("1900-01-01") + dt.timedelta(days=n) for n in range(3 * MOST_DATES)]
    first, last = day("1901-01-15"), day(FEWEST_TOO_MANY[every])
    allowed = dates_between(first, last - dt.timedelta(days=1), every, changes)  # type: ignore[arg-type]
    assert len(allowed) == MOST_DATES
    with pytest.raises(ConfigError, match="more than 5,000 dates"):
        dates_between(first, last, every, changes)  # type: ignore[arg-type]


def test_dates_are_read_from_a_list_in_any_order_and_layout() -> None:
    assert parse_dates("2026-03-01, 2026-01-03\n2026-03-01\n\n", "x") == days("2026-01-03", "2026-03-01")


@pytest.mark.parametrize(("text", "message"), [("2026-13-01", "'2026-13-01' is not a date"), (" \n", "names no date")])
def test_what_is_no_date_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_dates(text, "--dates f")


def test_dates_before_anything_was_evaluated_are_told_apart() -> None:
    evaluated = Evaluated(CHANGES, [5, 6, 7], 0)
    asked = days("2026-01-02", "2026-01-03", "2026-02-01")
    assert check_dates(asked, evaluated) == (asked[1:], asked[:1])
    assert evaluated.after(day("2026-01-03")) == 13
    with pytest.raises(InputError, match="no response was evaluated by 2026-01-02; the first one is of 2026-01-03"):
        check_dates(asked[:1], evaluated)
    # responses without a date count always
    assert check_dates(asked, Evaluated(CHANGES, [5, 6, 7], 1)) == (asked, [])


def test_blocks_are_cut_so_that_every_partition_has_one() -> None:
    assert small_enough(PackConfig(), 500, 2).items_per_block == 250
    assert small_enough(PackConfig(), 500, 100).items_per_block == 64
    assert small_enough(PackConfig(), 1_000_000, 2).items_per_block == PackConfig().items_per_block
    assert small_enough(PackConfig(items_per_block=16), 500, 2).items_per_block == 16


# ------------------------------------------------------------------------------------------------ plan
DATES = days("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04")


def steps(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_a_scale_is_fitted_again_only_when_something_of_it_changed() -> None:
    plan = plan_fits(DATES, {"x": steps(0, 2), "y": steps(1)}, ScalesConfig())
    sources = [planned.source for planned in plan.dates]
    assert sources[0] == {"overall": "2026-01-01 overall"}  # one benchmark: x shows the same fit
    assert plan.dates[0].scales.fitted == {"overall": "overall", "x": "overall"}
    assert sources[1] == {"overall": "2026-01-02 overall", "x": "2026-01-01 overall", "y": "2026-01-02 y"}
    assert sources[2] == {"overall": "2026-01-03 overall", "x": "2026-01-03 x", "y": "2026-01-02 y"}
    assert sources[3] == sources[2]
    assert plan.fits == {
        "2026-01-01 overall": (frozenset("x"), 0),
        "2026-01-02 overall": (frozenset("xy"), 1),
        "2026-01-02 y": (frozenset("y"), 1),
        "2026-01-03 overall": (frozenset("xy"), 2),
        "2026-01-03 x": (frozenset("x"), 2),
    }


def test_scales_without_responses_at_a_date_are_not_there() -> None:
    config = ScalesConfig(overall=False, per_benchmark=False, groups={"g": ("x", "y"), "h": ("y",)})
    plan = plan_fits(DATES, {"x": steps(1), "y": steps(2)}, config)
    assert [(p.number, sorted(p.scales.benchmarks)) for p in plan.dates] == [
        (1, ["g"]),
        (2, ["g", "h"]),
        (3, ["g", "h"]),
    ]
    assert plan.dates[0].scales.benchmarks["g"] == frozenset("x")
    only_h = ScalesConfig(overall=False, per_benchmark=False, groups={"h": ("y",)})
    assert [p.number for p in plan_fits(DATES, {"x": steps(0), "y": steps(2)}, only_h).dates] == [2, 3]


def test_a_group_of_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scales\.groups\.g names"):
        plan_fits(DATES, {"x": steps(0)}, ScalesConfig(groups={"g": ("x", "z")}))


def test_a_pass_is_cut_where_a_partition_would_sum_too_much() -> None:
    sizes = [PASS_NUMBERS // 2, PASS_NUMBERS // 2, 1, 3 * PASS_NUMBERS, 5]
    assert portions(sizes, lambda size: size) == [sizes[:2], sizes[2:3], sizes[3:4], sizes[4:]]
    assert portions([], lambda size: size) == []


# ------------------------------------------------------------------------------------------------ links
RESCORE = RescoreConfig(few_items=1)


def run_of(fit: ScaleFit, run_id: str = "early") -> RunFits:
    both = Scales({"overall": frozenset("x"), "x": frozenset("x")}, {"overall": "overall", "x": "overall"})
    return RunFits(RunKey(run_id, DATES[0]), both, {"overall": fit})


@pytest.fixture(scope="module")
def fit() -> ScaleFit:
    n, k = drawn(12, 15, seed=1)
    return fit_blocks(blocks_of(n, k, benchmark="x"), {"s": frozenset("x")}, 12)["s"]


def standing_of(fit: ScaleFit) -> Standing:
    run = run_of(fit)
    return shown_standing(replace(run, links={"x": own_scale(standard_gauge(fit.theta), "late")}), "x", RESCORE)


def test_the_same_models_undo_a_change_of_scale(fit: ScaleFit) -> None:
    origins = {"overall": Origin("late", "late"), "x": Origin("late", "late")}
    early = run_of(replace(fit, theta=fit.theta * 3.0 - 1.0))
    there = standing_of(fit)
    links = links_by_models(early, origins, {("x", "late"): there}, RESCORE)
    assert set(links) == {"x"}  # of the other scale nothing is known there
    link = links["x"]
    assert (link.reference_run_id, link.link_run_id, link.n_anchor_models) == ("late", "late", there.models.size)
    assert link.n_anchors is None
    np.testing.assert_allclose(
        link.gauge.abilities(early.fit_of("x").theta), standard_gauge(fit.theta).abilities(fit.theta)
    )
    shown = on_published_scale(early.fit_of("x"), RESCORE)
    z = shown.ability
    np.testing.assert_allclose(link.slope * z + link.intercept, link.gauge.abilities(early.fit_of("x").theta))


def test_where_the_reference_is_gone_the_nearest_run_tells_it(fit: ScaleFit) -> None:
    links = links_by_models(run_of(fit), {"x": Origin("gone", "near")}, {("x", "near"): standing_of(fit)}, RESCORE)
    assert (links["x"].reference_run_id, links["x"].link_run_id) == ("gone", "near")


@pytest.mark.parametrize("what", ["items", "accuracy", "models"])
def test_models_whose_answers_changed_are_no_anchors(fit: ScaleFit, what: str) -> None:
    there = standing_of(fit)
    changed = np.arange(there.models.size) >= LEAST_MODELS
    moved = {"items": there.items - 1.0 * changed, "accuracy": there.accuracy + 0.01 * changed,
             "models": there.models + 100 * changed}[what]  # fmt: skip
    ability = np.where(changed, there.ability + np.arange(changed.size), there.ability)
    other = replace(there, ability=ability, **{what: moved})
    origins = {"x": Origin("late", "late")}
    link = links_by_models(run_of(fit), origins, {("x", "late"): other}, RESCORE)["x"]
    assert link.n_anchor_models == LEAST_MODELS
    assert (link.slope, link.intercept) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    fewer = replace(other, items=other.items - (np.arange(changed.size) == 0))
    assert links_by_models(run_of(fit), origins, {("x", "late"): fewer}, RESCORE) == {}


def test_a_run_cut_down_to_some_scales_shows_their_fits_alone(fit: ScaleFit) -> None:
    scales = Scales({"a": frozenset("x"), "b": frozenset("x"), "c": frozenset("y")}, {"a": "a", "b": "a", "c": "c"})
    run = RunFits(RunKey("r", DATES[0]), scales, {"a": fit, "c": fit}, date=3)
    left = only(run, ["b"])
    assert (left.scales.fitted, set(left.scales.benchmarks), set(left.fits)) == ({"b": "a"}, {"b"}, {"a"})
    assert left.date == 3
    assert only(run, []).scales.fitted == {}


# ------------------------------------------------------------------------------------------------ stale
SCORED = dict(zip(DATES, [5, 5, 7, None], strict=True))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        (
            [Change(6, DATES[1])],
            DATES[1:2],
        ),  # after version 5, evaluated on the second day: not the first, nor the third
        ([Change(6, DATES[0])], DATES[:2]),
        ([Change(8, None)], DATES[:3]),  # a row without a date counts for all
        ([Change(8, day("2026-01-05"))], []),
        ([Change(5, DATES[0])], []),
    ],
)
def test_days_are_stale_that_saw_what_changed_since(changes: list[Change], expected: list[dt.date]) -> None:
    found = find_stale(SCORED, changes, reach=5)
    assert list(found.days) == [*expected, DATES[3]]
    assert found.unknown == (DATES[3],)


def test_days_from_before_the_feed_are_stale_by_assumption() -> None:
    assert find_stale(SCORED, [], reach=6).unknown == (DATES[0], DATES[1], DATES[3])
    assert find_stale(SCORED, [], reach=None).days == tuple(DATES)
    assert "4 of 4 published days" in find_stale(SCORED, [], reach=None).lines()[0]


# ------------------------------------------------------------------------------------------------ outcome
def test_a_date_that_fails_does_not_stop_the_others() -> None:
    plan = plan_fits(DATES[:3], {"x": steps(0, 1, 2), "y": steps(2)}, ScalesConfig())
    keys = [RunKey(f"run {number}", date) for number, date in enumerate(DATES[:3])]
    n, k = drawn(12, 15, seed=1)
    good = fit_blocks(blocks_of(n, k, benchmark="x"), {"s": frozenset("x")}, 12)["s"]
    assert good.converged
    fits = {name: replace(good, name=name) for name in plan.fits}
    fits["2026-01-02 overall"].converged = False
    del fits["2026-01-03 y"]
    nothing: Any = None
    history = History(nothing, 1, nothing, nothing, nothing, plan, keys)
    runs, failed = history.runs(fits, {"2026-01-03 y": "falls apart"}, 7)
    assert [run.key.run_id for run in runs] == ["run 0", "run 1"]
    assert failed["run 1"][0] == "not_converged"
    assert "1 of 1 scales did not converge in 7 iterations (overall)" in failed["run 1"][1]
    assert failed["run 2"] == ("failed", "falls apart")
    assert runs[0].fits["overall"].name == "2026-01-01 overall"
    assert history.voices()["2026-01-03 y"] == ("run 2", "y")


def test_what_a_history_lacks_is_one_line() -> None:
    dates = tuple(DATES[:3])
    failed = BackfillReport(dates, failed={str(DATES[0]): "falls apart"}, exit_code=4)
    assert failed.complaint() == f"of 3 days 1 was not published; {DATES[0]}: falls apart"
    partly = BackfillReport(dates, left_out={str(DATES[1]): {"x": "x has no anchor"}}, exit_code=4)
    assert partly.complaint() == f"of 3 days 1 lacks a scale; {DATES[1]}: x has no anchor"
    both = BackfillReport(dates, failed={"a": "no", "b": "no"}, left_out={"c": {"x": "none"}}, exit_code=4)
    assert both.complaint() == "of 3 days 2 were not published and 1 lacks a scale; a: no"
