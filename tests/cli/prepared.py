"""`kt` forked from a process that has imported it already, so that tests pay for Python's start once a worker.

Only what reads no environment is imported before the fork: neither torch, numpy, the kernels nor huggingface_hub.
"""

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class Prepared:
    """The process, and the socket over which it is asked: a line of JSON with the three streams; the exit code comes back."""

    def __init__(self, root: Path) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        env = {**os.environ, "PYTHONPATH": str(root)}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env)
        theirs.close()
        self.socket, self.answers = ours, ours.makefile("r")

    def run(
        self, args: tuple[str, ...], given: str, env: dict[str, str], cwd: Path, timeout: float
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `kt *args`. Raises TimeoutError, and ends the command, after `timeout` seconds."""
        streams = [os.pipe() for _ in range(3)]
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = streams
        request = json.dumps({"args": args, "env": env, "cwd": str(cwd)}).encode() + b"\n"
        socket.send_fds(self.socket, [request], [read_in, write_out, write_err])
        for fd in (read_in, write_out, write_err):
            os.close(fd)
        pid = int(self.answers.readline())
        late = threading.Timer(timeout, os.kill, (pid, 9))
        late.start()
        shown: dict[int, str] = {}
        readers = [threading.Thread(target=_read, args=(fd, shown)) for fd in (read_out, read_err)]
        for reader in readers:
            reader.start()
        try:
            with os.fdopen(write_in, "w", encoding="utf-8") as stdin:
                stdin.write(given)
        except BrokenPipeError:
            pass  # it did not care
        for reader in readers:
            reader.join()
        code = int(self.answers.readline())
        late.cancel()
        if code == -9:
            raise TimeoutError(f"kt {' '.join(args)}: ended after {timeout} s")
        return code, shown[read_out], shown[read_err]

    def close(self) -> None:
        self.answers.close()
        self.socket.close()
        self.process.wait()


def _read(fd: int, shown: dict[int, str]) -> None:
    with os.fdopen(fd, encoding="utf-8") as stream:
        shown[fd] = stream.read()


def _serve(asked: socket.socket) -> None:
    """Fork for each request. Returns in the child, which then is `kt`."""
    while True:
        request, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not request:
            sys.exit()
        while not request.endswith(b"\n"):
            request += asked.recv(1 << 20)
        pid = os.fork()
        if not pid:
            return _become(json.loads(request), fds, asked)
        for fd in fds:
            os.close(fd)
        asked.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(request: dict, fds: list[int], asked: socket.socket) -> None:
    asked.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", errors=errors, buffering=buffering, closefd=False)
        for number, mode, errors, buffering in (
            (0, "r", "surrogateescape", -1), (1, "w", "surrogateescape", -1), (2, "w", "backslashreplace", 1),
        )
    )  # fmt: skip
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [str(Path(request["cwd"], "kt_cli", "__main__.py")), *request["args"]]


if __name__ == "__main__":
    import pkgutil
    from importlib import import_module

    import kt_cli
    from kt_cli.__main__ import main

    ours = (module.name for module in pkgutil.walk_packages(kt_cli.__path__, "kt_cli."))
    for name in (*ours, "kt_core.machine", "kt_core.models", "kt_core.plan", "httpx", "packaging.requirements"):
        import_module(name)
    reads_environment = {"torch", "numpy", "huggingface_hub", "kt_core._native"} & set(sys.modules)
    assert not reads_environment, reads_environment
    gc.freeze()  # else a collection copies every page after the fork
    _serve(socket.socket(fileno=int(sys.argv[1])))
    ended: Any = 0
    try:
        main()
    except SystemExit as e:
        ended = e.code
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended or 0)  # taking the modules down again would copy every page
