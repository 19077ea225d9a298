"""What a command left behind, and how tests ask about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The JSON lines of standard output; every line must be one."""
        lines = [json.loads(line) for line in self.out.splitlines()]
        return [line for line in lines if name is None or line["event"] == name]

    def refused(self, code: int) -> str:
        """The one line of an expected error."""
        assert self.code == code, self.err
        assert self.err.startswith("cbmm-spark: ")
        assert self.err.count("\n") == 1
        return self.err


Run = Callable[..., Done]
