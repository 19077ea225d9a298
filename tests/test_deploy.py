"""The templates of deploy/: what they start is a command that there is, with options that it has."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from cbmm_spark.cli import arguments

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"


def of_cron() -> list[list[str]]:
    text = (DEPLOY / "cron" / "cbmm-spark").read_text(encoding="utf-8")
    jobs = [line for line in text.splitlines() if re.match(r"[\d*]", line)]
    return [shlex.split(found) for job in jobs for found in re.findall(r"cbmm-spark ([a-z]+ --config [^>;]*)", job)]


def of_kubernetes() -> list[list[str]]:
    text = (DEPLOY / "kubernetes" / "nightly.yaml").read_text(encoding="utf-8")
    return [json.loads(found) for found in re.findall(r"^ *args: (\[.*\])$", text, re.MULTILINE)]


def of_airflow() -> list[list[str]]:
    tree = ast.parse((DEPLOY / "airflow" / "cbmm_nightly.py").read_text(encoding="utf-8"))
    lists = [each.value for each in tree.body if isinstance(each, ast.Assign) and isinstance(each.value, ast.List)]
    return [ast.literal_eval(each)[1:] for each in lists]


COMMANDS = [
    *(("cron", command) for command in of_cron()),
    *(("kubernetes", command) for command in of_kubernetes()),
    *(("airflow", command) for command in of_airflow()),
]


def test_every_template_starts_a_night() -> None:
    assert {where for where, command in COMMANDS if command[0] == "nightly"} == {"cron", "kubernetes", "airflow"}


@pytest.mark.parametrize(("where", "command"), COMMANDS)
def test_the_command_is_one_that_there_is(where: str, command: list[str]) -> None:
    given = arguments.build_parser().parse_args(command)
    assert given.config.endswith("night.toml")
    assert given.output == "json"


def test_every_template_is_listed() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    for folder in DEPLOY.iterdir():
        if folder.is_dir():
            assert f"]({folder.name}/" in text, folder.name
    for target in re.findall(r"\]\(([a-z][^)#]*)\)", text):
        assert (DEPLOY / target).exists(), target
