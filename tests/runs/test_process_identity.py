"""Whether the process of a run still lives is told only where it can be known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cbmm_spark.runs import process_identity as module
from cbmm_spark.runs.process_identity import Owner, is_gone, this_process


def changed(**values: object) -> str:
    own = Owner.parse(this_process())
    assert own is not None
    return str(own._replace(**values))


def test_this_process_lives() -> None:
    own = Owner.parse(this_process())
    assert own is not None
    assert str(own) == this_process()
    assert not is_gone(this_process())


def test_a_killed_process_is_gone_whether_or_not_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    born = module._born(child.pid)
    assert born is not None
    assert not is_gone(changed(pid=child.pid, born=born))
    child.kill()
    while module._born(child.pid) is not None:
        pass
    assert is_gone(changed(pid=child.pid, born=born))  # a zombie
    child.wait()
    assert is_gone(changed(pid=child.pid, born=born))
    assert is_gone(changed(pid=child.pid, born=""))


def test_a_number_given_again_is_another_process() -> None:
    assert is_gone(changed(born="1"))


def test_a_process_of_somebody_else_lives() -> None:
    assert not is_gone(changed(pid=1, born=module._born(1) or ""))


@pytest.mark.parametrize("text", [None, "", "nothing", "a:b:c:d", "host:12", "host:x:place:1"])
def test_what_names_no_process_is_not_gone(text: str | None) -> None:
    assert not is_gone(text)


def test_another_place_is_not_judged() -> None:
    assert not is_gone(changed(place="elsewhere", pid=4_194_303, born="1"))


def test_a_host_with_colons_is_read_back() -> None:
    assert Owner.parse("fe80::1:12:place:34") == Owner("fe80::1", 12, "place", "34")
