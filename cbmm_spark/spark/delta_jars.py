"""The Delta JARs that a session started from Python needs: resolved once, then read from a folder.

Spark's own way (`spark.jars.packages`) runs Ivy at every start, which costs more than a second, prints a page and
needs the network each time a cache was emptied. Here Ivy runs once, with the settings and the cache that
the machine's Spark would use, and the JARs it found are copied to a folder of their own. Later starts only name them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from cbmm_spark.errors import ConfigError

FOLDER_VARIABLE = "CBMM_SPARK_JARS"
"""Environment variable naming a folder of JARs an operator provides; Ivy is then never run."""

SHIPPED_WITH_SPARK = (
    "com.fasterxml.jackson.core",
    "com.github.luben",
    "com.google.code.findbugs",
    "commons-logging",
    "commons-pool",
    "io.airlift",
    "javax.annotation",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.roaringbitmap",
    "org.slf4j",
    "org.xerial.snappy",
)
"""Groups that Delta's dependency tree names and Spark's own `jars` folder holds: 70 MB that need not be fetched."""

_PROBE = """
from pyspark import SparkConf, SparkContext
SparkContext._ensure_initialized()
print("CBMM_SPARK_JARS=" + (SparkConf().get("spark.jars") or ""))
"""


def coordinates() -> str:
    """Maven coordinates of the Delta artifact for the installed PySpark and delta-spark."""
    spark = ".".join(metadata.version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{metadata.version('delta-spark')}"


def excludes() -> str:
    """Value of `spark.jars.excludes` that keeps what Spark ships out of the download."""
    return ",".join(f"{group}:*" for group in SHIPPED_WITH_SPARK)


def cache_folder() -> Path:
    """Where the JARs of the installed versions are kept; the name holds the versions, so an upgrade starts anew."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cbmm-spark" / coordinates().replace(":", "_")


def cached() -> list[Path]:
    """The JARs that are there already, sorted; empty if none were resolved yet.

    Raises
    ------
    ConfigError
        The folder named by `CBMM_SPARK_JARS` holds no Delta JAR.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    found = sorted(Path(given or cache_folder()).glob("*.jar"))
    if given and not any("delta-spark" in jar.name for jar in found):
        raise ConfigError(f"{FOLDER_VARIABLE}={given} holds no delta-spark JAR; put {coordinates()} there or unset it")
    return found


def resolve() -> list[Path]:
    """The Delta JARs, fetched through Ivy if this is the first time.

    Raises
    ------
    ConfigError
        Ivy found no way to them.
    """
    found = cached()
    if found:
        return found
    folder = cache_folder()
    print(f"fetching the Delta JARs ({coordinates()}) once, to {folder}", file=sys.stderr, flush=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A folder of its own, renamed when complete: whoever starts at the same moment sees all JARs or none.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="resolving-") as scratch:
            complete = Path(scratch) / "jars"
            complete.mkdir()
            for jar in _run_ivy(Path(scratch)):
                shutil.copy2(jar, complete / jar.name)
            if not folder.exists():
                complete.rename(folder)
    except OSError as error:
        if not cached():
            raise ConfigError(
                f"the folder for the Delta JARs {folder} cannot be written: {error.strerror}; "
                f"set XDG_CACHE_HOME, or {FOLDER_VARIABLE} to a folder that holds them"
            ) from None
    return cached()


def _run_ivy(scratch: Path) -> list[Path]:
    """Let spark-submit resolve the packages as it does for any job, and ask it which files that gave."""
    import pyspark

    home = Path(pyspark.__file__).parent
    probe = scratch / "probe.py"
    probe.write_text(_PROBE, encoding="utf-8")
    command = [
        str(home / "bin" / ("spark-submit.cmd" if os.name == "nt" else "spark-submit")),
        *("--master", "local[1]", "--packages", coordinates(), "--conf", f"spark.jars.excludes={excludes()}"),
        str(probe),
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    environment.pop("PYSPARK_GATEWAY_SECRET", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    marked = [line for line in done.stdout.splitlines() if line.startswith("CBMM_SPARK_JARS=")]
    names = marked[0].partition("=")[2].split(",") if marked else []
    found = [Path(name.removeprefix("file:")) for name in names if name]
    if done.returncode != 0 or not any("delta-spark" in jar.name for jar in found):
        raise ConfigError(
            f"the Delta JARs ({coordinates()}) could not be fetched: {_reason(done.stderr)}; check the network, or put "
            f"them into a folder and set {FOLDER_VARIABLE} to it"
        )
    return found


def _reason(noise: str) -> str:
    """The line of Ivy's report that says most."""
    lines = [line.strip(" :\t") for line in noise.splitlines()]
    for mark in ("Server access error", "not found", "UNRESOLVED DEPENDENCIES", "Exception"):
        for line in lines:
            if mark in line:
                return line[:200]
    return lines[-1][:200] if lines else "spark-submit ended without a word"


if __name__ == "__main__":
    try:
        print(f"Delta JARs: {resolve()[0].parent}")
    except ConfigError as error:
        sys.exit(f"cbmm-spark: {error}")
