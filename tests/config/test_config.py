"""The configuration: what is accepted, and that everything else is one line naming key, place and remedy."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbmm_spark.config import load as configuration
from cbmm_spark.config.load import load, load_mapping
from cbmm_spark.config.schema import Config, SolverConfig
from cbmm_spark.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [each.name for each in dataclasses.fields(Config) if each.name != "warehouse"]


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "given.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def complaint(path: str | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def outcome(attempt: Callable[[], Config]) -> tuple[Config, None] | tuple[None, str]:
    """What came of it: a configuration, or the message of the refusal. Any other exception fails the test."""
    try:
        return attempt(), None
    except ConfigError as error:
        return None, str(error)


def all_keys(table: dict[str, Any], prefix: str = "") -> set[str]:
    keys = set()
    for name, value in table.items():
        keys |= all_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return keys


# --- what the files in conf/ say --------------------------------------------------------------------------------------


def test_local_toml_states_exactly_the_defaults() -> None:
    assert load(ROOT / "conf" / "local.toml") == Config() == load(None)


def test_local_toml_names_every_key() -> None:
    in_file = all_keys(tomllib.loads((ROOT / "conf" / "local.toml").read_text(encoding="utf-8")))
    assert in_file == all_keys(dataclasses.asdict(Config()))


def test_every_key_of_the_files_has_a_comment() -> None:
    for name in ("local.toml", "cluster.toml"):
        lines = (ROOT / "conf" / name).read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(lines):
            if "=" in line and not line.startswith("#"):
                block = []  # keys that stand together share the comment above them
                for above in reversed(lines[:at]):
                    if not above.strip() or above.startswith("["):
                        break
                    block.append(above)
                assert any(above.startswith("#") for above in block), f"{name}: {line}"


def test_spark_defaults_name_the_installed_versions() -> None:
    from cbmm_spark.spark import delta_jars as jars

    text = (ROOT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8")
    settings = dict(line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    assert settings["spark.jars.packages"] == jars.coordinates()
    assert settings["spark.jars.excludes"] == jars.excludes()


def test_cluster_toml_changes_only_known_keys() -> None:
    assert load(ROOT / "conf" / "cluster.toml").warehouse == "s3a://leaderboard/warehouse"


SOURCES = """
[nightly]
metrics_file = "m.prom"
[[nightly.sources]]
name = "a"
input = "/a"
[[nightly.sources]]
name = "b"
input = "/b"
format = "lm-eval"
optional = true
"""


def test_sources_are_a_list_of_tables_each_with_its_defaults(tmp_path: Path) -> None:
    night = load(written(tmp_path, SOURCES)).nightly
    assert night.metrics_file == "m.prom"
    first, second = night.sources
    assert (first.name, first.input, first.format, first.benchmark, first.optional) == ("a", "/a", "auto", "", False)
    assert (second.name, second.format, second.optional) == ("b", "lm-eval", True)
    overridden = load(None, ['nightly.sources=[{name = "c", input = "/c"}]']).nightly.sources
    assert [source.name for source in overridden] == ["c"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[nightly.sources]]\nname = "a"', "source 1 of nightly.sources has no input"),
        ("[[nightly.sources]]\noptional = true", "source 1 of nightly.sources has no name and no input"),
        (SOURCES.replace('"b"', '"a"'), "two of nightly.sources are called a"),
        (SOURCES.replace("format", "fromat"), "did you mean nightly.sources.2.format?"),
        (SOURCES.replace("= true", '= "yes"'), "nightly.sources.2.optional"),
        ("[maintain]\nsmall_file_mb = 300", "maintain.small_file_mb (300) is above maintain.large_file_mb (256)"),
    ],
)
def test_a_wrong_source_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    message = complaint(path)
    assert said in message
    assert path in message


# --- files ------------------------------------------------------------------------------------------------------------


def test_values_of_a_file_replace_defaults_and_leave_the_rest(tmp_path: Path) -> None:
    config = load(written(tmp_path, 'warehouse = "w"\n[solver]\ntolerance = 1\n[ingest.columns]\nmodel = ["m"]\n'))
    assert (config.warehouse, config.solver.tolerance, config.ingest.columns.model) == ("w", 1.0, ("m",))
    assert type(config.solver.tolerance) is float
    assert dataclasses.replace(config.solver, tolerance=SolverConfig().tolerance) == SolverConfig()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in complaint(str(tmp_path / "none.toml"))


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be read" in complaint(str(tmp_path))


@pytest.mark.parametrize("text", ["[solver", "a = ", "warehouse = 'x'\nwarehouse = 'y'", "\x00"])
def test_broken_toml_is_named(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    assert f"{path} is not valid TOML" in complaint(path)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b"warehouse = '\xe9'")
    assert "not UTF-8" in complaint(str(path))


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("warehous = 'x'", "warehous", "warehouse"),
        ("[solvr]\nsigma = 1.0", "solvr", "solver"),
        ("[solver]\ntolerence = 1.0", "solver.tolerence", "solver.tolerance"),
        ("[ingest.colums]\nmodel = ['m']", "ingest.colums", "ingest.columns"),
        ("[ingest.columns]\nmodels = ['m']", "ingest.columns.models", "ingest.columns.model"),
        ("[simulate]\nbenchmark = 3", "simulate.benchmark", "simulate.benchmarks"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path, text: str, key: str, near: str) -> None:
    path = written(tmp_path, text)
    assert complaint(path) == f"unknown key {key} in {path}; did you mean {near}?"


def test_an_unknown_key_like_no_other_lists_the_known_ones(tmp_path: Path) -> None:
    assert "known here: items_per_block, sparse_below" in complaint(written(tmp_path, "[pack]\nzzz = 1"))


WRONG = [
    ("solver.max_iterations", "1.5", "a whole number"),
    ("solver.max_iterations", "true", "a whole number"),
    ("solver.max_iterations", '"many"', "a whole number"),
    ("solver.max_iterations", "0", "at least 1"),
    ("solver.tolerance", '"small"', "a finite number"),
    ("solver.tolerance", "nan", "a finite number"),
    ("solver.tolerance", "inf", "a finite number"),
    ("solver.tolerance", "0", "at least 1e-09"),
    ("solver.tolerance", "false", "a finite number"),
    ("solver.sigma", "-1.0", "above 0"),
    ("solver.method", '"newton"', '"nodes" or "paper"'),
    ("solver.method", "1", '"nodes" or "paper"'),
    ("solver.lambda_ability", '"automatic"', 'a finite number or "auto"'),
    ("solver.lambda_ability", "-0.1", "at least 0"),
    ("solver.lambda_ability", "[]", 'a finite number or "auto"'),
    ("rescore.level", "1.0", "below 1"),
    ("rescore.level", "0", "above 0"),
    ("rescore.top", "-1", "at least 0"),
    ("pack.items_per_block", "0", "at least 1"),
    ("pack.sparse_below", "1.1", "at most 1"),
    ("ingest.threshold", "2", "at most 1"),
    ("ingest.duplicates", '"newest"', '"latest" or "first" or "error"'),
    ("ingest.default_benchmark", '""', "a non-empty text"),
    ("ingest.default_benchmark", '"  "', "a non-empty text"),
    ("ingest.date_formats", "[]", "a non-empty list of texts"),
    ("ingest.date_formats", '"yyyy"', "a non-empty list of texts"),
    ("ingest.date_formats", '["yyyy", 1]', "a non-empty list of texts"),
    ("ingest.columns.model", '[""]', "a non-empty list of texts"),
    ("ingest.columns", "1", "a table"),
    ("scales.overall", '"yes"', "true or false"),
    ("scales.overall", "1", "true or false"),
    ("scales.groups", '["a"]', "a table"),
    ("scales.groups.coding", "1", "a non-empty list of texts"),
    ("simulate.missing", "1.0", "below 1"),
    ("simulate.models", "1", "at least 2"),
    ("spark.conf", '"x"', "a table"),
    ("spark.driver_memory", '"lots"', "a size"),
    ("nightly.on_source_error", '"ignore"', '"stop" or "continue"'),
    ("nightly.metrics_file", "1", "a non-empty text"),
    ("nightly.sources", '"a"', "a list of tables, each [[nightly.sources]]"),
    ("nightly.sources", '["a"]', "must be a table"),
    ("maintain.vacuum_hours", "167", "at least 168"),
    ("maintain.small_file_mb", "0", "at least 1"),
    ("warehouse", "1", "a non-empty text"),
    ("warehouse", "1979-05-27", "a non-empty text"),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_a_wrong_value_in_a_file_names_key_and_expectation(tmp_path: Path, key: str, value: str, expected: str) -> None:
    section, _, name = key.rpartition(".")
    head = f"[{section}]\n" if section else ""
    path = written(tmp_path, f"{head}{name} = {value}\n")
    message = complaint(path)
    assert key in message
    assert path in message
    assert expected in message


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [each for each in WRONG if not (each[0] == "warehouse" or each[1][1:-1].strip() == "")],
)
def test_a_wrong_override_names_key_and_expectation(key: str, value: str, expected: str) -> None:
    message = complaint(None, f"{key}={value}")
    assert key in message
    assert "command line" in message
    assert expected in message


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_must_be_a_table(tmp_path: Path, section: str) -> None:
    assert f"{section} in" in complaint(written(tmp_path, f"{section} = 3"))


def test_spark_settings_must_be_quoted(tmp_path: Path) -> None:
    good = load(written(tmp_path, '[spark.conf]\n"spark.sql.shuffle.partitions" = "8"\n'))
    assert good.spark.conf == {"spark.sql.shuffle.partitions": "8"}
    assert "spark.conf.spark" in complaint(written(tmp_path, "[spark.conf]\nspark.sql.shuffle.partitions = '8'\n"))
    assert "must be a non-empty text" in complaint(written(tmp_path, "[spark.conf]\n'spark.a' = 8\n"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["solver.min_nodes=100"], "solver.min_nodes (100) is above solver.max_nodes (96)"),
        (["simulate.items=4"], "simulate.items (4) is below simulate.benchmarks (5)"),
        (['scales.groups.overall=["a"]'], "scales.groups.overall"),
        (["scales.overall=false", "scales.per_benchmark=false"], "no scale is left"),
    ],
)
def test_keys_that_exclude_each_other(overrides: list[str], said: str) -> None:
    assert said in complaint(None, *overrides)


# --- mappings ---------------------------------------------------------------------------------------------------------


def mapping(folder: Path, text: str) -> str:
    path = folder / "source.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_mapping_is_laid_over_ingest_and_nothing_else(tmp_path: Path) -> None:
    config = load(None, ["ingest.threshold=0.25", "ingest.status.slow=0.5", "solver.sigma=2"])
    text = (
        'fractions = "threshold"\n[status]\nslow = 0.0\n[filters]\ngsm8k = ["strict"]\n[flags]\nno_answer = "missing"\n'
    )
    mapped = load_mapping(config, mapping(tmp_path, text))
    assert (mapped.ingest.fractions, mapped.ingest.threshold) == ("threshold", 0.25)
    assert mapped.ingest.status == {**config.ingest.status, "slow": 0.0}
    assert (mapped.ingest.filters, mapped.ingest.flags) == ({"gsm8k": ("strict",)}, {"no_answer": "missing"})
    assert dataclasses.replace(mapped, ingest=config.ingest) == config
    assert config.ingest.fractions == "soft"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[metrcs]\na = ['x']", "unknown key metrcs in {path}; did you mean metrics?"),
        ("[columns]\nmodels = ['m']", "unknown key columns.models in {path}; did you mean columns.model?"),
        ("threshold = 2", "threshold in {path} must be at most 1"),
        ("[flags]\nno_answer = 'maybe'", 'flags.no_answer in {path} must be "wrong" or "missing"'),
        ("[ingest.status]\nslow = 0.0", "mapping file {path} holds a table ingest: write its keys without it"),
        ("[status", "mapping file {path} is not valid TOML"),
    ],
)
def test_what_is_wrong_in_a_mapping_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = mapping(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load_mapping(Config(), path)
    assert said.format(path=path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_mapping_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mapping file .*gone\.toml does not exist"):
        load_mapping(Config(), tmp_path / "gone.toml")


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "section", "name", "expected"),
    [
        ("solver.tolerance=1e-4", "solver", "tolerance", 1e-4),
        (" solver.tolerance = 1 ", "solver", "tolerance", 1.0),
        ("solver.method=paper", "solver", "method", "paper"),
        ('solver.method="paper"', "solver", "method", "paper"),
        ("solver.lambda_ability=0.5", "solver", "lambda_ability", 0.5),
        ("scales.overall=false", "scales", "overall", False),
        ("ingest.default_benchmark=007", "ingest", "default_benchmark", "007"),
        ("ingest.default_benchmark=true", "ingest", "default_benchmark", "true"),
        ("ingest.default_benchmark=a=b", "ingest", "default_benchmark", "a=b"),
        ("spark.conf.spark.executor.cores=2", "spark", "conf", {"spark.executor.cores": "2"}),
        ('scales.groups.v1.5=["a","b"]', "scales", "groups", {"v1.5": ("a", "b")}),
    ],
)
def test_an_override_is_read_as_its_key_needs(override: str, section: str, name: str, expected: object) -> None:
    value = getattr(getattr(load(None, [override]), section), name)
    assert value == expected
    assert type(value) is type(expected)


def test_later_overrides_win_over_earlier_and_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[solver]\ntolerance = 0.5\nsigma = 2.0\n")
    config = load(path, ["solver.tolerance=0.25", "solver.tolerance=0.125"])
    assert (config.solver.tolerance, config.solver.sigma) == (0.125, 2.0)


def test_settings_of_tables_with_free_names_add_up() -> None:
    config = load(None, ["spark.conf.spark.a=1", "spark.conf.spark.b=2", "spark.conf.spark.a=3"])
    assert config.spark.conf == {"spark.a": "3", "spark.b": "2"}


@pytest.mark.parametrize("text", ["", "=", "=1", "solver.tolerance", "solver", "solver.tolerance 1"])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    assert "section.key=value" in complaint(None, text)


@pytest.mark.parametrize(
    "text", ["warehouse.x=1", "solver.tolerance.x=1", "solver..tolerance=1", ".=1", "spark.conf=1"]
)
def test_an_override_of_something_else_is_refused(text: str) -> None:
    complaint(None, text)


def test_a_section_can_be_replaced_as_if_read_from_a_file() -> None:
    config = configuration.replace_section(Config(), "simulate", {"models": 10}, "on the command line")
    assert config == dataclasses.replace(Config(), simulate=dataclasses.replace(Config().simulate, models=10))
    with pytest.raises(ConfigError, match=r"simulate\.models on the command line must be at least 2, not 1"):
        configuration.replace_section(Config(), "simulate", {"models": 1}, "on the command line")


# --- properties -------------------------------------------------------------------------------------------------------

LEAVES = [
    (section, each.name)
    for section in SECTIONS
    for each in dataclasses.fields(getattr(Config(), section))
    if isinstance(getattr(getattr(Config(), section), each.name), bool | int | float | str)
]


@given(text=st.text(max_size=40))
def test_any_override_is_taken_or_refused_in_one_line(text: str) -> None:
    _, refused = outcome(lambda: load(None, [text]))
    assert "\n" not in (refused or "")


@given(
    leaf=st.sampled_from(LEAVES),
    value=st.one_of(
        st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.none(), st.lists(st.integers())
    ),
)
def test_any_value_is_taken_unchanged_or_refused_naming_its_key(leaf: tuple[str, str], value: object) -> None:
    section, name = leaf
    config, refused = outcome(lambda: configuration.replace_section(Config(), section, {name: value}, "in a test"))
    if config is None:
        assert f"{section}.{name} in a test" in refused
        assert "\n" not in refused
    else:
        taken = getattr(getattr(config, section), name)
        assert taken == value
        assert isinstance(taken, bool) == isinstance(value, bool)
        assert not isinstance(taken, float) or math.isfinite(taken)


@given(
    tolerance=st.floats(1e-12, 10),
    models=st.integers(2, 10**6),
    default=st.text(min_size=1).filter(lambda t: t.strip()),
)
def test_json_holds_everything_and_is_stable(tolerance: float, models: int, default: str) -> None:
    config = dataclasses.replace(
        Config(),
        solver=dataclasses.replace(SolverConfig(), tolerance=tolerance),
        simulate=dataclasses.replace(Config().simulate, models=models),
        ingest=dataclasses.replace(Config().ingest, default_benchmark=default),
    )
    text = config.as_json()
    read = json.loads(text)
    assert "\n" not in text
    assert list(read) == sorted(read)
    assert all_keys(read) == all_keys(json.loads(Config().as_json()))
    assert (read["solver"]["tolerance"], read["simulate"]["models"]) == (tolerance, models)
    assert read["ingest"]["default_benchmark"] == default


def test_every_number_of_the_configuration_has_limits() -> None:
    for section in SECTIONS:
        kind = type(getattr(Config(), section))
        for each in dataclasses.fields(kind):
            hint = typing.get_type_hints(kind)[each.name]
            if hint in (int, float) or float in typing.get_args(hint):
                assert "limits" in each.metadata, f"{section}.{each.name}"
