"""Points at which a test may kill the process, as a power cut would; without the variable they do nothing."""

from __future__ import annotations

import os
import signal

VARIABLE = "CBMM_KILL_AT"
"""Environment variable that names the point to die at."""


def faultpoint(name: str) -> None:
    """Die by SIGKILL here if the environment asks for it: no exception, no tidying up.

    Parameters
    ----------
    name
        claimed, iteration N (N from 1), run_iterations, item_parameters, abilities, run_scales, published,
        latest_abilities, latest_item_parameters, latest (both are written).
    """
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
