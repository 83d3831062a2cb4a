#!/usr/bin/env python3
"""Follows the README, the tutorials and the READMEs of examples, as a new user would.

    python3 test/docs/run.py [PAGE...]

Every command block runs, in order, in an empty directory that has only the examples; the output
that a page shows must be what the command prints. Each page has a network of its own where only
loopback exists, so the default ports are free and nothing is downloaded. It needs bin/shoal, lib
and bin/worker. The last line counts blocks, as .ci/run wants it.
"""

import argparse
import concurrent.futures
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pages

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALONE = "SHOAL_DOCS_ALONE"  # set inside the network of its own


def followed():
    """The pages that are run from top to bottom."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    yield from sorted((ROOT / "examples").glob("*/README.md"))
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        if "<!-- followed by a test -->" in page.read_text():
            yield page


class Server:
    """A `shoal serve` of a page, in a terminal of its own."""

    def __init__(self, command, cwd, env):
        self.output = ""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe("bash", ["bash", "-c", f"stty cols 96; exec {command}"], env)

    def read(self, seconds):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.terminal], [], [], left)[0]:
                return
            try:
                self.output += os.read(self.terminal, 1 << 16).decode(errors="replace")
            except OSError:  # the server has ended
                return

    def wait_until(self, reached, what, seconds=60):
        until = time.monotonic() + seconds
        while not reached(self.output):
            if time.monotonic() > until or os.waitpid(self.pid, os.WNOHANG) != (0, 0):
                self.read(0.2)
                raise pages.Wrong(f"the server {what}:\n{self.output}")
            self.read(0.1)

    def stop(self):
        try:
            os.kill(self.pid, signal.SIGINT)
        except ProcessLookupError:
            return
        until = time.monotonic() + 20
        while time.monotonic() < until:
            self.read(0.1)
            try:
                if os.waitpid(self.pid, os.WNOHANG) != (0, 0):
                    return
            except ChildProcessError:
                return
        os.kill(self.pid, signal.SIGKILL)
        raise pages.Wrong("the server does not end")


class Follower:
    """Does what a page says, in one directory."""

    def __init__(self, page, work):
        self.work, self.cwd = work, work
        self.server, self.output = None, None
        self.passed = self.skipped = self.missing = 0
        marked = re.search("<!-- python: ([a-z]+) -->", page.read_text())
        interpreter = marked[1] if marked else "worker"
        self.env = {
            "HOME": str(work / "home"),
            "LANG": "C.UTF-8",
            "COLUMNS": "96",
            "PATH": f"{ROOT}/bin:{ROOT}/bin/{interpreter}/bin:/usr/local/go/bin:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}/python/src",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SHOAL_ONNXRUNTIME": f"{ROOT}/lib/libonnxruntime.so.1",
            "XDG_RUNTIME_DIR": str(work / "home"),
        }
        for name in ("GOCACHE", "GOMODCACHE", "GOPATH"):
            self.env[name] = subprocess.run(["go", "env", name], capture_output=True, text=True).stdout.strip()
        (work / "home").mkdir()
        shutil.copytree(ROOT / "examples", work / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        if page.parent.parent == ROOT / "examples":
            self.cwd = work / page.parent.relative_to(ROOT)

    def follow(self, block):
        if block.skipped:
            self.skipped += 1
            self.output = None
            return
        if block.language == "text" and not block.file:
            self.compare(block)
        elif block.file:
            file = self.cwd / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "sh":
            self.shell(block.text)
        elif block.language == "python":
            self.run(["python3", "-c", block.text])
        self.passed += 1

    def compare(self, block):
        if self.output is None:
            return  # of a block that was not run, or of none
        if self.server and self.output is self.server:
            shown = lambda text: pages.matches(block.text, text, block.loose) is None
            self.server.wait_until(shown, f"does not show what line {block.line} does", 30)
            return
        until = time.monotonic() + 30
        while (missing := pages.matches(block.text, self.output, block.loose)) and block.soon and time.monotonic() < until:
            time.sleep(0.5)
            self.run(*self.last)
        if missing:
            raise pages.Wrong(f"shows what is not printed:\n{missing}\nbut\n{self.output}")

    def shell(self, text):
        commands = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        if commands[0].startswith("shoal serve"):
            command = "\n".join(commands).replace("\\\n", " ")
            if "\n" in command:
                raise pages.Wrong("a block that starts a server has no other commands")
            if self.server:
                self.server.stop()
            self.server = self.output = Server(command, self.cwd, self.env)
            self.server.wait_until(lambda text: "Ready" in text or "listening" in text, "is not ready")
            return
        program = commands[0].split()[0]
        if program == "node" and not shutil.which("node", path=self.env["PATH"]):
            self.missing += 1
            self.output = None
            print(f"== skipped: {commands[0]}: there is no {program}")
            return
        if program == "go":  # in the module, and not in a copy of its examples
            self.run(commands[0].split(), cwd=ROOT / self.cwd.relative_to(self.work))
            return
        self.run(["bash", "-euo", "pipefail", "-c", f"{text}\npwd > {self.work}/home/cwd"])
        self.cwd = pathlib.Path((self.work / "home" / "cwd").read_text().strip())

    def run(self, command, cwd=None):
        self.last = command, cwd
        with tempfile.TemporaryFile("w+") as output:  # and no pipe, which a daemon would keep open
            done = subprocess.run(command, cwd=cwd or self.cwd, env=self.env, timeout=120,
                                  stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            output.seek(0)
            self.output = output.read()
        if done.returncode:
            raise pages.Wrong(f"exit status {done.returncode}:\n{self.output}")


def follow(page):
    """Follows one page. Returns how many blocks passed, failed, are marked as not run, and lack a program."""
    name, began = page.relative_to(ROOT), time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        reader = Follower(page, pathlib.Path(directory))
        try:
            for block in pages.read(page.read_text()):
                try:
                    reader.follow(block)
                except (pages.Wrong, subprocess.TimeoutExpired) as wrong:
                    print(f"{name}:{block.line}: {wrong}")
                    return reader.passed, 1, reader.skipped, reader.missing
        except pages.Wrong as wrong:
            print(f"{name}: {wrong}")
            return reader.passed, 1, reader.skipped, reader.missing
        finally:
            if reader.server:
                reader.server.stop()
    print(f"{name}: {reader.passed} blocks, {reader.skipped} not run, {time.monotonic() - began:.1f} s")
    return reader.passed, 0, reader.skipped, reader.missing


def alone(page):
    """Follows one page in a network and a process space of its own, and returns what that prints."""
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
               "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, __file__, page]
    return subprocess.run(command, env=os.environ | {ALONE: "1"}, text=True, stdout=subprocess.PIPE).stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    all_pages = [p.resolve() for p in arguments.page] or list(followed())
    if ALONE in os.environ:
        print(*follow(all_pages[0]))
        return 0
    totals = [0, 0, 0, 0]
    # A page waits more than it computes: for a server, for Python, for a measurement.
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        for page, output in zip(all_pages, pool.map(alone, all_pages)):
            text, _, last = output.rstrip("\n").rpartition("\n")
            print(text, flush=True)
            counts = [int(n) for n in last.split()] if re.fullmatch(r"[\d ]+", last) else [0, 1, 0, 0]
            totals = [a + b for a, b in zip(totals, counts)]
    passed, failed, unrun, missing = totals
    print(f"{unrun} blocks are marked as not run")
    print(f"{passed} passed, {failed} failed, {missing} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
