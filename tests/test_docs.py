"""What the documents say of the repository: links lead somewhere, named files exist, lines are not too long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
)
COMMENTED = sorted((ROOT / "conf").glob("*.toml"))
CODE = sorted((ROOT / "cbmm_spark").rglob("*.py"))

_ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s")
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_PATH = re.compile(r"(?<![\w./-])(?:cbmm_spark|jobs|conf|tests|benchmarks|deploy|docs)/[\w./*…-]*")
_MODULE = re.compile(r"python -m (cbmm_spark[\w.]*|benchmarks\b)")


def without_code(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are no code, with their numbers from 1: fenced and indented blocks are left out."""
    is_fenced, is_indented, after_blank = False, False, True
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_fenced = not is_fenced
            continue
        if is_fenced:
            continue
        if line.strip():
            is_indented = line.startswith("    ") and not _ITEM.match(line) and (after_blank or is_indented)
        after_blank = not line.strip()
        if not is_indented:
            yield number, line


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are neither code nor of a table."""
    return ((number, line) for number, line in without_code(text) if not line.lstrip().startswith("|"))


def too_long(text: str) -> list[int]:
    """Lines of prose that are too long, by number; what a link alone makes too long is not."""
    return [number for number, line in prose(text) if len(_LINK.sub("", line)) > WIDTH]


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links of a page to files, or to headings, that are not there."""
    found = []
    for _, line in without_code(text):
        for link in _LINK.findall(line):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, heading = link.partition("#")
            target = (page.parent / path).resolve()
            there = target.exists()
            if there and heading:
                there = heading in headings(target.read_text(encoding="utf-8") if path else text)
            if not there:
                found.append(link)
    return found


def headings(text: str) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    titles = (line.lstrip("#").strip().lower() for _, line in without_code(text) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def missing_paths(text: str) -> list[str]:
    """Files and folders of this repository that a text names and that are not there; * and … stand for any name."""
    text = re.sub(r"https?://\S+|\]\([^)]*\)", "", text)
    found = []
    for path in _PATH.findall(text):
        pattern = path.rstrip(".-").replace("…", "*").rstrip("/")
        # A record of a decision may be named by its number alone.
        if not any(ROOT.glob(pattern)) and not any(ROOT.glob(f"{pattern}-*.md")):
            found.append(path)
    return found


def missing_modules(text: str) -> list[str]:
    """Modules that a text starts with `python -m` and that cannot be started so."""
    found = []
    for name in _MODULE.findall(text):
        path = ROOT.joinpath(*name.split("."))
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
            found.append(name)
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def said_in(path: Path) -> str:
    """All docstrings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    comments = [line.partition("#")[2] for line in text.split("\n") if "# " in line]
    return "\n".join([*strings, *comments])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_prose_is_not_wider_than_a_screen(page: Path) -> None:
    assert too_long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("file", COMMENTED, ids=named)
def test_comments_are_not_wider_than_a_screen(file: Path) -> None:
    lines = enumerate(file.read_text(encoding="utf-8").split("\n"), 1)
    assert [number for number, line in lines if line.lstrip().startswith("#") and len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [*PAGES, *COMMENTED], ids=named)
def test_named_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_paths(text) == []
    assert missing_modules(text) == []


def test_files_named_in_the_code_exist() -> None:
    found = {named(path): missing_paths(said_in(path)) + missing_modules(said_in(path)) for path in CODE}
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_every_room_is_in_the_readme() -> None:
    told = re.findall(r"^\| (`[^|]+`) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    rooms = {path.parent.name for path in (ROOT / "cbmm_spark").glob("*/__init__.py")}
    assert rooms - {name for cell in told for name in re.findall(r"`(\w+)`", cell)} == set()


def test_what_the_readme_says_to_change_is_there() -> None:
    """The table "to change | begin in": its files hold the functions and classes that stand beside them."""
    _, _, rows = (ROOT / "README.md").read_text(encoding="utf-8").partition("| to change |")
    told = [re.findall(r"`([^`]+)`", row) for row in rows.partition("\n\n")[0].split("\n")[2:]]
    assert told
    for names in told:
        code = [(ROOT / name).read_text(encoding="utf-8") for name in names if "/" in name]
        assert code
        missing = [name for name in names if "/" not in name and not _defines(code, name)]
        assert missing == [], names


def _defines(code: Iterable[str], name: str) -> bool:
    return any(re.search(rf"^(def|class) {re.escape(name)}\b", text, re.MULTILINE) for text in code)


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_every_decision_is_listed_under_its_title() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    files = sorted(path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md")
    assert [path.name for path in files if f"]({path.name})" not in listed] == []


LONG = "word " * 25


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LONG}\n", [1]),
        (f"- item\n  {LONG}", [2]),
        (f"- item\n    - {LONG}", [2]),
        (f"text\n    {LONG}", [2]),  # no code: it follows a line of the same paragraph
        (f"    {LONG}", []),
        (f"text\n\n    code\n    {LONG}\n\n    {LONG}", []),
        (f"```sh\n{LONG}\n```\n{LONG}", [4]),
        (f"| {LONG} | {LONG} |", []),
        (f"[text](https://example.org/{'x' * WIDTH})", []),
        ("é" * WIDTH, []),
    ],
)
def test_lines_that_are_too_long_are_found(text: str, found: list[int]) -> None:
    assert too_long(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](docs/method.md)", []),
        ("[a](docs/method.md#8-what-is-published)", []),
        ("[a](https://example.org/none)", []),
        ("[a](docs/nothing.md)", ["docs/nothing.md"]),
        ("[a](docs/method.md#nothing)", ["docs/method.md#nothing"]),
        ("[a](#nothing)", ["#nothing"]),
        ("# A title: of `two` words\n\n[a](#a-title-of-two-words)", []),
    ],
)
def test_links_that_lead_nowhere_are_found(text: str, found: list[str]) -> None:
    assert dead_links(ROOT / "README.md", text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `cbmm_spark/errors.py`.", []),
        ("see `jobs/`, `conf/*.toml`, `docs/decisions/0013`", []),
        ("https://example.org/docs/nothing.md and [b](docs/nothing.md)", []),
        ("see `cbmm_spark/jars.py`, tests/nothing.py.", ["cbmm_spark/jars.py", "tests/nothing.py."]),
    ],
)
def test_files_that_are_not_there_are_found(text: str, found: list[str]) -> None:
    assert missing_paths(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`python -m cbmm_spark.tables > docs/tables.md`", []),
        ("`python -m benchmarks nights`", []),
        ("`python -m cbmm_spark.demo`", ["cbmm_spark.demo"]),
        ("`python -m cbmm_spark`", ["cbmm_spark"]),
    ],
)
def test_modules_that_cannot_be_started_are_found(text: str, found: list[str]) -> None:
    assert missing_modules(text) == found
