"""What jobs print: strict JSON for programs, plain lines for people, silence where the reader is gone."""

from __future__ import annotations

import datetime
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.console.progress import Progress, as_json_line

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_is_json_away_from_a_terminal_and_text_on_one() -> None:
    assert not Progress("auto", io.StringIO()).text_mode
    assert Progress("auto", Terminal()).text_mode
    assert Progress("text", io.StringIO()).text_mode
    assert not Progress("json", Terminal()).text_mode


def test_an_iteration_is_one_json_line() -> None:
    stream = io.StringIO()
    Progress("json", stream).iteration("r1", "overall", 3, 12.5, math.inf, 0.25)
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {
        "event": "iteration",
        "run_id": "r1",
        "scale": "overall",
        "iteration": 3,
        "objective": 12.5,
        "max_ability_change": None,
        "seconds": 0.25,
    }


def test_iterations_leave_no_lines_in_text_mode(capfd: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with Progress("text", stream) as progress:
        for iteration in (1, 2):
            progress.iteration("r1", "overall", iteration, 12.5, None, 0.25)
        progress.event("published", run_id="r1", rows=1200, took=1.5, nothing=None, converged=True)
    assert stream.getvalue() == "published: run id r1, rows 1,200, took 1.5, converged yes\n"
    assert capfd.readouterr() == ("", "")  # standard error is no terminal here: no bar


def test_a_result_is_text_for_people_and_json_for_programs() -> None:
    text, json_lines = io.StringIO(), io.StringIO()
    for mode, stream in (("text", text), ("json", json_lines)):
        Progress(mode, stream).result("leaderboard", lambda: "a table\nof two lines", rows=[{"rank": 1}])  # type: ignore[arg-type]
    assert text.getvalue() == "a table\nof two lines\n"
    assert json.loads(json_lines.getvalue()) == {"event": "leaderboard", "rows": [{"rank": 1}]}


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=10,
        ),
    )
)
def test_any_fields_make_one_line_of_strict_json(fields: dict[str, object]) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    line = as_json_line(fields)
    assert "\n" not in line
    assert set(json.loads(line, parse_constant=refuse)) == set(fields)


def test_numpy_and_dates_are_plain_values() -> None:
    line = as_json_line(
        {"n": np.int64(3), "x": np.float64("nan"), "y": np.float32(0.5), "d": datetime.date(2026, 1, 2)}
    )
    assert json.loads(line) == {"n": 3, "x": None, "y": 0.5, "d": "2026-01-02"}


def test_a_reader_that_goes_away_does_not_end_the_job(tmp_path: Path) -> None:
    program = """
import pathlib, sys
from cbmm_spark.console.progress import Progress
with Progress("json") as progress:
    for number in range(20000):
        progress.event("step", number=number)
pathlib.Path(sys.argv[1]).write_text("finished")
"""
    reading, writing = os.pipe()
    job = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "done")],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert os.read(reading, 10).startswith(b'{"event')
    os.close(reading)
    _, said = job.communicate(timeout=60)
    assert (job.returncode, said) == (0, b"")
    assert (tmp_path / "done").read_text() == "finished"
