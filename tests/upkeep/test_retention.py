"""Which runs retention keeps; no Spark."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.config.schema import RetentionConfig
from cbmm_spark.upkeep.retention import StoredRun, plan

FIRST = dt.date(2025, 1, 1)
ALL = RetentionConfig(keep_nights=0, keep_monthly=0, keep_saved_nights=10_000, keep_failed_days=10_000)


def night(number: int, status: str = "published", seen: int | None = None) -> StoredRun:
    day = FIRST + dt.timedelta(days=number)
    return StoredRun(f"r{number:04d}", day, status, FIRST + dt.timedelta(days=number if seen is None else seen))


def kept(runs: list[StoredRun], policy: RetentionConfig, references: dict[str, set[str]] | None = None) -> list[str]:
    gone = plan(runs, references or {}, policy, FIRST + dt.timedelta(days=400)).nights
    return [run.run_id for run in runs if run.run_id not in gone]


YEAR = [night(i) for i in range(365)]


def test_zero_keeps_all() -> None:
    decided = plan(YEAR, {}, ALL, FIRST + dt.timedelta(days=400))
    assert decided.nights == decided.failed == decided.pinned == decided.unsaved == ()


def test_the_newest_nights_stay() -> None:
    assert kept(YEAR, RetentionConfig(keep_nights=3, keep_monthly=0)) == ["r0362", "r0363", "r0364"]


def test_the_last_night_of_each_month_and_week_stays() -> None:
    months = kept(YEAR, RetentionConfig(keep_nights=1, keep_monthly=120))
    assert [(FIRST + dt.timedelta(days=int(r[1:]))).day for r in months] == [
        31,
        28,
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ]
    weeks = kept(YEAR, RetentionConfig(keep_nights=1, keep_monthly=0, keep_weekly=4))
    days = [FIRST + dt.timedelta(days=int(r[1:])) for r in weeks]
    assert [day.isoweekday() for day in days] == [7, 7, 7, 3]  # the year ends on a Wednesday


def test_months_without_a_night_do_not_count() -> None:
    sparse = [night(0), night(100), night(300)]
    assert len(kept(sparse, RetentionConfig(keep_nights=1, keep_monthly=3))) == 3
    assert kept(sparse, RetentionConfig(keep_nights=1, keep_monthly=2)) == ["r0100", "r0300"]


def test_a_reference_stays_and_its_own_reference_too() -> None:
    policy = RetentionConfig(keep_nights=1, keep_monthly=0)
    references = {"r0364": {"r0200"}, "r0200": {"r0010"}, "r0100": {"r0050"}}
    assert kept(YEAR, policy, references) == ["r0010", "r0200", "r0364"]
    assert plan(YEAR, references, policy, FIRST + dt.timedelta(days=400)).pinned == ("r0010", "r0200")
    working = [*YEAR, night(365, "running", seen=400)]
    assert kept(working, policy, {"r0365": {"r0007"}}) == ["r0007", "r0364", "r0365"]


def test_saved_abilities_of_old_nights_go() -> None:
    decided = plan(YEAR, {}, RetentionConfig(keep_nights=5, keep_monthly=0, keep_saved_nights=2), FIRST)
    assert decided.unsaved == ("r0360", "r0361", "r0362")


def test_ended_and_dead_runs_go_when_they_are_old() -> None:
    runs = [night(1, "failed"), night(2, "not_converged"), night(3, "running"), night(4, "running", seen=399),
            night(390, "failed"), night(391)]  # fmt: skip
    decided = plan(runs, {}, RetentionConfig(), FIRST + dt.timedelta(days=400))
    assert decided.failed == ("r0001", "r0002", "r0003")


@given(
    days=st.sets(st.integers(0, 2000), min_size=1, max_size=60),
    nights=st.integers(0, 50),
    weekly=st.integers(0, 20),
    monthly=st.integers(0, 20),
    links=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=20),
)
def test_the_newest_night_and_every_needed_reference_stay(
    days: set[int], nights: int, weekly: int, monthly: int, links: list[tuple[int, int]]
) -> None:
    runs = [night(day) for day in sorted(days)]
    references: dict[str, set[str]] = {}
    for one, other in links:
        references.setdefault(runs[one % len(runs)].run_id, set()).add(runs[other % len(runs)].run_id)
    policy = RetentionConfig(keep_nights=nights, keep_weekly=weekly, keep_monthly=monthly)
    left = set(kept(runs, policy, references))
    assert runs[-1].run_id in left
    assert len(left) >= min(nights or len(runs), len(runs))
    assert all(references.get(run_id, set()) <= left for run_id in left)
    again = [run for run in runs if run.run_id in left]
    assert set(kept(again, policy, references)) == left
