"""The file for Prometheus: its format, what it says after good and bad nights, and that it appears whole."""

from __future__ import annotations

import datetime as dt
import math
import re
import stat
from pathlib import Path

import pytest

from cbmm_spark.cli import prometheus as metrics
from cbmm_spark.cli.night_command import Figures
from cbmm_spark.cli.prometheus import Metric, night_metrics, render
from cbmm_spark.errors import ConfigError, ConflictError, NotConvergedError
from cbmm_spark.night.night import NightReport, SourceReport, StepReport
from cbmm_spark.rescoring.job import RescoreReport

ODD = 'a "b" \\ c\nd é'


def night() -> NightReport:
    facts = {"models": 60, "items": 200, "responses": 11_643, "iterations": 24, "converged": True}
    run = RescoreReport("r", dt.date(2026, 5, 11), {ODD: facts}, {}, {"pack": 1.5, "fit": 2.0})
    return NightReport(
        "n",
        steps=[StepReport("ingest", "done", 3.25), StepReport("rescore", "done", 7.0)],
        sources=[
            SourceReport("one", "a", "read", counts={"read": 5, "new": 4}),
            SourceReport("two", "b", "read", counts={"read": 6, "new": 1}),
            SourceReport("three", "c", "missing"),
        ],
        run=run,
    )


LINE = re.compile(
    r"# (HELP|TYPE) [a-z_]+ .+"
    r'|[a-z_]+(\{[a-z_]+="(\\[\\"n]|[^\\"\n])*"(,[a-z_]+="(\\[\\"n]|[^\\"\n])*")*\})? -?[0-9.e+-]+'
)


def test_every_line_is_of_the_format_and_every_name_of_ours() -> None:
    text = render(night_metrics(night(), 0, 1.7e9, None))
    assert text.endswith("\n")
    for line in text.splitlines():
        assert LINE.fullmatch(line), line
        assert line.startswith(("cbmm_", "# HELP cbmm_", "# TYPE cbmm_"))


def test_prometheus_own_parser_reads_it() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    families = list(parser.text_string_to_metric_families(render(night_metrics(night(), 0, 1.7e9, None))))
    samples = {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}
    assert samples["cbmm_nightly_step_seconds", ("step", "ingest")] == 3.25
    assert samples["cbmm_nightly_sources", ("outcome", "read")] == 2
    assert samples["cbmm_nightly_sources", ("outcome", "failed")] == 0
    assert samples["cbmm_nightly_rows", ("became", "new")] == 5
    assert samples["cbmm_run_models", ("scale", ODD)] == 60
    assert samples["cbmm_run_step_seconds", ("step", "fit")] == 2.0
    assert samples["cbmm_nightly_exit_code",] == 0
    assert all(family.documentation for family in families)
    names = [family.name for family in families]
    assert len(names) == len(set(names))


def test_values_that_are_not_finite_are_left_out() -> None:
    text = render([Metric("cbmm_x", "x", [({"a": "1"}, math.nan), ({"a": "2"}, math.inf), ({"a": "3"}, 1)])])
    assert text.splitlines()[2:] == ['cbmm_x{a="3"} 1']


def test_the_last_success_outlives_failing_nights(tmp_path: Path) -> None:
    path = tmp_path / "cbmm.prom"
    for code, ended, known in ((0, 100.0, 100.0), (4, 200.0, 100.0), (5, 300.0, 100.0), (0, 400.0, 400.0)):
        metrics.write(path, render(night_metrics(None, code, ended, metrics.last_success(path))))
        assert metrics.last_success(path) == known
        assert f"cbmm_nightly_exit_code {code}\n" in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["cbmm.prom"]  # nothing is left beside it
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_without_an_earlier_success_none_is_claimed(tmp_path: Path) -> None:
    assert metrics.last_success(tmp_path / "none") is None
    assert metrics.LAST_SUCCESS not in render(night_metrics(None, 1, 5.0, None))


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (NotConvergedError("x"), 4), (ConflictError("x"), 5), (KeyboardInterrupt(), 130), (ValueError("x"), 1)],
)
def test_figures_are_written_whatever_the_night_ended_with(
    tmp_path: Path, error: BaseException | None, code: int
) -> None:
    path = tmp_path / "cbmm.prom"

    def command() -> None:
        with Figures(str(path)) as figures:
            figures.report = night()
            if error is not None:
                raise error

    if error is None:
        command()
    else:
        with pytest.raises(type(error)):
            command()
    text = path.read_text()
    assert f"cbmm_nightly_exit_code {code}\n" in text
    assert (metrics.LAST_SUCCESS in text) == (code == 0)
    assert 'cbmm_nightly_step_seconds{step="ingest"} 3.25' in text


def test_nothing_is_written_where_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for nothing in ("", None):
        with Figures(nothing):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told_before_the_night(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nightly\.metrics_file .*gone"):
        Figures(str(tmp_path / "gone" / "cbmm.prom"))
