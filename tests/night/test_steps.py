"""A night's order, what stops it and what does not, and its summary: with the steps themselves taken out."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cbmm_spark.cli import arguments
from cbmm_spark.config.schema import Config, NightlyConfig, SolverConfig, SourceConfig
from cbmm_spark.console.progress import Progress
from cbmm_spark.errors import CbmmError, ConflictError, GateError, InputError, NotConvergedError
from cbmm_spark.ingest.job import IngestReport
from cbmm_spark.night import night as nightly
from cbmm_spark.night.night import Night, NightReport, as_event, as_text, same_fit
from cbmm_spark.night.sources import Decision
from cbmm_spark.rescoring.job import RescoreReport
from cbmm_spark.upkeep import maintain

DAY = dt.date(2026, 5, 11)


def ingested(**counts: int) -> IngestReport:
    fields: dict[str, Any] = {f.name: 0 for f in dataclasses.fields(IngestReport)}
    texts = {"ingest_id": "i", "path": "p", "format": "csv", "format_reason": "r"}
    lists: dict[str, Any] = {name: {} for name in ("left_out", "defaults", "quarantined", "examples")}
    tuples: dict[str, Any] = dict.fromkeys(("notes", "warnings", "coverage"), ())
    return IngestReport(**{**fields, **texts, **lists, **tuples, "read": 5, "accepted": 5, **counts})


class Session:
    """As much of a session as describing jobs needs."""

    def __init__(self) -> None:
        self.sparkContext = self

    def setLocalProperty(self, _name: str, _value: str | None) -> None:  # noqa: N802
        """Nobody looks."""

    def getLocalProperty(self, _name: str) -> str | None:  # noqa: N802
        return None


class Stage:
    """The steps of a night, each of which notes that it was reached; a source or step may be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.actions: dict[str, str] = {}
        self.reports: dict[str, IngestReport] = {}
        self.published: tuple[str, dt.date] | None = None
        self.said = io.StringIO()
        run = RescoreReport("r1", DAY, {"overall": {"models": 3}}, {}, {"fit": 1.0}, ("scale x is thin",))
        packed = SimpleNamespace(responses_version=3, repacked=True, tiles=2, responses=10)
        monkeypatch.setattr(nightly, "decide_all", self.decide_all)
        monkeypatch.setattr(
            nightly, "ingest", lambda _s, _w, _c, path, **_o: self.step(path, self.reports.get(path, ingested(new=2)))
        )
        monkeypatch.setattr(nightly, "pack", lambda *_a: self.step("pack", packed))
        monkeypatch.setattr(nightly, "rescore", lambda *_a: self.step("rescore", run))
        monkeypatch.setattr(nightly, "refresh_latest", lambda _w: self.reached.append("latest"))
        monkeypatch.setattr(Night, "_scored_already", lambda _self: self.published)

    def decide_all(self, _spark: Any, _warehouse: Any, sources: Any, *_rest: Any) -> Any:
        for source in sources:
            yield Decision(source, self.actions.get(source.input, "read"), "why", "print")

    def step(self, name: str, result: Any) -> Any:
        self.reached.append(name)
        if name in self.fails:
            raise self.fails[name]
        return result

    def night(
        self, *sources: str, on_error: Any = "stop", steps: Any = nightly.STEPS, as_of: Any = None
    ) -> NightReport:
        configured = tuple(SourceConfig(name, name) for name in sources)
        config = dataclasses.replace(Config(), nightly=NightlyConfig(on_error, sources=configured))
        warehouse: Any = SimpleNamespace(location=lambda name: name)
        session: Any = Session()
        return Night(session, warehouse, config, as_of, steps, Progress("json", self.said)).run()

    def outcomes(self, report: NightReport) -> list[str]:
        return [step.outcome for step in report.steps]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_a_night_is_sources_in_their_order_then_packing_then_the_score(stage: Stage) -> None:
    report = stage.night("b", "a")
    assert stage.reached == ["b", "a", "pack", "rescore"]
    assert stage.outcomes(report) == ["done", "done", "done"]
    assert (report.exit_code, report.error, report.run_id, report.scored_on) == (0, None, "r1", DAY)
    assert report.total("new") == 4
    assert report.warnings == ["scale x is thin"]


