#!/usr/bin/env python3
"""Tests bin/shoal with each tritonclient that is pinned here: requirements-VERSION.txt.

    python3 test/clients/run.py [-k PATTERN]

The packages are installed into bin/clients/VERSION, and again when their list has
changed. The last line says how many tests passed, failed and were skipped. It
needs pip, and Python 3.11, for which the lists were made.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
VENVS = HERE.parents[1] / "bin/clients"
COUNTS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")


def installing(requirements, folder):
    """Starts to install, and returns the process; None if all is there."""
    stamp = folder / "installed.txt"  # a copy of the list, written last
    if stamp.exists() and stamp.read_bytes() == requirements.read_bytes():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)  # without a pip of its own, which would cost more than the rest
    install = [
        sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet", "--disable-pip-version-check",
        "--only-binary=:all:", "--no-deps", "--no-compile", "--requirement", requirements,
    ]
    return subprocess.Popen(install)


def install():
    """Installs what is missing, and returns the Python of each version, the newest last."""
    lists = {path.stem.removeprefix("requirements-"): path for path in sorted(HERE.glob("requirements-*.txt"))}
    processes = {version: installing(path, VENVS / version) for version, path in lists.items()}
    for version, process in processes.items():
        if process is None:
            continue
        if process.wait() != 0:
            sys.exit(f"run.py: pip cannot install {lists[version].name}; its message is above")
        shutil.copy(lists[version], VENVS / version / "installed.txt")
    return [VENVS / version / "bin/python" for version in lists]


def restart_with_clients():
    """Runs the program again with a Python that has tritonclient, unless this one has it."""
    try:
        import tritonclient  # noqa: F401
    except ImportError:
        python = install()[-1]
        os.execv(python, [python, *sys.argv])


def main():
    total = [0, 0, 0]
    for python in install():
        print(f"== tritonclient {python.parents[1].name}", flush=True)
        command = [python, HERE / "suite.py", *sys.argv[1:]]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace")
        print(ran.stdout, end="", flush=True)
        counts = COUNTS.findall(ran.stdout)
        if counts:
            total = [sum(pair) for pair in zip(total, map(int, counts[-1]))]
        elif ran.returncode == 0:
            ran.returncode = 1
        if ran.returncode != 0 and (not counts or counts[-1][1] == "0"):
            total[1] += 1  # it ended before it could count, or ran nothing
    print("all: {} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
