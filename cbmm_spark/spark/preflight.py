"""Checks of the machine before any work: each failure is one line that says what to install or to set."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbmm_spark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
INSTALL_JAVA = (
    "install a Java of 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17)"
)
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def java_command() -> str:
    """The `java` that Spark's launcher will run: that of JAVA_HOME if set, else the one on the path.

    Raises
    ------
    ConfigError
        There is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not os.access(command, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, but there is no {command}: correct or unset it; {INSTALL_JAVA}")
        return str(command)
    found = shutil.which("java")
    if found is None:
        raise ConfigError(f"Java was not found, neither on the PATH nor through JAVA_HOME: {INSTALL_JAVA}")
    return found


def check_java() -> int:
    """Ask the Java that Spark will use for its version.

    Returns
    -------
    int
        Its major version.

    Raises
    ------
    ConfigError
        It is missing, too old, does not run, or lacks a module that Spark needs.
    """
    java = java_command()
    # Spark 4.2 starts Java with this module; trimmed runtimes lack it, and then nothing starts.
    version, said = _java_version(java, "--add-modules", "jdk.incubator.vector")
    if version is None:
        version, plain = _java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            raise ConfigError(f"the Java at {java} lacks the module jdk.incubator.vector: {INSTALL_JAVA}")
        said = plain or said
    if version is None:
        raise ConfigError(f"the Java at {java} does not run ({said or 'no message'}): {INSTALL_JAVA}")
    if version < OLDEST_JAVA:
        raise ConfigError(f"the Java at {java} is version {version}, Spark needs 17 or newer: {INSTALL_JAVA}")
    return version


def _java_version(java: str, *options: str) -> tuple[int | None, str]:
    """Major version, or None with the first line that was said instead."""
    try:
        done = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    said = (done.stderr + done.stdout).strip()
    matched = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if done.returncode != 0 or matched is None:
        return None, said.splitlines()[0] if said else ""
    first, second = matched.group(1), matched.group(2)
    return (int(second) if first == "1" and second else int(first)), said  # Java 8 calls itself 1.8


def check_local_python() -> None:
    """Let Python workers be this interpreter; if the environment names another, see that it is the same minor version.

    Raises
    ------
    ConfigError
        PYSPARK_PYTHON names an interpreter that does not run or is another minor version.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if chosen == sys.executable:
        return
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([chosen, "-c", question], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise ConfigError(f"PYSPARK_PYTHON is {chosen}, which does not run: correct or unset it") from None
    if done.returncode != 0 or done.stdout.strip() != _this_python():
        found = done.stdout.strip() or "no Python"
        raise ConfigError(
            f"PYSPARK_PYTHON is {chosen} ({found}), the driver runs Python {_this_python()}: "
            "set it to the same minor version or unset it"
        )


def _this_python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def check_session(spark: SparkSession) -> None:
    """See that a session somebody else configured has Delta and a Java that fits.

    Raises
    ------
    ConfigError
        Something is missing; the message names the setting.
    """
    advice = "pass --properties-file conf/spark-defaults.conf to spark-submit"
    jvm: Any = spark._jvm
    java = int(jvm.java.lang.Runtime.version().feature())
    if java < OLDEST_JAVA:
        raise ConfigError(f"Spark runs on Java {java}, it needs 17 or newer: {INSTALL_JAVA}")
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(DELTA_EXTENSION.replace(".", "/") + ".class") is None:
        raise ConfigError(f"the Delta JARs are not on Spark's class path: {advice}, or set spark.jars.packages")
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if DELTA_EXTENSION not in extensions:
        raise ConfigError(f"spark.sql.extensions does not name {DELTA_EXTENSION}: {advice}")
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    # Databricks and Unity Catalog put catalogs of their own there; they bring Delta along.
    if not catalog:
        raise ConfigError(f"spark.sql.catalog.spark_catalog is not set to {DELTA_CATALOG}: {advice}")


def check_workers(spark: SparkSession) -> None:
    """Run one small Python task: the workers must have this Python and be able to import what the fit needs.

    Raises
    ------
    ConfigError
        They have another Python, or cannot import a package.
    """
    from pyspark.errors import PySparkException

    try:
        rows = spark.range(1).mapInArrow(_report_worker, "python string, missing string").collect()
    except PySparkException as error:
        text = str(error)
        if "PYTHON_VERSION_MISMATCH" in text or "have different version" in text:
            raise ConfigError(
                f"the workers run another Python than the driver ({_this_python()}): "
                "set PYSPARK_PYTHON, or spark.pyspark.python, to the same minor version on every machine"
            ) from None
        if "No module named" in text:
            name = text.split("No module named")[1].split("\n")[0].strip(" '\"")
            raise ConfigError(_missing_package(name)) from None
        if "Cannot run program" in text:
            program = text.split("Cannot run program")[1].split('"')[1]
            raise ConfigError(f"the workers cannot start {program}: set PYSPARK_PYTHON to a Python they have") from None
        raise
    row = rows[0]
    if row["python"] != _this_python():
        raise ConfigError(
            f"the workers run Python {row['python']}, the driver {_this_python()}: "
            "set PYSPARK_PYTHON, or spark.pyspark.python, to the same minor version on every machine"
        )
    if row["missing"]:
        raise ConfigError(_missing_package(row["missing"]))


def _missing_package(name: str) -> str:
    if name == "cbmm_spark":
        return "the workers cannot import cbmm_spark: pass --py-files dist/cbmm_spark.zip (made by `make dist`)"
    return f"the workers cannot import {name}: install cbmm-spark's dependencies on every machine"


def _report_worker(batches: Iterator[Any]) -> Iterator[Any]:
    """Runs on a worker, where `cbmm_spark` may be missing: nothing but the standard library outside of the loop."""
    import importlib
    import sys as worker_sys

    import pyarrow

    list(batches)
    missing = ""
    for name in ("numpy", "scipy", "cbmm_spark"):
        try:
            importlib.import_module(name)
        except ImportError:
            missing = missing or name
    version = f"{worker_sys.version_info.major}.{worker_sys.version_info.minor}"
    yield pyarrow.RecordBatch.from_pydict({"python": [version], "missing": [missing]})
