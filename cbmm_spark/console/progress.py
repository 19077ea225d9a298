"""What a job says while it works: JSON lines for a program, plain lines and a progress bar for a person."""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO

Mode = Literal["auto", "json", "text"]


class Progress:
    """The one voice of a job on standard output.

    In JSON mode each call is one line, an object whose `event` says what happened. In text mode events are short lines
    and iterations move a bar on standard error, where that is a terminal. If the reader goes away (`| head`) the job
    goes on in silence: its results belong to the tables, not to the pipe.

    Parameters
    ----------
    mode
        `auto` is text on a terminal and JSON elsewhere.
    stream
        Where to write, by default standard output.
    """

    def __init__(self, mode: Mode = "auto", stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.text_mode = mode == "text" or (mode == "auto" and _is_terminal(self._stream))
        self._bar: Any = None
        self._last_changes: dict[str, float | None] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def iteration(
        self,
        run_id: str,
        scale: str,
        iteration: int,
        objective: float,
        max_ability_change: float | None,
        seconds: float,
    ) -> None:
        """Tell of one outer iteration of one scale.

        Parameters
        ----------
        run_id, scale
            Which fit.
        iteration
            From 1.
        objective
            The penalised objective after it.
        max_ability_change
            Largest change of an ability, in standard errors; None where there was none to compare with.
        seconds
            How long it took.
        """
        if not self.text_mode:
            self.event(
                "iteration",
                run_id=run_id,
                scale=scale,
                iteration=iteration,
                objective=objective,
                max_ability_change=max_ability_change,
                seconds=seconds,
            )
            return
        self._last_changes[scale] = max_ability_change
        self._move_bar(iteration, objective, seconds)

    def event(self, name: str, **fields: Any) -> None:
        """Tell that something happened.

        Parameters
        ----------
        name
            A short name, for example `ingested`.
        fields
            What a reader wants to know about it; numbers that are not finite become null.
        """
        if self.text_mode:
            self._end_bar()
            self._write(_as_text(name, fields))
        else:
            self._write(as_json_line({"event": name, **fields}))

    def result(self, name: str, text: str | Callable[[], str], **fields: Any) -> None:
        """Tell a result that people and programs read in different forms.

        Parameters
        ----------
        name, fields
            The JSON line.
        text
            What a person sees instead, for example a table; may be a function that makes it.
        """
        if self.text_mode:
            self._end_bar()
            self._write(text if isinstance(text, str) else text())
        else:
            self._write(as_json_line({"event": name, **fields}))

    def close(self) -> None:
        """Leave the terminal tidy and everything written."""
        self._end_bar()
        self._guarded(self._stream.flush)

    def _move_bar(self, iteration: int, objective: float, seconds: float) -> None:
        if self._bar is None:
            from tqdm import tqdm

            # No total: how many iterations a fit needs is known when it has converged.
            self._bar = tqdm(desc="fit", unit=" iterations", file=sys.stderr, disable=None, leave=True)
        if self._bar.disable:
            return
        self._bar.update(max(0, iteration - self._bar.n))
        changes = [change for change in self._last_changes.values() if change is not None]
        largest = f"{max(changes):.2g} SE" if changes else "–"
        self._bar.set_postfix_str(f"objective {objective:.8g}, largest change {largest}, {seconds:.2f} s")

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._last_changes.clear()

    def _write(self, line: str) -> None:
        self._guarded(lambda: print(line, file=self._stream, flush=True))

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BrokenPipeError:
            silence(self._stream)


def silence(stream: TextIO) -> None:
    """Point a stream whose reader is gone at nothing, so that neither later lines nor Python's exit complain."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def as_json_line(fields: Mapping[str, Any]) -> str:
    """One line of strict JSON: no NaN, no infinity, dates as ISO text."""
    return json.dumps(_plain(fields), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if hasattr(value, "item") and callable(value.item) and getattr(value, "ndim", 1) == 0:
        return _plain(value.item())  # a NumPy scalar
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)


def _as_text(name: str, fields: Mapping[str, Any]) -> str:
    shown = (f"{key.replace('_', ' ')} {_short(value)}" for key, value in fields.items() if value not in (None, "", {}))
    return ": ".join(filter(None, [name.replace("_", " "), ", ".join(shown)]))


def _short(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    if isinstance(plain, float):
        return f"{plain:.4g}"
    if isinstance(plain, int):
        return f"{plain:,}"
    if isinstance(plain, dict):
        return "(" + ", ".join(f"{key} {_short(each)}" for key, each in plain.items()) + ")"
    if isinstance(plain, list):
        return ", ".join(_short(each) for each in plain)
    return str(plain)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
