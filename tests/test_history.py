"""Dates, plans, portions, links and stale days: what a backfill decides before and after Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cbmm_spark.backfill import History, link_runs
from cbmm_spark.config import PackConfig, RescoreConfig, ScalesConfig
from cbmm_spark.dates import dates_between, parse_dates
from cbmm_spark.errors import ConfigError, InputError
from cbmm_spark.history import Evaluated, check_dates, small_enough
from cbmm_spark.history_blocks import PASS_NUMBERS, portions
from cbmm_spark.history_link import Link, Standing, link_by_models
from cbmm_spark.history_plan import plan_fits
from cbmm_spark.kernels.dense import fit_blocks
from cbmm_spark.kernels.model import standard_gauge
from cbmm_spark.results import RunFits, RunKey
from cbmm_spark.scales import Scales
from cbmm_spark.stale import Change, find_stale
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
def test_a_link_undoes_a_change_of_scale() -> None:
    rng = np.random.default_rng(1)
    theta = rng.standard_normal(30)
    early = np.arange(12)
    standings = {
        "s": [
            Standing("a", early, 2.0 * theta[early] - 1.0),
            Standing("b", np.array([3, 7]), theta[[3, 7]]),  # too few models to tell
            Standing("c", np.arange(30), theta),
            Standing("c", np.arange(30), theta),  # a day on which nothing changed
        ]
    }
    links = link_by_models(standings)
    assert set(links) == {("s", "a")}
    link = links["s", "a"]
    assert (link.slope, link.intercept) == (pytest.approx(0.5), pytest.approx(0.5))


def test_a_gauge_with_a_link_leads_to_the_reference_scale() -> None:
    raw = np.array([-3.0, 1.0, 5.0, 8.0])
    gauge, link = standard_gauge(raw), Link(0.7, -0.4)
    both = link.after(gauge)
    np.testing.assert_allclose(both.abilities(raw), 0.7 * gauge.abilities(raw) - 0.4)
    a, b = both.items(np.array([1.3]), np.array([0.2]))  # a probability stays what it is
    np.testing.assert_allclose(a * both.abilities(raw) + b, 1.3 * raw + 0.2)


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


def test_the_newest_run_of_each_scale_is_its_reference() -> None:
    n, k = drawn(12, 15, seed=1)
    fit = fit_blocks(blocks_of(n, k, benchmark="x"), {"s": frozenset("x")}, 12)["s"]
    early = replace(fit, name="early", theta=fit.theta * 3.0)
    x = Scales({"overall": frozenset("x"), "x": frozenset("x")}, {"overall": "overall", "x": "overall"})
    runs = [RunFits(RunKey("a", DATES[0]), x, {"overall": early}), RunFits(RunKey("b", DATES[1]), x, {"overall": fit})]
    linked, unlinked = link_runs(runs, RescoreConfig(few_items=1), link_by_models)
    assert unlinked == 0
    assert set(linked[0].links) == {"overall", "x"}
    assert linked[0].links["x"].slope == pytest.approx(1.0)  # standardised, the two are one
    assert linked[1].links == {}
    assert link_runs(runs, RescoreConfig(few_items=1), lambda _: {})[1] == 2
