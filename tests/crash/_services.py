"""Services that worker tests start in child processes."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time

from collage.testing import FakeToolchain
from collage.testing._fake_toolchain import misbehave
from collage.toolchains._contract import Availability


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even a reason")


class Echo:
    def __init__(self, greeting: str = "") -> None:
        self.greeting = greeting

    def echo(self, text: str) -> str:
        return self.greeting + text

    def bad(self, what: str) -> str:
        misbehave(what)
        return "survived"

    def child(self) -> int:
        """A child that sleeps."""
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()  # Until then it begins, which on a busy machine takes a while.
        return child.pid

    def spin(self, how: str) -> list[int]:
        """Keeps a processor busy from now on, after the answer too; who does."""
        busy = "import time; end = time.time() + 600\nwhile time.time() < end: pass"
        if how == "thread":
            threading.Thread(target=exec, args=(busy,), daemon=True).start()
            return [os.getpid()]
        child = subprocess.Popen([sys.executable, "-c", busy], start_new_session=how == "stray")
        return [child.pid]

    def hang_later(self) -> None:
        """Answers, and then holds the interpreter's lock for good."""
        threading.Timer(0.2, ctypes.PyDLL(None).sleep, (600,)).start()

    def stray(self) -> int:
        """A child in a session of its own, which no signal to a process group reaches."""
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid

    def family(self, mib: int, children: int) -> list[int]:
        """Children that hold so much each."""
        hoard = f"import time; hoard = b'x' * ({mib} << 20); print('full', flush=True); time.sleep(600)"
        command = [sys.executable, "-c", hoard]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(children)]
        for child in started:
            assert child.stdout is not None
            child.stdout.readline()
        return [child.pid for child in started]

    def forks(self, mib: int, children: int) -> None:
        """Children that share what this process holds."""
        self.hoard = b"x" * (mib << 20)
        for _ in range(children):
            if not os.fork():
                time.sleep(600)

    def rename(self) -> None:
        """Gives this process a name that is no text."""
        ctypes.CDLL(None).prctl(15, b"\xff\xfe", 0, 0, 0)  # PR_SET_NAME

    def pid(self) -> int:
        return os.getpid()

    def odd(self, what: str) -> object:
        if what == "silent":
            raise _Silent
        if what == "half":
            raise RuntimeError("no such file: \udcff.so")
        return {"nan": float("nan"), "deep": nested(100_000)}.get(what, object())

    def forge(self, frame: str) -> None:
        """Writes to the pipe of replies, as foreign code may that counts descriptors."""
        caller = sys._getframe(1)
        while "replies" not in caller.f_locals:
            caller = caller.f_back  # type: ignore[assignment]
        os.write(caller.f_locals["replies"], struct.pack("!Q", len(frame)) + frame.encode())


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


class Forked(Echo):
    def __init__(self) -> None:
        super().__init__()
        misbehave("fork")


class Slow(FakeToolchain):
    def availability(self) -> Availability:
        time.sleep(5.0)
        return super().availability()


def broken() -> None:
    raise RuntimeError("no such library")
