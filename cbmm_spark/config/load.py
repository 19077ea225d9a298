"""Reading the configuration: from a TOML file and `key=value` texts to a validated `Config`."""

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
from pathlib import Path
from typing import Any, Literal

from cbmm_spark.config.schema import Config, IngestConfig, Limits, SourceConfig
from cbmm_spark.errors import ConfigError


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
