"""The command line: exit codes, one-line errors, nothing started and nothing written where the request cannot work."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from cbmm_spark.cli import main as cli
from cbmm_spark.config.schema import SimulateConfig
from cbmm_spark.errors import CbmmError, ConfigError, ConflictError, InputError, NotConvergedError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def input_file(tmp_path: Path) -> str:
    path = tmp_path / "input.csv"
    path.write_text("model,item,correct\nm,i,1\n", encoding="utf-8")
    return str(path)


class Ended(NamedTuple):
    """How the command ended and what it said."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`run("ingest", …)`: the command in this process, where nothing may ask for a session or find a Java."""

    def refuse(*_arguments: object) -> NoReturn:
        pytest.fail("a session was asked for")

    monkeypatch.setattr(cli, "_spark", refuse)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def call(*arguments: str) -> Ended:
        try:
            code = cli.main(arguments)
        except SystemExit as ended:  # argparse, after what it was asked to print
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return Ended(code, *capfd.readouterr())

    return call


def run_alone(*arguments: str) -> Ended:
    """The command in a process of its own, without a Java anywhere."""
    done = subprocess.run(
        [sys.executable, "-m", "cbmm_spark.cli.main", *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


COMMANDS = ("simulate", "ingest", "quarantine", "rescore", "backfill", "nightly", "status", "maintain")
NIGHT = ["--set", 'nightly.sources=[{name = "a", input = "full.csv"}]']

REFUSED = [
    ([], 2, "COMMAND"),
    (["publish"], 2, "invalid choice: 'publish'"),
    (["ingest"], 2, "--input"),
    (["simulate"], 2, "--out"),
    (["ingest", "--inp", "x"], 2, "--input"),
    (["ingest", "--input", "gone.csv"], 3, "the input gone.csv does not exist"),
    (["ingest", "--input", "gone-*.csv"], 3, "the input gone-*.csv does not exist"),
    (["ingest", "--input", "gone [1].csv"], 3, "does not exist; brackets, braces, * and ? are a pattern"),
    (["maintain", "--backup", "copy", "--tables", "foo"], 2, "foo is no table of a warehouse"),
    (["ingest", "--input", "empty.csv"], 3, "the input empty.csv is empty"),
    (["ingest", "--input", "empty"], 3, "the input folder empty is empty"),
    (["ingest", "--input", "full.csv", "--items", "gone.txt"], 3, "the list of items gone.txt does not exist"),
    (["ingest", "--input", "full.csv", "--config", "gone.toml"], 2, "gone.toml does not exist"),
    (["ingest", "--input", "full.csv", "--config", "broken.toml"], 2, "broken.toml is not valid TOML"),
    (["ingest", "--input", "full.csv", "--config", "unknown.toml"], 2, "did you mean solver.tolerance?"),
    (["ingest", "--input", "full.csv", "--set", "solver.tolerance=0"], 2, "solver.tolerance"),
    (["ingest", "--input", "full.csv", "--output", "xml"], 2, "--output"),
    (["ingest", "--input", "full.csv", "--warehouse", "full.csv/below"], 2, "is not a folder"),
    (["ingest", "--input", "full.csv", "--warehouse", " "], 2, "--warehouse is empty"),
    (["ingest", "--input", "full.csv"], 2, "Java was not found"),
    (["ingest", "--input", "full.csv", "--mapping", "gone.toml"], 2, "mapping file gone.toml does not exist"),
    (["ingest", "--input", "full.csv", "--mapping", "unknown.toml"], 2, "unknown key solver in unknown.toml"),
    (["quarantine"], 2, "COMMAND"),
    (["quarantine", "list"], 3, "has no table responses"),
    (["quarantine", "list", "--limit", "many"], 2, "'many' is not a whole number from 1"),
    (["quarantine", "drop"], 2, "say which rows to drop"),
    (["quarantine", "drop", "--all", "--reason", "x"], 2, "say which rows to drop"),
    (["quarantine", "drop", "--source", "x"], 3, "has no table responses"),
    (["quarantine", "resubmit", "--mapping", "gone.toml"], 2, "mapping file gone.toml does not exist"),
    (["rescore"], 3, "run `cbmm-spark ingest"),
    (["rescore", "--warehouse", "gone"], 3, "the warehouse gone has no table responses"),
    (["rescore", "--as-of", "2026-02-30"], 2, "'2026-02-30' is not a date"),
    (["rescore", "--as-of", "yesterday"], 2, "YYYY-MM-DD"),
    (["rescore", "--only-new"], 2, "--only-new needs --items-from RUN_ID"),
    (["rescore", "--set", "linking.method=haebara"], 2, 'must be "stocking-lord" or "mean-sigma" or "off"'),
    (["rescore", "--set", "linking.min_anchors=0"], 2, "linking.min_anchors"),
    (["backfill"], 3, "run `cbmm-spark ingest"),
    (["backfill", "--from", "2026-02-30"], 2, "'2026-02-30' is not a date"),
    (["backfill", "--from", "2026-02-02", "--to", "2026-02-01"], 2, "--from 2026-02-02 is after --to 2026-02-01"),
    (["backfill", "--every", "year"], 2, "--every"),
    (["backfill", "--dates", "gone.txt"], 2, "'gone.txt' is not a date"),
    (["backfill", "--dates", "full.csv"], 2, "--dates full.csv: 'model' is not a date"),
    (["backfill", "--dates", "empty.csv"], 2, "--dates empty.csv names no date"),
    (["backfill", "--dates", "2026-02-01", "--stale"], 2, "exclude each other"),
    (["backfill", "--stale", "--every", "week"], 2, "exclude each other"),
    (["backfill", "--stale", "--list-stale"], 2, "exclude each other"),
    (["simulate", "--out", "full.csv"], 2, "full.csv is a file"),
    (["simulate", "--out", "new", "--models", "1"], 2, "simulate.models on the command line must be at least 2"),
    (["simulate", "--out", "new", "--models", "few"], 2, "--models"),
    (["simulate", "--out", "new", "--mechanism", "magic"], 2, "simulate.mechanism"),
    (["nightly"], 2, "there is nothing to ingest: add [[nightly.sources]]"),
    (["nightly", "--only", "rescore", "--warehouse", "gone"], 3, "the warehouse gone has no table responses"),
    (["nightly", "--skip", "fit"], 2, "there is no step fit; the steps are ingest, pack, rescore"),
    (["nightly", "--skip", "ingest,pack,rescore"], 2, "--skip leaves no step to do"),
    (["nightly", "--only", ""], 2, "--only leaves no step to do"),
    (["nightly", "--skip", "pack", "--only", "pack"], 2, "not allowed with"),
    (["nightly", *NIGHT, "--set", "nightly.metrics_file=gone/x.prom"], 2, "nightly.metrics_file gone/x.prom: gone"),
    (["nightly", *NIGHT, "--as-of", "today"], 2, "'today' is not a date"),
    (["nightly", *NIGHT], 2, "Java was not found"),
    (["status", "--warehouse", "gone"], 3, "the warehouse gone does not exist"),
    (["status", "--warehouse", "./full.csv"], 3, "the warehouse ./full.csv does not exist"),
    (["status", "--warehouse", "empty", "--nights", "0"], 2, "'0' is not a whole number from 1"),
    (["maintain", "--warehouse", "gone"], 3, "the warehouse gone does not exist"),
    (["maintain", "--warehouse", "empty", "--only", "backup"], 2, "add --backup URI"),
    (["maintain", "--warehouse", "empty", "--tables", "runs"], 2, "add --backup URI"),
    (["maintain", "--warehouse", "empty", "--skip", "sweep"], 2, "there is no step sweep"),
    (["maintain", "--warehouse", "empty", "--set", "maintain.vacuum_hours=24"], 2, "must be at least 168, not 24"),
    (["maintain", "--warehouse", "empty", "--backup", "full.csv/x"], 2, "is not a folder"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_cannot_work_ends_early_with_one_line_and_writes_nothing(
    tmp_path: Path, run: Run, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "full.csv").write_text("model,item,correct\nm,i,1\n", encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[solver", encoding="utf-8")
    (tmp_path / "unknown.toml").write_text("[solver]\ntolerence = 1.0\n", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    # The check for a Java is the first step of starting one: that takes a process without a session.
    done = run_alone(*arguments) if said == "Java was not found" else run(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("cbmm-spark: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_no_heavy_library_is_loaded_before_the_checks() -> None:
    program = (
        "import sys, cbmm_spark.cli.main; cbmm_spark.cli.main.main(['ingest', '--input', 'gone']);"
        "print(sorted({'pyspark', 'pandas', 'numpy', 'scipy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_is_help(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: cbmm-spark" in done.stdout


def test_every_key_of_the_simulation_is_an_option(run: Run) -> None:
    said = run("simulate", "--help").stdout
    for each in dataclasses.fields(SimulateConfig):
        assert f"--{each.name.replace('_', '-')} " in said


def test_version() -> None:
    from cbmm_spark import __version__

    assert run_alone("--version").stdout == f"cbmm-spark {__version__}\n"


@dataclasses.dataclass(frozen=True)
class Report:
    read: int = 1
    accepted: int = 1
    path: str = "input.csv"
    stopped: str = ""


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ingest command with everything behind the command line taken out."""

    @contextlib.contextmanager
    def no_session(*_arguments: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(cli, "_spark", no_session)


def ingest_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    import cbmm_spark.ingest.job

    def ingest(*_arguments: object, **_options: Any) -> Report:
        if error is not None:
            raise error
        return Report()

    monkeypatch.setattr(cbmm_spark.ingest.job, "ingest", ingest)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a\n  b"), 2),
        (InputError("a b"), 3),
        (NotConvergedError("a b"), 4),
        (ConflictError("a b"), 5),
        (CbmmError("a b"), 1),
    ],
)
def test_an_expected_error_is_one_line_and_its_code(
    without_spark: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    input_file: str,
    error: CbmmError,
    code: int,
) -> None:
    ingest_raising(monkeypatch, error)
    assert cli.main(["ingest", "--input", input_file]) == code
    assert capfd.readouterr() == ("", "cbmm-spark: a b\n")


def test_an_unexpected_error_shows_where_it_came_from(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], input_file: str
) -> None:
    ingest_raising(monkeypatch, ZeroDivisionError("oh"))
    assert cli.main(["ingest", "--input", input_file]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("Traceback")
    assert said.err.endswith("ZeroDivisionError: oh\n")


def wrapped(error: Exception, shown: str) -> Exception:
    """An error as another one shows it that was raised from it."""
    outer = RuntimeError(shown)
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("Job aborted.\n\tat scheduler\nCaused by: java.io.IOException: No space left on device\n\tat io"),
        wrapped(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the task failed"),
    ],
)
def test_a_full_disk_is_one_line_however_it_is_wrapped(
    without_spark: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    input_file: str,
    error: Exception,
) -> None:
    ingest_raising(monkeypatch, error)
    assert cli.main(["ingest", "--input", input_file]) == 1
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("cbmm-spark: the disk is full")
    assert "run again" in told


def test_ctrl_c_is_one_line_and_130(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], input_file: str
) -> None:
    ingest_raising(monkeypatch, KeyboardInterrupt())
    assert cli.main(["ingest", "--input", input_file]) == 130
    assert capfd.readouterr() == ("", "cbmm-spark: interrupted; nothing of this run was published\n")


def test_success_is_0_and_one_json_line(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], input_file: str
) -> None:
    ingest_raising(monkeypatch, None)
    assert cli.main(["ingest", "--input", input_file, "--warehouse", "w"]) == 0
    said = capfd.readouterr()
    assert said.err == ""
    line = json.loads(said.out)
    assert (line["event"], line["read"]) == ("ingested", 1)
    assert line["table"] == str(Path.cwd() / "w" / "responses")  # a relative folder counts from where one is


def test_an_input_without_a_single_response_is_rejected(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], input_file: str
) -> None:
    import cbmm_spark.ingest.job

    monkeypatch.setattr(cbmm_spark.ingest.job, "ingest", lambda *_a, **_o: Report(read=7, accepted=0))
    assert cli.main(["ingest", "--input", input_file, "--warehouse", "w"]) == 3
    said = capfd.readouterr()
    assert json.loads(said.out)["event"] == "ingested"  # what was refused is told all the same
    assert said.err.count("\n") == 1
    assert "none of the 7 rows" in said.err


def test_a_stopped_benchmark_is_told_after_what_was_taken_in(
    without_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], input_file: str
) -> None:
    import cbmm_spark.ingest.job

    report = Report(read=7, accepted=3, stopped="items have another content")
    monkeypatch.setattr(cbmm_spark.ingest.job, "ingest", lambda *_a, **_o: report)
    assert cli.main(["ingest", "--input", input_file, "--warehouse", "w"]) == 3
    said = capfd.readouterr()
    assert json.loads(said.out)["accepted"] == 3
    assert said.err.count("\n") == 1
    assert "items have another content; nothing of these benchmarks was written, the others were" in said.err


def test_binary_names_in_a_message_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    cli._complain("its columns are: a\x00b\x1b[31m")
    assert capfd.readouterr().err == "cbmm-spark: its columns are: a\\x00b\\x1b[31m\n"


def test_the_session_is_stopped_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    import cbmm_spark.spark.session

    stopped = []
    monkeypatch.setattr(cbmm_spark.spark.session, "build_session", lambda *_arguments: "session")
    monkeypatch.setattr(cbmm_spark.spark.session, "stop_session", stopped.append)
    from cbmm_spark.config.schema import Config

    with pytest.raises(ZeroDivisionError), cli._spark(Config(), "test"):
        raise ZeroDivisionError
    assert stopped == ["session"]
