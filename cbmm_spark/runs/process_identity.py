"""Which process a run belongs to, so that another one on the same machine can see whether it still lives."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import uuid
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Owner(NamedTuple):
    """A process, as the column `owner` of `runs` names it: ``host:pid:place:born``.

    Attributes
    ----------
    host
        Name of the machine, for people.
    pid
        Number of the process.
    place
        Where that number counts: a hash of the machine's boot and of the process's own name space of numbers. A
        container restarted under the same name is another place.
    born
        When the process started, so that a number given again is not taken for it; empty where the system does not say.
    """

    host: str
    pid: int
    place: str
    born: str

    @classmethod
    def parse(cls, text: str | None) -> Owner | None:
        """Return the owner a text names; None where it names none."""
        parts = (text or "").rsplit(":", 3)
        if len(parts) != 4 or not parts[1].isdigit():
            return None
        return cls(parts[0], int(parts[1]), parts[2], parts[3])

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.place}:{self.born}"


def this_process() -> str:
    """Return the owner that this process is."""
    pid = os.getpid()
    return str(Owner(socket.gethostname(), pid, _place(), _born(pid) or ""))


def is_gone(text: str | None) -> bool:
    """Whether an owner is a process of this machine that does not live any more; False where that cannot be known."""
    owner = Owner.parse(text)
    if owner is None or owner.place != _place():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives, and is somebody else's
        pass
    return bool(owner.born) and _born(owner.pid) != owner.born


@functools.cache
def _place() -> str:
    """Return what tells this machine, since it was started, and this container from every other one."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink(_PROC / "self/ns/pid"))
    if len(parts) < 2:
        parts = [socket.gethostname(), str(uuid.getnode())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _born(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; None where it has ended or the system does not say."""
    try:
        # The name of the program, in parentheses, may hold anything; state is the third field, the start the 22nd.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]  # a zombie works no more