def test_the_steps_known_to_the_command_line_are_those_that_there_are() -> None:
    assert arguments.NIGHT_STEPS == nightly.STEPS
    assert arguments.MAINTAIN_STEPS == maintain.STEPS


@pytest.mark.parametrize(
    ("steps", "reached"),
    [
        (("ingest",), ["a"]),
        (("pack", "rescore"), ["pack", "rescore"]),
        (("rescore",), ["rescore"]),
        (("pack",), ["pack"]),
    ],
)
def test_steps_can_be_left_out(stage: Stage, steps: tuple[str, ...], reached: list[str]) -> None:
    report = stage.night("a", steps=steps)
    assert stage.reached == reached
    assert [step.step for step in report.steps if step.outcome == "skipped"] == [
        s for s in nightly.STEPS if s not in steps
    ]


FAILURES: list[tuple[Exception, int]] = [
    (InputError("no such file"), 3),
    (ConflictError("busy"), 5),
    (CbmmError("odd"), 1),
    (ZeroDivisionError("oh"), 1),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_a_source_that_fails_does_not_keep_the_others_but_the_score(stage: Stage, error: Exception, code: int) -> None:
    stage.fails["a"] = error
    report = stage.night("a", "b")
    assert stage.reached == ["a", "b"]
    assert stage.outcomes(report) == ["failed", "not reached", "not reached"]
    assert [source.outcome for source in report.sources] == ["failed", "read"]
    assert report.exit_code == code
    assert report.error is error if code == 1 and not isinstance(error, CbmmError) else "1 of 2" in str(report.error)


def test_where_so_configured_the_others_are_scored_and_the_failure_is_told_all_the_same(stage: Stage) -> None:
    stage.fails["a"] = InputError("no such file")
    report = stage.night("a", "b", on_error="continue")
    assert stage.reached == ["a", "b", "pack", "rescore"]
    assert stage.outcomes(report) == ["failed", "done", "done"]
    assert report.exit_code == 3
    assert "a: no such file" in str(report.error)
    assert report.run_id == "r1"


def test_an_input_of_which_every_row_was_refused_is_a_failure(stage: Stage) -> None:
    stage.reports["a"] = ingested(read=7, accepted=0)
    report = stage.night("a")
    assert report.exit_code == 3
    assert "none of the 7 rows" in str(report.error)


def test_missing_and_unchanged_sources_are_told_and_no_failure(stage: Stage) -> None:
    stage.actions = {"gone": "missing", "old": "skip"}
    report = stage.night("gone", "old", "new")
    assert stage.reached == ["new", "pack", "rescore"]
    assert [source.outcome for source in report.sources] == ["missing", "skipped", "read"]
    assert report.exit_code == 0
    assert report.warnings[0] == "source gone: why"
    assert "3 sources: 1 missing, 1 skipped, 1 read" in as_text(report)


def test_a_source_that_has_to_be_there_and_is_not_is_code_3(stage: Stage) -> None:
    stage.actions = {"a": "failed"}
    report = stage.night("a", "b")
    assert stage.reached == ["b"]
    assert (report.exit_code, report.sources[0].outcome) == (3, "failed")


@pytest.mark.parametrize(
    ("step", "error", "code"), [("pack", InputError("x"), 3), ("rescore", NotConvergedError("x"), 4)]
)
def test_a_step_that_fails_ends_the_night_with_its_code(stage: Stage, step: str, error: Exception, code: int) -> None:
    stage.fails[step] = error
    report = stage.night("a")
    assert stage.reached[-1] == step
    assert (report.exit_code, report.error) == (code, error)
    assert stage.outcomes(report)[nightly.STEPS.index(step)] == "failed"


@pytest.mark.parametrize("step", ["pack", "rescore"])
@pytest.mark.parametrize("error", [NotConvergedError("y"), GateError("y"), InputError("y"), ConflictError("y")])
def test_the_code_of_a_step_goes_before_that_of_a_source_and_both_are_named(
    stage: Stage, step: str, error: CbmmError
) -> None:
    stage.fails = {"a": InputError("no such file"), step: error}
    report = stage.night("a", on_error="continue")
    assert (report.exit_code, type(report.error)) == (error.exit_code, type(error))
    assert str(report.error) == (
        f"y (step {step}; before it, 1 of 1 sources failed, the night goes on without them: a: no such file)"
    )


def test_a_bug_in_a_step_is_the_nights_error_as_it_is(stage: Stage) -> None:
    bug = ZeroDivisionError("oh")
    stage.fails = {"a": InputError("no such file"), "rescore": bug}
    assert stage.night("a", on_error="continue").error is bug


def test_a_score_that_fails_is_of_its_day(stage: Stage) -> None:
    stage.fails = {"rescore": GateError("y")}
    report = stage.night("a")
    assert (report.run_id, report.scored_on) == (None, dt.datetime.now(dt.UTC).date())


def test_ctrl_c_ends_the_night_at_once(stage: Stage) -> None:
    stage.fails["pack"] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        stage.night("a")
    assert stage.reached == ["a", "pack"]


def test_what_is_published_from_the_same_is_not_scored_again_but_its_copies_are_looked_after(stage: Stage) -> None:
    stage.published = ("r0", DAY)
    report = stage.night("a")
    assert stage.reached == ["a", "pack", "latest"]
    assert (report.run_id, report.exit_code, report.run) == ("r0", 0, None)


def test_a_day_that_is_given_packs_for_itself(stage: Stage) -> None:
    assert stage.night("a", as_of=DAY).steps[1].outcome == "skipped"
    assert stage.reached == ["a", "rescore"]


def test_the_summary_for_a_program_is_one_json_line_of_everything(stage: Stage) -> None:
    stage.fails["b"] = InputError("two\n lines")
    report = stage.night("a", "b")
    Progress("json", stage.said).result("night", "", **as_event(report))
    lines = [json.loads(line) for line in stage.said.getvalue().splitlines()]
    assert [line["event"] for line in lines].count("source") == 2
    line = lines[-1]
    assert (line["event"], line["exit_code"], line["dry_run"]) == ("night", 3, False)
    assert [step["step"] for step in line["steps"]] == list(nightly.STEPS)
    assert [source["outcome"] for source in line["sources"]] == ["read", "failed"]
    assert line["sources"][1]["note"] == "two lines"


def test_every_section_is_either_of_the_fit_or_not() -> None:
    sections = {each.name for each in dataclasses.fields(Config)}
    assert set(nightly.NOT_FITTED) < sections


CHANGES: list[tuple[str, Callable[[Config], Config], bool]] = [
    ("nothing", lambda c: c, True),
    ("warehouse", lambda c: dataclasses.replace(c, warehouse="other"), True),
    ("nightly", lambda c: dataclasses.replace(c, nightly=NightlyConfig(sources=(SourceConfig("a", "b"),))), True),
    ("solver", lambda c: dataclasses.replace(c, solver=SolverConfig(tolerance=1e-5)), False),
    ("scales", lambda c: dataclasses.replace(c, scales=dataclasses.replace(c.scales, overall=False)), False),
]


@pytest.mark.parametrize(("name", "change", "same"), CHANGES, ids=[name for name, _, _ in CHANGES])
def test_what_makes_another_fit(name: str, change: Callable[[Config], Config], same: bool) -> None:
    assert same_fit(Config().as_json(), change(Config()).as_json()) is same


def test_a_section_that_an_earlier_version_did_not_have_makes_another_fit() -> None:
    earlier = json.loads(Config().as_json())
    del earlier["scales"]
    assert not same_fit(json.dumps(earlier), Config().as_json())
