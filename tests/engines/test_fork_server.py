"""Children of the fork server behave like separate processes: same files, killed, reaped, no orphans."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from straggler.engines.pool import fork_server as module
from straggler.engines.pool.fork_server import ForkServer, get_fork_server

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """Return a fork server that a test may kill, whose children can import this file."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])
    made = ForkServer()
    yield made
    made.process.kill()
    made.process.wait()


def patient(fd: int, *files: int) -> None:
    """Main function of a child: send its process id and what it sees, then wait until the line closes."""
    with socket.socket(fileno=fd) as line:
        seen = [os.pread(file, 20, 0).decode() for file in files]
        line.send(" ".join([str(os.getpid()), os.environ.get("SEEN_BY_A_CHILD", "-"), *seen]).encode())
        line.recv(1)


def begin(parent: ForkServer, *files: int) -> tuple[int, list[str], socket.socket]:
    """Fork a child; return its number, its message and the connection to it."""
    ours, theirs = socket.socketpair()
    arguments = (theirs.fileno(), *files)
    number = parent.fork(patient, arguments, arguments)
    theirs.close()
    return number, ours.recv(10_000).decode().split(), ours


def alive(pid: int | str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_child_has_the_parents_file_numbers_and_current_environment(
    own: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN_BY_A_CHILD", "yes")  # after the fork server started
    files = [tempfile.TemporaryFile() for _ in range(300)]  # noqa: SIM115 (more than one message holds)
    for number, file in enumerate(files):
        file.write(b"%d" % number)
        file.flush()
    number, (_, environment, *seen), _ = begin(own, *(file.fileno() for file in files))
    assert environment == "yes" and seen == [str(number) for number in range(300)]
    assert own.kill_child(number) == -signal.SIGKILL


def test_killed_children_are_reaped_and_exited_children_report_their_exit_code(own: ForkServer) -> None:
    first, (pid, *_), held = begin(own)
    second, (other, *_), line = begin(own)
    line.close()  # the child exits by itself
    wait_until(lambda: not alive(other))
    assert own.kill_child(second) == 0
    os.kill(int(pid), signal.SIGSTOP)
    assert own.kill_child(first) == -signal.SIGKILL and held.recv(1) == b""
    assert not Path(f"/proc/{pid}").exists() and not Path(f"/proc/{other}").exists()


def test_the_fork_server_has_no_threads_when_it_forks(own: ForkServer) -> None:
    begin(own)
    assert len(list(Path(f"/proc/{own.process.pid}/task").iterdir())) == 1


def test_children_die_with_the_fork_server_and_a_new_server_starts(
    own: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_fork_server", own)
    number, (pid, *_), _ = begin(get_fork_server())
    os.kill(int(pid), signal.SIGSTOP)  # even a stopped child, which cannot notice that its connection closes
    own.process.kill()
    wait_until(lambda: not alive(pid))
    assert own.kill_child(number) == -signal.SIGKILL
    other = get_fork_server()
    assert other is not own and other.is_usable()
    other.process.kill()
    other.process.wait()


def test_half_a_request_ends_the_fork_server() -> None:
    """The parent was killed before it sent the files; the fork server does not wait for them."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(EOFError):
        module.receive_files(theirs, 2)


def test_a_killed_parent_leaves_no_processes() -> None:
    program = (
        "import sys, time; sys.path.append(sys.argv[1])\n"
        "import test_fork_server; from straggler.engines.pool.fork_server import get_fork_server\n"
        "number, said, line = test_fork_server.begin(get_fork_server())\n"
        "print(get_fork_server().process.pid, said[0], flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(HERE)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = process.stdout.readline().split()
    assert len(pids) == 2 and all(map(alive, pids))
    os.kill(int(pids[1]), signal.SIGSTOP)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, pids)))
