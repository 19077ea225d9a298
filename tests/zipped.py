"""The package as `make dist` zips it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def zipped_package(folder: Path) -> Path:
    """Build `cbmm_spark.zip` in a folder by the Makefile's own rule, from a copy of what it reads.

    Parameters
    ----------
    folder
        Empty or new; the checkout's own `dist` is left alone.

    Returns
    -------
    Path
        The zip.
    """
    shutil.copytree(ROOT / "cbmm_spark", folder / "cbmm_spark", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "Makefile", folder)
    command = ["make", "--silent", f"PYTHON={sys.executable}", "dist/cbmm_spark.zip"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    shutil.rmtree(folder / "cbmm_spark")
    return folder / "dist" / "cbmm_spark.zip"
