"""Anderson acceleration of the fixed point theta = M(theta), type II, weighted by the models' information.

Source: Anderson (1965); Walker & Ni, SIAM J. Numer. Anal. 49 (2011). Acceptance is the caller's: see `alternation`.
"""

from __future__ import annotations

import numpy as np

from cbmm_spark.kernels.model import F64


class Anderson:
    """Keeps the last few points and residuals.

    Parameters
    ----------
    depth
        Number of differences used; 0 switches acceleration off.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.points: list[F64] = []
        self.residuals: list[F64] = []

    def reset(self) -> None:
        """Forget the past."""
        self.points.clear()
        self.residuals.clear()

    def propose(self, point: F64, residual: F64, weight: F64) -> F64 | None:
        """Return the accelerated next point, or None where there is no past to use.

        Parameters
        ----------
        point
            theta, shape (N,).
        residual
            M(theta) - theta, shape (N,).
        weight
            One over the standard errors, shape (N,): the metric of the least-squares problem.
        """
        self.points.append(point)
        self.residuals.append(residual)
        if len(self.points) > self.depth + 1:
            del self.points[0], self.residuals[0]
        if self.depth == 0 or len(self.points) < 2:
            return None
        moves = np.diff(np.stack(self.points), axis=0)
        changes = np.diff(np.stack(self.residuals), axis=0)
        coefficients, *_ = np.linalg.lstsq((changes * weight).T, residual * weight, rcond=1e-10)
        proposal = point + residual - coefficients @ (moves + changes)
        return proposal if np.isfinite(proposal).all() else None
