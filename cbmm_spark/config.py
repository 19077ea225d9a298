"""The configuration: a TOML file as typed, validated, frozen dataclasses.

`load` is the only way from text to a `Config`. Whatever is wrong (an unknown key, a wrong type, a value out of
range) is one `ConfigError` that names the key, where it was given and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cbmm_spark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number or a list may be; kept in the field's metadata.

    Parameters
    ----------
    minimum, maximum
        Bounds, inclusive unless `above` or `below` says otherwise.
    above, below
        Whether the lower (`above`) or upper (`below`) bound itself is excluded.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False
    below: bool = False

    def complaint(self, value: float) -> str | None:
        """What is wrong with `value`, or None."""
        if value < self.minimum or (self.above and value == self.minimum):
            return f"must be {'above' if self.above else 'at least'} {self.minimum:g}"
        if value > self.maximum or (self.below and value == self.maximum):
            return f"must be {'below' if self.below else 'at most'} {self.maximum:g}"
        return None


def _within(
    default: Any, minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False, below: bool = False
) -> Any:
    return field(default=default, metadata={"limits": Limits(minimum, maximum, above, below)})


@dataclass(frozen=True)
class ColumnsConfig:
    """Names under which a long input may hold each column; the first one present is taken."""

    model: tuple[str, ...] = ("model", "model_id")
    item: tuple[str, ...] = ("item", "item_id")
    score: tuple[str, ...] = ("correct", "score")
    benchmark: tuple[str, ...] = ("benchmark",)
    attempt: tuple[str, ...] = ("attempt", "run")
    date: tuple[str, ...] = ("date", "evaluated_at")


Strictness = Literal["ignore", "warn", "fail"]
"""What a check does when it finds something."""


@dataclass(frozen=True)
class ChecksConfig:
    """What is looked for in an input before anything is written."""

    content: Strictness = "fail"
    names: Strictness = "warn"
    vanished: Strictness = "warn"


ANY = "*"
"""Stands for every benchmark that a table of `[ingest]` does not name."""

METRICS = (
    *(
        "exact_match",
        "acc_norm",
        "acc",
        "pass@1",
        "pass_at_1",
        "correct",
        "is_correct",
        "resolved",
        "score",
        "prefix_match",
    ),
    *("quasi_exact_match", "inst_level_strict_acc", "prompt_level_strict_acc", "mcc", "f1", "em"),
)
"""Names of metrics known as scores of single answers, the preferred ones first."""

STATUS: Mapping[str, float | Literal["missing"]] = types.MappingProxyType(
    {
        "resolved": 1.0,
        "unresolved": 0.0,
        "passed": 1.0,
        "failed": 0.0,
        "timeout": 0.0,
        "empty": 0.0,
        "error": "missing",
        "incomplete": "missing",
    }
)
"""What a status in the place of a score means."""


@dataclass(frozen=True)
class IngestConfig:
    """How evaluation results are read and which of them are accepted."""

    default_benchmark: str = "default"
    duplicates: Literal["latest", "first", "error"] = "latest"
    attempts: Literal["all", "latest", "first", "error"] = "all"
    fractions: Literal["soft", "threshold", "reject"] = "soft"
    threshold: float = _within(0.5, 0, 1)
    date_formats: tuple[str, ...] = ("yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]", "yyyy-MM-dd HH:mm[:ss]", "yyyy-MM-dd")
    revision: Literal["key", "ignore"] = "key"
    version: Literal["key", "ignore"] = "key"
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {ANY: METRICS})
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    full_score: Mapping[str, float] = field(default_factory=dict, metadata={"limits": Limits(0, above=True)})
    status: Mapping[str, float | Literal["missing"]] = field(
        default_factory=lambda: dict(STATUS), metadata={"limits": Limits(0, 1)}
    )
    flags: Mapping[str, Literal["wrong", "missing"]] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    benchmarks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PackConfig:
    """How responses are packed into blocks."""

    items_per_block: int = _within(1024, 1, 1 << 20)
    sparse_below: float = _within(0.015625, 0, 1)


@dataclass(frozen=True)
class ScalesConfig:
    """Which sets of benchmarks share one ability scale."""

    per_benchmark: bool = True
    overall: bool = True
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SolverConfig:
    """The penalties of the model and when its fit ends."""

    method: Literal["nodes", "paper"] = "nodes"
    sigma: float = _within(1.0, 0, above=True)
    lambda_ability: float | Literal["auto"] = _within("auto", 0)
    lambda_discrimination: float = _within(0.25, 0)
    lambda_easiness: float = _within(0.1, 0)
    tolerance: float = _within(1e-4, 1e-9)
    paper_tolerance: float = _within(1e-4, 0, above=True)
    objective_tolerance: float = _within(1e-9, 0)
    max_iterations: int = _within(500, 1)
    anderson_depth: int = _within(4, 0, 20)
    node_spacing: float = _within(0.2, 0, 2, above=True)
    min_nodes: int = _within(32, 16, 4096)
    max_nodes: int = _within(96, 16, 4096)
    partitions: int = _within(0, 0)
    warm_start: bool = True
    starts: int = _within(1, 1, 1000)
    seed: int = _within(20260511, 0)


@dataclass(frozen=True)
class RescoreConfig:
    """What is published beside the estimates, and when a model, item or scale is called thin."""

    level: float = _within(0.95, 0, 1, above=True, below=True)
    few_items: int = _within(10, 0)
    few_responses: int = _within(10, 0)
    min_items: int = _within(20, 1)
    disconnected: Literal["refuse", "publish"] = "refuse"
    claim_minutes: float = _within(30.0, 1)
    top: int = _within(20, 0)


@dataclass(frozen=True)
class LinkingConfig:
    """How the scales of a run are put on those of earlier runs; see docs/linking.md."""

    method: Literal["stocking-lord", "mean-sigma", "off"] = "stocking-lord"
    min_anchors: int = _within(20, 1)
    reference: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateActions:
    """What each gate does when its limit is crossed."""

    models: Strictness = "fail"
    items: Strictness = "fail"
    responses: Strictness = "fail"
    coverage: Strictness = "fail"
    moved: Strictness = "fail"
    scales: Strictness = "fail"
    nulls: Strictness = "fail"


@dataclass(frozen=True)
class GatesConfig:
    """How far a night may be from the last published one before somebody has to look."""

    max_drop_models: float = _within(0.1, 0, 1)
    max_drop_items: float = _within(0.1, 0, 1)
    max_drop_responses: float = _within(0.1, 0, 1)
    max_coverage_drop: float = _within(0.1, 0, 1)
    max_moved: float = _within(0.2, 0, 1)
    moved_se: float = _within(3.0, 0, above=True)
    actions: GateActions = field(default_factory=GateActions)


@dataclass(frozen=True)
class RetentionConfig:
    """How long nights are kept."""

    keep_nights: int = _within(400, 0)
    keep_weekly: int = _within(0, 0)
    keep_monthly: int = _within(120, 0)
    keep_saved_nights: int = _within(14, 1)
    keep_failed_days: int = _within(30, 1)


@dataclass(frozen=True)
class SourceConfig:
    """One input of a night; the options mean what those of `cbmm-spark ingest` mean, an empty text: not given."""

    name: str = ""
    input: str = ""
    format: str = "auto"
    benchmark: str | Literal[""] = ""
    model: str | Literal[""] = ""
    items: str | Literal[""] = ""
    mapping: str | Literal[""] = ""
    optional: bool = False


@dataclass(frozen=True)
class NightlyConfig:
    """What `cbmm-spark nightly` reads, and when it gives up."""

    on_source_error: Literal["stop", "continue"] = "stop"
    skip_unchanged: bool = True
    metrics_file: str | Literal[""] = ""
    sources: tuple[SourceConfig, ...] = ()


@dataclass(frozen=True)
class MaintainConfig:
    """How long files that no current version needs are kept, and which files are too small."""

    vacuum_hours: int = _within(168, 168, 24 * 3660)
    small_file_mb: int = _within(64, 1, 1024)
    large_file_mb: int = _within(256, 1, 4096)


@dataclass(frozen=True)
class SimulateConfig:
    """The leaderboard history that `simulate` draws."""

    models: int = _within(400, 2)
    benchmarks: int = _within(5, 1)
    items: int = _within(3000, 1)
    start: str = "2025-05-01"
    months: int = _within(18, 1, 1200)
    perfect: int = _within(2, 0)
    hopeless: int = _within(2, 0)
    missing: float = _within(0.03, 0, 1, below=True)
    mechanism: Literal["mcar", "mar", "mnar"] = "mcar"
    not_run: float = _within(0.0, 0, 1, below=True)
    discrimination: Literal["lognormal", "uniform"] = "lognormal"
    uninformative: float = _within(0.08, 0, 1)
    duplicates: float = _within(0.002, 0, 0.5)
    miskeyed: float = _within(0.002, 0, 1)
    seed: int = _within(20260511, 0)


@dataclass(frozen=True)
class SparkConfig:
    """How Spark is started where it was not submitted."""

    master: str = "local[*]"
    driver_memory: str = "4g"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """Everything that can be set. The defaults are those of `conf/local.toml`."""

    warehouse: str = "warehouse"
    ingest: IngestConfig = field(default_factory=IngestConfig)
    pack: PackConfig = field(default_factory=PackConfig)
    scales: ScalesConfig = field(default_factory=ScalesConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    rescore: RescoreConfig = field(default_factory=RescoreConfig)
    linking: LinkingConfig = field(default_factory=LinkingConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    nightly: NightlyConfig = field(default_factory=NightlyConfig)
    maintain: MaintainConfig = field(default_factory=MaintainConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    spark: SparkConfig = field(default_factory=SparkConfig)

    def as_json(self) -> str:
        """The whole configuration as JSON with sorted keys: equal configurations give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file and lay `key=value` overrides over it.

    Parameters
    ----------
    path
        A TOML file; None for the defaults.
    overrides
        `section.key=value` texts, later ones win. The value is TOML; text needs no quotes.

    Returns
    -------
    Config
        Complete: what is not given has its default.

    Raises
    ------
    ConfigError
        The file cannot be read or is not TOML, or a key or value is not allowed.
    """
    config = Config() if path is None else _build(Config, _read(Path(path)), (), f"in {path}")
    for override in overrides:
        config = _override(config, override)
    _check_together(config, str(path) if path is not None else "the command line")
    return config


def replace_section(config: Config, section: str, values: Mapping[str, Any], where: str) -> Config:
    """A copy of `config` with some keys of one section replaced and checked as if read from a file.

    Parameters
    ----------
    config
        Stays as it is.
    section
        A section's name, for example `simulate`.
    values
        Its keys to replace.
    where
        For the error message, for example `on the command line`.

    Raises
    ------
    ConfigError
        A key or value is not allowed.
    """
    current = getattr(config, section)
    checked = _build(type(current), values, (section,), where, start=current)
    return dataclasses.replace(config, **{section: checked})


def load_mapping(config: Config, path: str | Path) -> Config:
    """Lay the mapping of one source over `[ingest]`.

    Parameters
    ----------
    config
        Stays as it is.
    path
        A TOML file whose top level holds the keys of `[ingest]`. Its tables add to those of the configuration; an
        entry of the same name replaces the one there.

    Returns
    -------
    Config
        `config` with another `ingest`.

    Raises
    ------
    ConfigError
        The file cannot be read or is not TOML, or a key or value is not allowed.
    """
    values = _read(Path(path), "mapping file")
    if isinstance(values.get("ingest"), Mapping):
        raise ConfigError(f"mapping file {path} holds a table ingest: write its keys without it, as in [metrics]")
    ingest = _build(IngestConfig, values, (), f"in {path}", start=config.ingest)
    return dataclasses.replace(config, ingest=typing.cast(IngestConfig, ingest))


def _read(path: Path, noun: str = "configuration file") -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{noun} {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{noun} {path} cannot be read: {reason}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{noun} {path} is not valid TOML: {error}".replace("\n", " ")) from None


def _override(config: Config, text: str) -> Config:
    dotted, equals, value = text.partition("=")
    dotted, value = dotted.strip(), value.strip()
    if not equals or not dotted:
        raise ConfigError(f"--set {text!r}: write it as section.key=value")
    where = "on the command line (--set)"
    tree: Any = _parse_override(_key_type(dotted.split("."), where), value)
    for part in reversed(_split_key(dotted)):
        tree = {part: tree}
    return typing.cast(Config, _build(Config, tree, (), where, start=config))


_FREE_TABLES = (
    *(("spark", "conf"), ("scales", "groups"), ("linking", "reference")),
    *(("ingest", name) for name in ("metrics", "filters", "full_score", "status", "flags", "models", "benchmarks")),
)
"""Tables whose keys are names of the user's."""


