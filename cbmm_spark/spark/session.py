"""Building the Spark session with Delta, whether Spark is started from here or the program was submitted to it."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
from contextlib import ExitStack
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from cbmm_spark.config.schema import Config
from cbmm_spark.errors import ConfigError
from cbmm_spark.spark import delta_jars as jars
from cbmm_spark.spark import preflight
from cbmm_spark.spark.jvm_process import start_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def build_session(config: Config, app_name: str) -> SparkSession:
    """A Spark session that reads and writes Delta, with UTC as its time zone.

    Under spark-submit (or in a notebook) the session that is there is taken as it is and checked; otherwise Spark is
    started here, as `[spark]` says.

    Parameters
    ----------
    config
        Only `spark` is read.
    app_name
        What Spark shows as the application's name.

    Returns
    -------
    SparkSession
        End it with `stop_session`.

    Raises
    ------
    ConfigError
        The machine or the session lacks something; the message says what.
    """
    return _submitted(app_name) if is_submitted() else _started_here(config, app_name)


def is_submitted() -> bool:
    """Whether a session, or a JVM made by spark-submit, is there already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def stop_session(spark: SparkSession) -> None:
    """Stop a session that this program owns, without a word."""
    spark.stop()


def _submitted(app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    _own_interrupts()
    preflight.check_session(spark)
    preflight.check_workers(spark)
    return spark


def _started_here(config: Config, app_name: str) -> SparkSession:
    preflight.check_java()
    preflight.check_local_python()
    settings = local_settings(config)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    start_context({"spark.app.name": app_name, **settings})
    try:
        spark = SparkSession.builder.getOrCreate()
        preflight.check_session(spark)
    except PySparkException as error:
        raise ConfigError(f"{str(error).splitlines()[0]}; see [spark.conf] in the configuration") from None
    except Py4JJavaError as error:
        if not _was_stopped(error):
            raise
        raise ConfigError(f"the Spark master {config.spark.master} did not accept the job: is it running?") from None
    _own_interrupts()
    if not config.spark.master.startswith("local["):
        preflight.check_workers(spark)
    return spark


def _own_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt and nothing else.

    The handler that a SparkContext installs calls the JVM first; in the middle of another call to it that gets the
    wrong answer, and the interrupt is lost in an AttributeError.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _was_stopped(error: Exception) -> bool:
    """Whether the context ended while the session was made: that is how a master that cannot be reached shows."""
    return "stopped SparkContext" in str(error)


def local_settings(config: Config) -> dict[str, str]:
    """Spark's settings for a session started from here; those of `[spark.conf]` come last and win; Java options add up.

    Parameters
    ----------
    config
        Only `spark` is read.

    Returns
    -------
    dict
        Setting to value.

    Raises
    ------
    ConfigError
        The Delta JARs are missing and cannot be fetched.
    """
    spark = config.spark
    settings = {
        "spark.master": spark.master,
        "spark.driver.memory": spark.driver_memory,
        "spark.sql.extensions": preflight.DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": preflight.DELTA_CATALOG,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    cores = local_cores(spark.master)
    if cores is not None:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
            # Delta rebuilds a table's state in this many tasks; its 50 are meant for a cluster.
            "spark.databricks.delta.snapshotPartitions": str(cores),
        }
    settings |= spark.conf
    settings[JAVA_OPTIONS] = _with_quiet_logs(spark.conf.get(JAVA_OPTIONS, ""))
    if not {"spark.jars", "spark.jars.packages"} & spark.conf.keys():
        settings["spark.jars"] = ",".join(jar.as_uri() for jar in jars.resolve())
    return settings


def _with_quiet_logs(options: str) -> str:
    """Java options with our logging configuration, unless they name another."""
    if "log4j2.configurationFile" in options:
        return options
    return f"-Dlog4j2.configurationFile={packed_file('log4j2.properties').as_uri()} {options}".strip()


def local_cores(master: str) -> int | None:
    """Cores of a `local[…]` or `local-cluster[…]` master, None for any other."""
    if master == "local":
        return 1
    matched = re.fullmatch(r"local\[(\d+|\*)(?:,\s*\d+)?\]", master)
    if matched:
        return (os.cpu_count() or 1) if matched.group(1) == "*" else int(matched.group(1))
    matched = re.fullmatch(r"local-cluster\[(\d+),\s*(\d+),\s*\d+\]", master)
    return int(matched.group(1)) * int(matched.group(2)) if matched else None


@cache
def packed_file(name: str) -> Path:
    """Path of a file that stands beside this module, in a checkout, an installed package, or a zip on Python's path.

    Out of a zip it is copied to a temporary file, which is removed when the process ends.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    """
    there = resources.files("cbmm_spark.spark").joinpath(name)
    if not there.is_file():
        raise FileNotFoundError(f"the package lacks {name}: it was not packed as `make dist` packs it")
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(resources.as_file(there)).absolute()
