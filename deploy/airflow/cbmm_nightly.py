"""A night as an Airflow DAG. Exit code 5 is tried again, everything else needs a person.

Without --as-of the day is today: do not backfill with this DAG, `cbmm-spark backfill` scores a history.
"""

from __future__ import annotations

import subprocess

import pendulum
from airflow.decorators import dag, task
from airflow.exceptions import AirflowException, AirflowFailException

NIGHT = ["cbmm-spark", "nightly", "--config", "/etc/cbmm-spark/night.toml", "--output", "json"]
UPKEEP = ["cbmm-spark", "maintain", "--config", "/etc/cbmm-spark/night.toml", "--output", "json"]

CONFLICT = 5


def run(command: list[str]) -> None:
    """Run a command; its lines go to the task's log."""
    code = subprocess.run(command, check=False).returncode
    if code == CONFLICT:
        raise AirflowException("another job holds the tables")  # tried again
    if code != 0:
        raise AirflowFailException(f"{command[1]} ended with {code}, see docs/operations.md")


@dag(
    schedule="30 1 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": pendulum.duration(minutes=10)},
)
def cbmm_nightly() -> None:
    """The night, and on Sundays the upkeep after it."""

    @task(execution_timeout=pendulum.duration(hours=6))
    def nightly() -> None:
        run(NIGHT)

    @task
    def maintain(logical_date: pendulum.DateTime | None = None) -> None:
        if logical_date is None or logical_date.isoweekday() == 7:
            run(UPKEEP)

    nightly() >> maintain()


cbmm_nightly()