def _split_key(dotted: str) -> list[str]:
    """`spark.conf.`, `scales.groups.` and the like are followed by a name that may itself hold dots."""
    for free in _FREE_TABLES:
        prefix = ".".join(free) + "."
        if dotted.startswith(prefix):
            return [*free, dotted.removeprefix(prefix).strip('"')]
    return dotted.split(".")


def _key_type(parts: Sequence[str], where: str) -> Any:
    """The type behind a dotted key, so that text needs no quotes on a command line."""
    kind: Any = Config
    for depth, part in enumerate(parts):
        if _is_subclass(typing.get_origin(kind), Mapping):
            return typing.get_args(kind)[1]
        hints = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if part not in hints:
            raise _unknown(part, hints, tuple(parts[:depth]), where)
        kind = hints[part]
    return kind


def _parse_override(kind: Any, text: str) -> Any:
    if kind is str and not text.startswith(("'", '"')):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text  # bare text such as `paper`; what does not fit the key's type is refused by `_convert`


def _build(kind: type, values: Any, parents: tuple[str, ...], where: str, start: Any = None) -> Any:
    """An instance of the dataclass `kind` from a TOML table, over the values of `start` (default: the defaults)."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{'.'.join(parents)} {where} must be a table, not {_describe(values)}")
    hints = typing.get_type_hints(kind)
    base = kind() if start is None else start
    limits = {each.name: each.metadata.get("limits") for each in dataclasses.fields(kind)}
    replaced = {}
    for name, value in values.items():
        if name not in hints:
            raise _unknown(name, hints, parents, where)
        key = (*parents, name)
        if dataclasses.is_dataclass(hints[name]):
            replaced[name] = _build(typing.cast(type, hints[name]), value, key, where, getattr(base, name))
        elif (row := _row_type(hints[name])) is not None:
            replaced[name] = _build_rows(row, value, key, where)
        elif _is_subclass(typing.get_origin(hints[name]), Mapping):
            added = _convert_table(hints[name], value, key, where, limits[name])
            replaced[name] = {**getattr(base, name), **added}
        else:
            replaced[name] = _convert(hints[name], value, ".".join(key), where, limits[name])
    return dataclasses.replace(base, **replaced)


def _row_type(kind: Any) -> type | None:
    """The dataclass of which `kind` is a tuple: a list of tables in TOML. None for any other type."""
    arguments = typing.get_args(kind) if typing.get_origin(kind) is tuple else ()
    if not arguments or not dataclasses.is_dataclass(arguments[0]):
        return None
    return typing.cast(type, arguments[0])


def _build_rows(row: type, values: Any, key: tuple[str, ...], where: str) -> tuple[Any, ...]:
    name = ".".join(key)
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{name} {where} must be a list of tables, each [[{name}]], not {_describe(values)}")
    return tuple(_build(row, each, (*key, str(number)), where) for number, each in enumerate(values, 1))


def _is_subclass(candidate: Any, parent: type) -> bool:
    """`issubclass`, False for what is not a class (such as `Literal`)."""
    return isinstance(candidate, type) and issubclass(candidate, parent)


def _convert_table(kind: Any, values: Any, key: tuple[str, ...], where: str, limits: Limits | None) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{'.'.join(key)} {where} must be a table, not {_describe(values)}")
    inner = typing.get_args(kind)[1]
    return {name: _convert(inner, value, f"{'.'.join(key)}.{name}", where, limits) for name, value in values.items()}


def _convert(kind: Any, value: Any, key: str, where: str, limits: Limits | None) -> Any:
    """`value` as `kind`, or the error that names the key."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) or _is_union(kind) else (kind,)
    for option in options:
        for accepts, convert in _CONVERTERS:
            if accepts(option) and (converted := convert(option, value)) is not None:
                return _limited(converted, key, where, limits)
    raise ConfigError(f"{key} {where} must be {_expected(options)}, not {_describe(value)}")


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Union


