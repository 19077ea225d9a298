"""Running the commands as a user runs them: through the console command, in a process of its own where the process is
what is looked at, or through spark-submit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cbmm_spark.cli import main as cli
from tests.conftest import NO_CODEGEN, QUICK_JVM
from tests.jobs.commands import Done, Run
from tests.zipped import zipped_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **extra}


def finished(command: list[str], env: dict[str, str], cwd: Path) -> Done:
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`console("ingest", "--input", …)`: the console command on two local cores, away from the checkout."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    small = ["--set", "spark.master=local[2]", "--set", "spark.driver_memory=2g"]
    small += ["--set", "spark.conf.spark.sql.shuffle.partitions=3"]
    for key, value in {"spark.driver.extraJavaOptions": QUICK_JVM, **NO_CODEGEN}.items():
        small += ["--set", f"spark.conf.{key}={value}"]

    def run(command: str, *arguments: str, **env: str) -> Done:
        program = [sys.executable, "-m", "cbmm_spark.cli.main", command, *arguments]
        return finished(program + small, environment(**env), elsewhere)

    return run


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`here("ingest", …)`: the console command in this process, on the session of the tests; paths must be whole."""

    @contextlib.contextmanager
    def this_session(*_arguments: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(cli, "_spark", this_session)

    def run(command: str, *arguments: str) -> Done:
        capfd.readouterr()
        code = cli.main([command, *arguments])
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def package_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `make dist` zips it for --py-files."""
    return zipped_package(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def submit(package_zip: Path) -> Run:
    """`submit("ingest", "--input", …)`: spark-submit as the README shows; the package comes from the zip alone."""
    import pyspark

    program = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    program += ["--properties-file", "conf/spark-defaults.conf", "--py-files", str(package_zip)]
    program += ["--conf", "spark.sql.shuffle.partitions=3", "--conf", "spark.ui.enabled=false"]
    program += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]

    def run(command: str, *arguments: str, options: tuple[str, ...] = (), **env: str) -> Done:
        variables = environment(PYSPARK_DRIVER_PYTHON=sys.executable, **env)
        variables.pop("PYTHONPATH")
        return finished([*program, *options, f"jobs/{command}.py", *arguments], variables, ROOT)

    return run


@pytest.fixture(scope="session")
def history(console: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small simulated leaderboard history with its truth beside it."""
    out = tmp_path_factory.mktemp("history")
    done = console("simulate", "--out", str(out), "--models", "60", "--items", "200", "--benchmarks", "2")
    assert (done.code, done.err) == (0, "")
    return out
