"""SIGKILL of an executor in the middle of a fit: the night ends with the same bits."""

from __future__ import annotations

import json
from typing import Any

import pytest

PROGRAM = """
import json, os, shutil, signal, threading, time
from dataclasses import replace
from pathlib import Path
from cbmm_spark.rescoring.job import rescore
from cbmm_spark.tables import Warehouse
from tests.faults.leaderboard import CONFIG, TONIGHT, tonight
from tests.faults.nights import results
from tests.spark.helpers import Heard, store

CUT = replace(CONFIG, solver=replace(CONFIG.solver, partitions=4))
context = spark.sparkContext._jsc.sc()


def is_mine(pid):
    while pid > 1 and pid != os.getpid():
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def executors():
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\\0")
                if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and is_mine(int(folder.name)):
                    found[int(words[words.index(b"--executor-id") + 1])] = int(folder.name)
            except OSError:  # it has just ended
                continue
    return found


def cached():
    infos = [info for info in context.getRDDStorageInfo() if not info.name().startswith("Delta")]
    return [info.numCachedPartitions() for info in infos]


def kill():
    before = executors()
    name = max(before)
    os.kill(before[name], signal.SIGKILL)
    told.append({"before": sorted(before), "killed": name})


def kill_at_work():
    tracker = spark.sparkContext.statusTracker()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numActiveTasks for stage in stages):
            return kill()
        time.sleep(0.002)


class Killing(Heard):
    def __init__(self, how):
        super().__init__()
        self.how, self.thread = how, None

    def iteration(self, *values):
        super().iteration(*values)
        number = values[2]
        if number == 3 and self.how == "between":
            told_cached.append(cached())
            kill()
        if number == 3 and self.how == "within":
            self.thread = threading.Thread(target=kill_at_work)
            self.thread.start()


source = Path(sys.argv[1])
store(Warehouse(spark, str(source)), tonight())
for how in ("undisturbed", "between", "within"):
    root = Path(shutil.copytree(source, source.with_name(how)))
    told, told_cached, heard = [], [], Killing(how)
    began = time.perf_counter()
    report = rescore(spark, Warehouse(spark, str(root)), CUT, TONIGHT, heard)
    seconds = time.perf_counter() - began
    if heard.thread is not None:
        heard.thread.join()
    until = time.monotonic() + 60
    while len(executors()) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    found = {name: {key: None if v is None else v.hex() for key, v in sorted(part.items())}
             for name, part in results(root, report.run_id).items()}
    print("NIGHT " + json.dumps({
        "how": how, "kills": told, "cached": told_cached, "executors": sorted(executors()), "found": found,
        "path": [[v[2], float(v[3]).hex()] for v in heard.iterations], "seconds": seconds,
    }), flush=True)
"""


@pytest.mark.faults
@pytest.mark.cluster
def test_a_night_that_loses_an_executor_ends_with_the_same_bits(run_cluster: Any, tmp_path: Any) -> None:
    done = run_cluster(PROGRAM, str(tmp_path / "warehouse"), timeout=1200)
    nights = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("NIGHT ")]
    assert done.returncode == 0, done.stderr[-3000:]
    undisturbed, between, within = nights
    assert undisturbed["kills"] == []
    assert undisturbed["path"][-1][0] > 4  # there was something left to do when the executor died
    assert undisturbed["found"]["abilities"]
    assert between["cached"] == [[4]]  # some of the blocks are lost, and made again
    for night in (between, within):
        (kill,) = night["kills"]
        assert len(kill["before"]) == 2
        assert kill["killed"] not in night["executors"]
        assert len(night["executors"]) == 2  # Spark started another one
        assert night["path"] == undisturbed["path"], night["how"]
        assert night["found"] == undisturbed["found"], night["how"]