def _limited(value: Any, key: str, where: str, limits: Limits | None) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    complaint = limits.complaint(value) if number and limits is not None else None
    if complaint is not None:
        raise ConfigError(f"{key} {where} {complaint}, not {value}")
    return value


def _to_bool(_kind: Any, value: Any) -> Any:
    return value if isinstance(value, bool) else None


def _to_int(_kind: Any, value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _to_float(_kind: Any, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else None


def _to_text(_kind: Any, value: Any) -> Any:
    return value if isinstance(value, str) and value.strip() else None


def _to_choice(kind: Any, value: Any) -> Any:
    return value if isinstance(value, str) and value in typing.get_args(kind) else None


def _to_texts(_kind: Any, value: Any) -> Any:
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) and each.strip() for each in value):
        return tuple(value)
    return None


_CONVERTERS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
    (lambda kind: kind is bool, _to_bool),
    (lambda kind: kind is int, _to_int),
    (lambda kind: kind is float, _to_float),
    (lambda kind: kind is str, _to_text),
    (lambda kind: typing.get_origin(kind) is Literal, _to_choice),
    (lambda kind: typing.get_origin(kind) is tuple, _to_texts),
)


def _expected(options: Sequence[Any]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a non-empty text"}
    parts = []
    for option in options:
        if typing.get_origin(option) is Literal:
            parts.append(" or ".join(f'"{each}"' for each in typing.get_args(option)))
        else:
            parts.append(names.get(option, "a non-empty list of texts"))
    return " or ".join(parts)


def _describe(value: Any) -> str:
    kinds = {bool: "", int: "the number ", float: "the number ", str: "the text ", list: "the list ", dict: "a table"}
    kind = kinds.get(type(value), f"a {type(value).__name__} ")
    shown = "" if isinstance(value, dict) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{kind}{shown if len(shown) <= 60 else shown[:57] + '...'}"


def _unknown(name: str, known: Mapping[str, Any], parents: tuple[str, ...], where: str) -> ConfigError:
    full = ".".join((*parents, name))
    if not full.isprintable():
        full = json.dumps(full)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {'.'.join((*parents, near[0]))}?"
    elif known:
        hint = f"known here: {', '.join(known)}"
    else:
        hint = f"{'.'.join(parents)} is a value, not a table"
    return ConfigError(f"unknown key {full} {where}; {hint}")


def _check_together(config: Config, where: str) -> None:
    """Rules that concern more than one key."""
    solver = config.solver
    if solver.min_nodes > solver.max_nodes:
        raise ConfigError(
            f"solver.min_nodes ({solver.min_nodes}) is above solver.max_nodes ({solver.max_nodes}), see {where}"
        )
    if config.simulate.items < config.simulate.benchmarks:
        raise ConfigError(
            f"simulate.items ({config.simulate.items}) is below simulate.benchmarks "
            f"({config.simulate.benchmarks}): each benchmark needs an item, see {where}"
        )
    if not re.fullmatch(r"\d+[kmgt]b?", config.spark.driver_memory.lower()):
        given = config.spark.driver_memory
        raise ConfigError(f'spark.driver_memory must be a size such as "4g" or "512m", not "{given}"; see {where}')
    _check_sources(config.nightly.sources, where)
    if config.maintain.small_file_mb > config.maintain.large_file_mb:
        raise ConfigError(
            f"maintain.small_file_mb ({config.maintain.small_file_mb}) is above maintain.large_file_mb "
            f"({config.maintain.large_file_mb}), see {where}"
        )
    reserved = {"overall"} & set(config.scales.groups)
    if reserved:
        raise ConfigError(f"scales.groups.overall in {where}: this name belongs to the scale of all benchmarks")
    if not (config.scales.per_benchmark or config.scales.overall or config.scales.groups):
        raise ConfigError(f"no scale is left to fit: set scales.per_benchmark or scales.overall to true, see {where}")


def _check_sources(sources: Sequence[SourceConfig], where: str) -> None:
    seen: set[str] = set()
    for number, source in enumerate(sources, 1):
        missing = [key for key in ("name", "input") if not getattr(source, key)]
        if missing:
            raise ConfigError(f"source {number} of nightly.sources has no {' and no '.join(missing)}, see {where}")
        if source.name in seen:
            raise ConfigError(f"two of nightly.sources are called {source.name}, see {where}: give each its own name")
        seen.add(source.name)
