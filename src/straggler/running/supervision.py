"""Supervision of a run: a parent process that restarts the run from its checkpoint if it is killed or hangs.

The run sends one byte per second through a pipe, and tells when it wrote a checkpoint and when it ends on
purpose. Both sides use the standard library only, so that the parent stays small.
"""

import argparse
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from straggler.running.signals import handling_signals
from straggler.running.watchdog import list_silences

VARIABLE = "STRAGGLER_SUPERVISOR"  # the number of the pipe in the environment of the run
ALIVE, STARTED, SAVED, ENDED = b".", b"s", b"c", b"e"
BEAT_SECONDS = 1.0
START_SECONDS = 60.0  # of silence, in addition, before training, as large imports stop all threads, and after
MAX_LOSSES = 5  # in a row without a new checkpoint, unless --max-failures sets the total
INVALID_CODE = 2  # of a run that cannot start, for example because its cluster has not come back yet
RESTART_CODE = 75  # of a run that says that another try may succeed (EX_TEMPFAIL), as without a cluster
LONGEST_PAUSE = 60.0  # seconds before a restart; they double from one second
STACK_SECONDS = 1.0  # that a silent run has to print where it is, before it is killed
END_SECONDS = 5.0  # after the second stop signal, until the run is killed

_pipe: int | None = None  # of this process, if it is supervised


def start_heartbeat() -> None:
    """Send a byte per second to the supervisor, if there is one; stop the run if the supervisor dies.

    A run that makes no progress sends none. Before the supervisor kills a silent run, SIGUSR1 makes it print
    the stacks of its threads, also if it does not return to Python.
    """
    global _pipe
    if (number := os.environ.pop(VARIABLE, "")).isdecimal():
        _pipe = int(number)
        os.set_inheritable(_pipe, False)
        faulthandler.register(signal.SIGUSR1)
        threading.Thread(target=_beat, daemon=True).start()


def _beat() -> None:
    try:
        while True:
            if not list_silences():
                tell_supervisor(ALIVE)
            time.sleep(BEAT_SECONDS)
    except OSError:
        os.kill(os.getpid(), signal.SIGTERM)  # the run saves a checkpoint and ends


def tell_supervisor(what: bytes) -> None:
    """Send ALIVE, STARTED, SAVED or ENDED to the supervisor, if there is one."""
    if _pipe is not None:
        os.write(_pipe, what)


def is_supervised(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for supervision."""
    return bool(arguments) and arguments[0] in ("run", "resume") and "--supervise" in arguments


@dataclass
class SupervisedRun:
    """A process of the run, and what it has told so far."""

    process: "subprocess.Popen[bytes]"
    pipe: int
    has_started: bool = False
    has_saved: bool = False
    has_ended: bool = False  # on purpose: finished, failed with a message, or stopped by the user
    silence: float = 0.0  # seconds without a byte, in which this process was running itself

    def listen(self, timeout: float) -> bool:
        """Wait for a byte for at most BEAT_SECONDS; kill a silent process. Return False when it has died."""
        if select.select([self.pipe], [], [], BEAT_SECONDS)[0]:
            told = os.read(self.pipe, 4096)
            self.has_saved |= SAVED in told
            self.has_ended |= ENDED in told
            self.has_started |= STARTED in told
            if told:
                self.silence = 0.0
            return bool(told)
        self.silence += BEAT_SECONDS
        if self.is_silent(timeout):
            self.kill_silent_process()
        return True

    def kill_silent_process(self) -> None:
        """Let the process print where it is, also if it was stopped, and kill it."""
        self.process.send_signal(signal.SIGUSR1)
        self.process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STACK_SECONDS)
        self.process.kill()

    def is_silent(self, timeout: float) -> bool:
        """Return whether the process counts as hung."""
        is_training = self.has_started and not self.has_ended
        return self.silence >= timeout + (0.0 if is_training else START_SECONDS)

    def describe_end(self, timeout: float) -> str:
        """Return how the process was lost."""
        code = self.process.returncode
        if self.is_silent(timeout):
            return f"The run sent nothing for {self.silence:g} s and was killed"
        return (
            f"The run was killed (signal {-code})" if code < 0 else f"The run ended early (exit code {code})"
        )


class Supervisor:
    """Runs a command, and runs it again from its checkpoint when it is lost; forwards stop signals."""

    def __init__(self, arguments: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument("--worker-timeout", type=float, default=60.0)
        parser.add_argument("--max-failures", type=int)
        try:
            options, _ = parser.parse_known_args(list(arguments))
        except argparse.ArgumentError:  # the run reports it
            options = parser.parse_args([])
        self.timeout: float = options.worker_timeout
        self.max_losses: int | None = options.max_failures
        self.arguments = [each for each in arguments if each != "--supervise"]
        self._run: SupervisedRun | None = None
        self._signals = 0
        self._kill_at = float("inf")

    def run(self) -> int:
        """Run the command until it ends on purpose or is lost too often; return its exit code."""
        losses, streak, is_away = 0, 0, False  # is_away: the cluster of the run is gone
        with handling_signals(self._forward):
            while True:
                run = self._run_once()
                code = run.process.returncode
                is_away = code == RESTART_CODE or (is_away and code == INVALID_CODE)
                if (run.has_ended and not is_away) or self._signals:
                    return code if code >= 0 else 128 - code
                if run.has_saved:  # otherwise --force would start over again
                    self.arguments = [each for each in self.arguments if each != "--force"]
                losses, streak = losses + 1, 1 if run.has_saved else streak + 1
                how = run.describe_end(self.timeout)
                limit = MAX_LOSSES if self.max_losses is None else self.max_losses
                if (streak if self.max_losses is None else losses) > limit:
                    remedy = "so it is not restarted. Resume it with the same command"
                    say(f"{how}. It was lost {losses} times, {remedy}.")
                    return code if code >= 0 else 128 - code
                pause = min(LONGEST_PAUSE, 2.0 ** (streak - 1))
                say(f"{how}; restarting it from its checkpoint in {pause:g} s (restart {losses}).")
                if not self._pause(pause):
                    return 130

    def _run_once(self) -> SupervisedRun:
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "straggler", *self.arguments],
            pass_fds=[writing],
            env=os.environ | {VARIABLE: str(writing)},
            process_group=0,  # Ctrl-C in the terminal reaches the supervisor, which forwards it once
        )
        os.close(writing)
        self._run = run = SupervisedRun(process, reading)
        while run.listen(self.timeout):
            if time.monotonic() > self._kill_at:
                process.kill()
        process.wait()
        os.close(reading)
        return run

    def _pause(self, seconds: float) -> bool:
        """Wait before a restart; return False if a stop signal came."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._signals:
            time.sleep(0.1)
        return not self._signals

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Pass a stop signal on, also to a stopped process; after the second, kill what does not end."""
        self._signals += 1
        if self._signals == 2:
            self._kill_at = time.monotonic() + END_SECONDS
        if self._run is not None:
            self._run.process.send_signal(number)
            self._run.process.send_signal(signal.SIGCONT)


def say(line: str) -> None:
    """Print a line of the supervisor."""
    print(f"supervisor: {line}", file=sys.stderr, flush=True)
