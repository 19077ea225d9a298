"""The rules run without Spark: what a score means is the same in one process and on a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cbmm_spark.responses


def test_the_rules_import_no_spark() -> None:
    names = sorted(path.stem for path in Path(next(iter(cbmm_spark.responses.__path__))).glob("*.py"))
    assert "rules" in names
    modules = [f"cbmm_spark.responses.{name}" for name in names if name != "__init__"]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print([name for name in ('pyspark', 'delta', 'pandas', 'py4j') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
