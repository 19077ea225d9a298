"""Starting Spark's JVM so that what it prints goes to stderr, and is what a person needs to read.

Standard output belongs to the jobs' own lines, which programs read.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING

from cbmm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

JVM_CHATTER = ("WARNING: ", "Picked up JAVA_TOOL_OPTIONS", "Picked up JDK_JAVA_OPTIONS", "NOTE: Picked up")
"""Starts of lines the Java launcher itself prints and no logging configuration reaches: Spark asks for an incubator
module, and Java announces that at each start. Spark's own lines begin with a date (log4j2.properties)."""

VACUUM_CHATTER = re.compile(r"(Deleted|Found) \d+ files? .*director")
"""What Delta's VACUUM prints about itself, past all logging; `maintain` says what was done."""


def start_context(settings: Mapping[str, str]) -> SparkContext:
    """Start a JVM and a Spark context in it, its output relayed to stderr without the Java launcher's chatter.

    Parameters
    ----------
    settings
        Spark's settings, complete with master and application name.

    Returns
    -------
    SparkContext
        The process's only one.

    Raises
    ------
    ConfigError
        The JVM ended, or Spark refused a setting.
    """
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # a JVM outlives its contexts; this one has its relay
        return SparkContext(conf=_conf(SparkConf(loadDefaults=False), settings))
    reading, writing = os.pipe()
    relay = _Relay(os.fdopen(reading, "rb"))
    try:
        gateway = launch_gateway(_conf(SparkConf(loadDefaults=False), settings), {"stdout": writing, "stderr": writing})
    except PySparkException:
        os.close(writing)
        raise ConfigError(f"Spark's Java process ended at its start: {relay.last_words()}") from None
    os.close(writing)
    relay.release()
    try:
        return SparkContext(gateway=gateway, conf=_conf(SparkConf(loadDefaults=False), settings))
    except Py4JError as error:
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
        raise ConfigError(f"Spark did not start: {reason}; see [spark] in the configuration") from None


def _conf(conf: SparkConf, settings: Mapping[str, str]) -> SparkConf:
    return conf.setAll(list(settings.items()))


class _Relay:
    """A thread that copies what the JVM prints, line by line, to whatever file descriptor 2 is at that moment.

    Lines are held back until `release`: where the JVM does not come up, one of them is the message, and the rest is a
    stack trace that helps nobody.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._held: list[bytes] | None = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._copy, name="cbmm-spark-jvm-output", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        for line in self._source:
            text = line.decode(errors="replace")
            if text.startswith(JVM_CHATTER) or VACUUM_CHATTER.match(text):
                continue
            with self._lock:
                if self._held is None:
                    _to_stderr(line)
                else:
                    self._held.append(line)

    def release(self) -> None:
        """Print what was held back, and from now on every line as it comes."""
        with self._lock:
            for line in self._held or ():
                _to_stderr(line)
            self._held = None

    def last_words(self) -> str:
        """What an ended JVM said: the line that names an error, and the next one where that is only a heading."""
        self._thread.join(timeout=5)
        with self._lock:
            lines = [line.decode(errors="replace").strip() for line in self._held or ()]
        lines = [line for line in lines if line and not line.startswith("at ")]
        first = next((at for at, line in enumerate(lines) if "rror" in line or "xception" in line), None)
        if first is None:
            return lines[-1] if lines else "it said nothing"
        exception = lines[first].rpartition("Exception: ")[2]
        return exception if exception != lines[first] else ": ".join(lines[first : first + 2])


def _to_stderr(line: bytes) -> None:
    with contextlib.suppress(OSError):  # stderr may be closed; the pipe is read on, for a full one blocks the JVM
        os.write(2, line)
