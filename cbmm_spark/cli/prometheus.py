"""What a night leaves for Prometheus: a file in the text format that node_exporter's textfile collector reads.

https://prometheus.io/docs/instrumenting/exposition_formats/ has the format. The collector reads whole files only if
they appear whole, so the file is written beside its place and renamed.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cbmm_spark.errors import ConfigError

if TYPE_CHECKING:
    from cbmm_spark.night.night import NightReport

LAST_SUCCESS = "cbmm_nightly_last_success_timestamp_seconds"


@dataclass(frozen=True)
class Metric:
    """One metric: its name, what it says, and its values by labels."""

    name: str
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def night_metrics(report: NightReport | None, exit_code: int, ended: float, last_success: float | None) -> list[Metric]:
    """Return the figures of a night.

    Parameters
    ----------
    report
        What the night did; None where it ended before it began.
    exit_code
        Of the command.
    ended
        When it ended, seconds since 1970.
    last_success
        When the last night with exit code 0 had ended, as an earlier file says.
    """
    success = ended if exit_code == 0 else last_success
    metrics = [
        Metric("cbmm_nightly_exit_code", "Exit code of the last night, 0 is success.", [({}, exit_code)]),
        Metric("cbmm_nightly_last_run_timestamp_seconds", "When the last night ended.", [({}, ended)]),
    ]
    if success is not None:
        metrics.append(Metric(LAST_SUCCESS, "When the last night with exit code 0 ended.", [({}, success)]))
    if report is None:
        return metrics
    return metrics + [metric for metric in (*_of_steps(report), *_of_run(report)) if metric.samples]


def _of_steps(report: NightReport) -> list[Metric]:
    outcomes = [source.outcome for source in report.sources]
    counts = sorted({name for source in report.sources for name in source.counts})
    steps = [({"step": step.step}, step.seconds) for step in report.steps]
    return [
        Metric("cbmm_nightly_step_seconds", "Wall-clock seconds of a step of the last night.", steps),
        Metric(
            "cbmm_nightly_sources",
            "Sources of the last night by what became of them.",
            [({"outcome": each}, outcomes.count(each)) for each in ("read", "skipped", "missing", "failed")],
        ),
        Metric(
            "cbmm_nightly_rows",
            "Rows of the sources read in the last night by what became of them.",
            [({"became": name}, report.total(name)) for name in counts],
        ),
        Metric("cbmm_nightly_warnings", "Warnings of the last night.", [({}, len(report.warnings))]),
    ]


def _of_run(report: NightReport) -> list[Metric]:
    if report.run is None:
        return []
    scales = sorted(report.run.scales.items())
    of_scales = {
        "models": "Models of a scale in the last published run.",
        "items": "Items of a scale in the last published run.",
        "responses": "Responses of a scale in the last published run.",
        "iterations": "Outer iterations of a scale in the last published run.",
    }
    metrics = [
        Metric(f"cbmm_run_{name}", text, [({"scale": scale}, facts[name]) for scale, facts in scales if name in facts])
        for name, text in of_scales.items()
    ]
    laps = [({"step": step}, seconds) for step, seconds in report.run.seconds.items()]
    return [*metrics, Metric("cbmm_run_step_seconds", "Wall-clock seconds of a step of the last published run.", laps)]


def render(metrics: Sequence[Metric]) -> str:
    """Return metrics in Prometheus' text format; values that are not finite are left out."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {_escaped(metric.text, quotes=False)}", f"# TYPE {metric.name} gauge"]
        for labels, value in metric.samples:
            if math.isfinite(value):
                told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
                lines.append(f"{metric.name}{'{' + told + '}' if told else ''} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, quotes: bool = True) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped


def last_success(path: Path) -> float | None:
    """Return when the last night with exit code 0 had ended, as an earlier file says; None where none says so."""
    try:
        found = re.search(rf"^{LAST_SUCCESS} (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return None if found is None else float(found.group(1))
    except (OSError, ValueError):
        return None


def write(path: Path, text: str) -> None:
    """Put a text into a file, whole: it is written beside its place and renamed.

    Raises
    ------
    ConfigError
        The folder does not exist or cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)  # node_exporter is another user
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"nightly.metrics_file {path} cannot be written: {error.strerror}") from error


def check_place(path: Path) -> None:
    """See, before the night, that its figures can be written.

    Raises
    ------
    ConfigError
        They cannot.
    """
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"nightly.metrics_file {path}: {path.parent} is no folder that can be written to")
