"""What the gates say of two nights; no Spark."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from cbmm_spark.config.schema import GateActions, GatesConfig
from cbmm_spark.errors import GateError
from cbmm_spark.runs.gates import Comparison, Movement, ScaleSummary, drop, verdict_of
from cbmm_spark.runs.table import Run

NIGHT = ScaleSummary(models=100, items=1000, responses=90_000, coverage=0.9)
EARLIER = Run("before", dt.date(2026, 5, 10), "published", dt.datetime(2026, 5, 10, tzinfo=dt.UTC))


def compared(tonight: ScaleSummary = NIGHT, moved: int = 0) -> Comparison:
    return Comparison({"overall": tonight}, {"overall": NIGHT}, {"overall": Movement(100, moved, False)}, EARLIER)


def gates(comparison: Comparison, config: GatesConfig | None = None) -> list[str]:
    return [finding.gate for finding in verdict_of(comparison, config or GatesConfig()).findings]


CROSSED = {
    "models": compared(replace(NIGHT, models=89)),
    "items": compared(replace(NIGHT, items=899)),
    "responses": compared(replace(NIGHT, responses=80_999)),
    "coverage": compared(replace(NIGHT, coverage=0.79)),
    "moved": compared(moved=21),
    "scales": Comparison({}, {"overall": NIGHT}, {}, EARLIER),
    "nulls": compared(replace(NIGHT, unread=1)),
}
AT_THE_LIMIT = {
    "models": compared(replace(NIGHT, models=90)),
    "items": compared(replace(NIGHT, items=900)),
    "responses": compared(replace(NIGHT, responses=81_000)),
    "moved": compared(moved=20),
}


@pytest.mark.parametrize("gate", CROSSED)
def test_each_gate_fails_alone_and_does_what_it_is_told(gate: str) -> None:
    assert gates(CROSSED[gate]) == [gate]
    verdict = verdict_of(CROSSED[gate], GatesConfig())
    with pytest.raises(GateError, match=f"gate {gate}: .*`cbmm-spark rescore --accept-gates`") as caught:
        verdict.enforce()
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert verdict.warnings == []
    accepted = verdict_of(CROSSED[gate], GatesConfig(), accepted=True)
    accepted.enforce()
    assert len(accepted.warnings) == 1
    assert json.loads(accepted.as_json())["accepted"]
    warning = verdict_of(CROSSED[gate], GatesConfig(actions=GateActions(**{gate: "warn"})))
    warning.enforce()
    assert [gate in sentence for sentence in warning.warnings] == [True]
    ignored = verdict_of(CROSSED[gate], GatesConfig(actions=GateActions(**{gate: "ignore"})))
    assert ignored.findings == ()


@pytest.mark.parametrize("gate", AT_THE_LIMIT)
def test_a_limit_itself_is_allowed(gate: str) -> None:
    assert gates(AT_THE_LIMIT[gate]) == []


def test_every_gate_is_tested() -> None:
    assert set(CROSSED) == set(GateActions.__dataclass_fields__)


def test_growth_and_new_scales_pass() -> None:
    grown = ScaleSummary(200, 2000, 300_000, 0.95)
    both = Comparison(
        {"overall": grown, "new": NIGHT}, {"overall": NIGHT}, {"overall": Movement(100, 0, True)}, EARLIER
    )
    assert gates(both) == []


def test_without_an_earlier_night_only_tonight_is_looked_at() -> None:
    first = verdict_of(Comparison({"overall": NIGHT}), GatesConfig())
    assert first.findings == ()
    facts = json.loads(first.as_json())
    assert facts["compared_with"] is None
    assert facts["largest"] == {}
    assert "no earlier night" in first.facts()["note"]
    assert gates(Comparison({"overall": replace(NIGHT, unread=2)})) == ["nulls"]


def test_facts_name_the_scale_of_the_largest_figure() -> None:
    nights = Comparison(
        {"a": NIGHT, "b": replace(NIGHT, models=80)}, {"a": NIGHT, "b": NIGHT},
        {"a": Movement(10, 1, True), "b": Movement(0, 0, True)}, EARLIER,
    )  # fmt: skip
    facts = verdict_of(nights, GatesConfig()).facts()
    assert facts["compared_with"] == "before"
    assert facts["largest"]["drop_models"] == {"value": 0.2, "scale": "b"}
    assert facts["largest"]["moved"] == {"value": 0.1, "scale": "a"}
    assert len(facts["failed"]) == 1


def test_many_findings_are_counted_not_dropped() -> None:
    few = {f"s{i}": replace(NIGHT, models=10) for i in range(5)}
    verdict = verdict_of(Comparison(few, dict.fromkeys(few, NIGHT), {}, EARLIER), GatesConfig())
    with pytest.raises(GateError, match=r"and 2 more"):
        verdict.enforce()
    assert len(json.loads(verdict.as_json())["findings"]) == 5


def test_drop() -> None:
    assert (drop(0, 5), drop(10, 12), drop(10, 5), drop(10, 0)) == (0.0, 0.0, 0.5, 1.0)
