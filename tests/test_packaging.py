"""What is shipped: everything the package reads is in the wheel and in the zip, and is found from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from cbmm_spark.spark import session
from tests.zipped import ROOT, zipped_package

PACKAGE = ROOT / "cbmm_spark"


def files_of_the_package() -> set[str]:
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in found}


def test_the_zip_holds_every_file_of_the_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped_package(tmp_path)) as archive:
        assert set(archive.namelist()) == files_of_the_package()


def test_the_wheel_is_told_of_every_file_of_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["cbmm_spark"]
    packed = {str(path.relative_to(ROOT)) for pattern in ["**/*.py", *patterns] for path in PACKAGE.glob(pattern)}
    assert packed == files_of_the_package()


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_a_packed_file_is_found_in_a_checkout() -> None:
    assert session.packed_file("log4j2.properties") == PACKAGE / "spark" / "log4j2.properties"


def test_a_packed_file_is_found_in_a_zip_and_its_copy_goes_with_the_process(tmp_path: Path) -> None:
    package = zipped_package(tmp_path)
    program = (
        "import cbmm_spark.spark.session as session\n"
        "path = session.packed_file('log4j2.properties')\n"
        "print(session.__file__, path, path.read_text(), sep='\\n', end='')\n"
    )
    command = [sys.executable, "-P", "-c", program]
    env = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=120)
    module, path, text = done.stdout.split("\n", 2)
    assert module.startswith(str(package))
    assert text == (PACKAGE / "spark" / "log4j2.properties").read_text(encoding="utf-8")
    assert not Path(path).exists()


def test_a_file_that_was_not_packed_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"lacks nothing\.properties"):
        session.packed_file("nothing.properties")


def test_the_copy_for_people_says_the_same() -> None:
    """conf/spark-defaults.conf names conf/log4j2.properties; sessions started from Python use the packed one."""
    packed = (PACKAGE / "spark" / "log4j2.properties").read_text(encoding="utf-8")
    for_people = (ROOT / "conf" / "log4j2.properties").read_text(encoding="utf-8")
    heading, _, rest = for_people.partition("\n\n")
    assert heading.startswith("# A copy of cbmm_spark/spark/log4j2.properties")
    assert rest == packed
