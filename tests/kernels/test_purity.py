"""The kernels are NumPy and SciPy only: they could be published alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cbmm_spark.kernels


def test_the_kernels_import_neither_spark_nor_arrow():
    names = [path.stem for path in Path(cbmm_spark.kernels.__file__).parent.glob("*.py")]
    assert {"items", "aggregate", "paper"} <= set(names)
    modules = ["cbmm_spark.kernels" if name == "__init__" else f"cbmm_spark.kernels.{name}" for name in sorted(names)]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print([name for name in ('pyspark', 'pyarrow', 'delta', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
