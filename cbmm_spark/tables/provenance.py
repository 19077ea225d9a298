"""What every commit says about itself: which command made it, from what, with which code and configuration.

A command says it once, at its start; each commit made meanwhile (by `Warehouse`, or through `commit_note`) carries it
in its ``userMetadata`` beside what the commit itself has to say. A context variable holds it, so that two commands in
two threads of one process do not tell each other's story; a thread that commits for a command is started with a copy
of the command's context.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar

from cbmm_spark import __version__
from cbmm_spark.spark.scoped import job_description

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_current: ContextVar[Mapping[str, Any]] = ContextVar("cbmm_spark_provenance", default=MappingProxyType({}))


class _Configuration(Protocol):
    def as_json(self) -> str: ...


def configuration_hash(config: _Configuration) -> str:
    """Return 16 hexadecimal digits that differ where the configuration does.

    Parameters
    ----------
    config
        A `Config`: equal ones have equal JSON.
    """
    return hashlib.sha256(config.as_json().encode()).hexdigest()[:16]


def current_provenance() -> dict[str, Any]:
    """Return what is said about a commit made now."""
    return dict(_current.get())


@contextmanager
def provenance(command: str, config: _Configuration, **fields: Any) -> Iterator[None]:
    """Let the commits made inside say which command makes them.

    Parameters
    ----------
    command
        Its name. Inside another command (a step of a night) it goes before the outer one's, the rest adds up.
    config
        The configuration, of which the hash is kept; `runs.config` has all of it.
    fields
        Anything else known from the start.
    """
    known = {"command": command, "package_version": __version__, "config_hash": configuration_hash(config)}
    token = _current.set({**_current.get(), **known, **fields})
    try:
        yield
    finally:
        _current.reset(token)


def add_provenance(**fields: Any) -> None:
    """Say more about all commits from here to the end of the command, for example its run_id once there is one."""
    _current.set({**_current.get(), **fields})


def recorded(command: str) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator: the whole function runs under `provenance`, and its Spark jobs are described by the command.

    Parameters
    ----------
    command
        The command's name. The function has the parameters `spark` and `config`.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def inner(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            given = signature.bind(*args, **kwargs).arguments
            with provenance(command, given["config"]), job_description(given["spark"], f"cbmm-spark {command}"):
                return function(*args, **kwargs)

        return inner

    return decorate
