"""Whom a run tells what it does, and how long its steps take."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Listener(Protocol):
    """What a run tells about itself; `progress.Progress` is one."""

    def iteration(
        self,
        run_id: str,
        scale: str,
        iteration: int,
        objective: float,
        max_ability_change: float | None,
        seconds: float,
    ) -> None:
        """One iteration of one scale is done."""

    def event(self, name: str, **fields: Any) -> None:
        """Something happened."""


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """End a step that began where the last one ended."""
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
