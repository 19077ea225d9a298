"""Every page of docs/formats ends in a scored leaderboard: its example is run as it stands there."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cbmm_spark.cli import main as cli
from cbmm_spark.readers.registry import READERS

PAGES = sorted(path for path in (Path(__file__).parents[2] / "docs" / "formats").glob("*.md") if path.stem != "README")
_HERE = re.compile(r"^ *python - <<'END'\n(.*?)^ *END$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^ *(cbmm-spark .*)$", re.MULTILINE)


def programs(text: str) -> list[str]:
    """The Python programs of a page."""
    indented = [re.sub(r"^ {4}", "", code, flags=re.MULTILINE) for code in _HERE.findall(text)]
    return indented + _FENCED.findall(text)


def commands(text: str) -> list[list[str]]:
    """Its commands; those on a catalog that the page only names are left out, with the rescoring after them."""
    found = [shlex.split(line) for line in _COMMAND.findall(text.partition("## Example")[2])]
    return [command[1:] for command in found if "lake." not in " ".join(command)]


def found_from(folder: Path, command: list[str]) -> list[str]:
    """A command whose paths are whole: the JVM of the shared session is at home elsewhere."""
    whole = list(command)
    for place, option in enumerate(command[:-1]):
        if option in ("--warehouse", "--input", "--items", "--mapping") and ":" not in command[place + 1]:
            whole[place + 1] = str(folder / command[place + 1])
    return whole


def test_every_format_has_its_page() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [name for name in READERS if f"`{name}`" not in text] == []
    assert all(len(programs(path.read_text(encoding="utf-8"))) == 1 for path in PAGES)


@pytest.mark.pages
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_example_of_a_page_ends_in_a_scored_leaderboard(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    @contextlib.contextmanager
    def this_session(*_arguments: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(cli, "_spark", this_session)
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    (program,) = programs(text)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    ran = commands(text)[:2]
    assert [command[0] for command in ran] == ["ingest", "rescore"]
    for command in ran:
        assert cli.main(found_from(tmp_path, command)) == 0, capsys.readouterr().err
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ingested = next(event for event in events if event["event"] == "ingested")
    assert (ingested["new"] > 0, ingested["quarantined"]) == (True, {})
    assert ingested["format"] == page.stem or page.stem == "wide"
    scored = next(event for event in events if event["event"] == "rescored")
    ranks = [row["rank"] for row in scored["leaderboard"]["rows"]]
    assert ranks[0] == 1
    assert len(ranks) >= 8
