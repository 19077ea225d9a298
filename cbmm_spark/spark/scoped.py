"""What holds for a block of code and no longer: kept frames, settings of the session, and what Spark's pages say."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame in memory and on disk for a block."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> Iterator[None]:
    """Set Spark SQL settings for a block, and put the old values back.

    Parameters
    ----------
    spark
        The session.
    settings
        By name; None takes a setting back to Spark's default.
    """
    asked = _Asked(dict(settings))
    with _LOCK:
        waiting = _HELD.setdefault(spark, [])
        for name in settings:
            if not any(name in each.settings for each in waiting):
                _FIRST.setdefault(spark, {})[name] = spark.conf.get(name, None)
        waiting.append(asked)
        _set(spark, asked.settings)
    try:
        yield
    finally:
        with _LOCK:
            waiting.remove(asked)
            for name in settings:
                later = [each.settings[name] for each in waiting if name in each.settings]
                _set(spark, {name: later[-1] if later else _FIRST[spark].pop(name)})


class _Asked:
    """The settings of one block."""

    def __init__(self, settings: Mapping[str, str | None]) -> None:
        self.settings = settings


# Blocks of several threads overlap, and the one that began first may end first: the old values come back when the last
# one ends, never what another block had set.
_LOCK = threading.Lock()
_HELD: WeakKeyDictionary[SparkSession, list[_Asked]] = WeakKeyDictionary()
_FIRST: WeakKeyDictionary[SparkSession, dict[str, str | None]] = WeakKeyDictionary()


def _set(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def _with_properties(spark: SparkSession, task: Callable[[], None]) -> Callable[[], None]:
    """The task with this thread's local properties and tags of Spark."""
    wrapped: Callable[[], None] = inheritable_thread_target(spark)(task)
    return wrapped


def side_by_side(spark: SparkSession, *tasks: Callable[[], Any]) -> None:
    """Do some things at once, each in a thread of its own, and return when all have ended.

    The threads know what this one knows: the job description and other local properties of Spark, and context
    variables, the provenance of commits among them.

    Parameters
    ----------
    spark
        Session.
    tasks
        What to do.

    Raises
    ------
    Exception
        The error of the first task (in the order given) that failed; the others were waited for.
    """
    told = spark.sparkContext.getLocalProperty(_PROPERTY)

    def described(task: Callable[[], Any]) -> None:
        describe_jobs(spark, told)
        task()

    with ThreadPoolExecutor(max(len(tasks), 1), thread_name_prefix="cbmm-spark") as pool:
        done = [
            pool.submit(contextvars.copy_context().run, _with_properties(spark, partial(described, task)))
            for task in tasks
        ]
    for each in done:
        each.result()


_PROPERTY = "spark.job.description"


def describe_jobs(spark: SparkSession, text: str | None) -> None:
    """Say what the jobs from here on are for, until the next word or the end of an enclosing `job_description`."""
    spark.sparkContext.setLocalProperty(_PROPERTY, text)  # type: ignore[arg-type]


@contextmanager
def job_description(spark: SparkSession, text: str) -> Iterator[None]:
    """Say what the jobs inside are for; afterwards what was said before holds again."""
    before = spark.sparkContext.getLocalProperty(_PROPERTY)
    describe_jobs(spark, text)
    try:
        yield
    finally:
        describe_jobs(spark, before)
