#!/usr/bin/env python3
"""Asks bin/shoal and the real multi-model-server and TorchServe the same, and says where they differ.

    python3 test/peers/same.py [mms|torchserve]

The archives are made by the real archivers. Differences that are meant are listed below with their reason; any other fails. It needs pip, Java, and
Python 3.11, for which the lists of packages were made; those go to bin/peers. TorchServe imports torch, which it does not bring: an empty module stands in.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

HANDLER = """
import json
from %s import PredictionException


def handle(data, context):
    if data is None:
        return None
    answers = []
    for i, d in enumerate(data):
        body = d.get("body")
        text = body if isinstance(body, str) else body.decode() if isinstance(body, (bytes, bytearray)) else json.dumps(body)
        if text == "raise":
            raise RuntimeError("no")
        if text == "prediction":
            raise PredictionException("that is wrong", 513)
        if text == "none":
            return None
        if text == "short":
            return []
        if text == "odd":
            return [object() for _ in data]
        if text == "dict":
            answers.append({"a": [1, 2]})
            continue
        if text == "bad":
            context.set_response_status(422, "Unprocessable", i)
        context.set_response_content_type(i, "text/special")
        answers.append(text + "/" + str(len(data)) + "/" + str(len(context.get_request_id(i))))
    return answers
"""
BROKEN = "import nothing_of_this_name\n\n\ndef handle(data, context):\n    return None\n"

# What is asked: method, port, path, and body with its type.
TEXT = "text/plain"
CALLS = [
    ("GET", "inference", "/ping"),
    ("POST", "management", "/models"),
    ("POST", "management", "/models?url=absent.mar"),
    ("POST", "management", "/models?url=../x"),
    ("POST", "management", "/models?url=noop.mar"),
    ("POST", "management", "/models?url=noop.mar#again"),
    ("GET", "management", "/models"),
    ("GET", "management", "/models?limit=1"),
    ("GET", "management", "/models/noop"),
    ("POST", "inference", "/predictions/noop", b"a", TEXT),
    ("PUT", "management", "/models/noop?min_worker=1&synchronous=true"),
    ("PUT", "management", "/models/noop?min_worker=2&max_worker=1"),
    ("PUT", "management", "/models/absent?min_worker=1"),
    ("GET", "management", "/models/noop#worker"),
    *[("POST", "inference", "/predictions/noop", body, TEXT) for body in (b"a", b"bad", b"raise", b"prediction", b"none", b"short", b"odd", b"dict")],
    ("POST", "inference", "/predictions/noop", b'{"x": 1}', "application/json"),
    ("POST", "inference", "/predictions/noop", b"x", "application/octet-stream"),
    ("PUT", "inference", "/predictions/noop", b"x", TEXT),
    ("POST", "inference", "/predictions/absent", b"x", TEXT),
    ("POST", "inference", "/predictions", b"x", TEXT),
    ("POST", "inference", "/nowhere", b"x", TEXT),
    ("POST", "inference", "/noop/predict", b"x", TEXT),
    ("POST", "inference", "/invocations?model_name=noop", b"x", TEXT),
    ("POST", "inference", "/models/noop/invoke", b"x", TEXT),
    ("PATCH", "management", "/models"),
    ("POST", "management", "/models/noop"),
    ("GET", "management", "/nowhere"),
    ("GET", "management", "/models/absent"),
    ("DELETE", "management", "/models/absent"),
    ("GET", "inference", "/models"),
    ("GET", "inference", "/ping#worker"),
    ("DELETE", "management", "/models/noop"),
    ("POST", "management", "/models?url=noop.mar&initial_workers=1&synchronous=true"),
    ("DELETE", "management", "/models/noop"),
    ("POST", "management", "/models?url=noop.mar&initial_workers=1"),
    ("DELETE", "management", "/models/noop"),
    ("POST", "management", "/models?url=noop.mar&batch_size=8&max_batch_delay=50&initial_workers=1&synchronous=false"),
    ("DELETE", "management", "/models/noop"),
    ("POST", "management", "/models?url=broken.mar&initial_workers=1&synchronous=true"),
    ("POST", "management", "/models?url=noop.mar&model_name=x&runtime=cobol"),
    ("POST", "management", "/models?url=noop.mar&model_name=x&batch_size=y"),
]

# Those that are meant to differ, by path, and why.
MEANT = {
    "/models/noop#worker": "workers have no port, which is the one's id, and the process is not told, which is the other's",
    "/models?url=broken.mar&initial_workers=1&synchronous=true": "what is wrong with the handler is told",
    "/models?url=noop.mar&model_name=x&batch_size=y": "a number that is none is refused",
}


def install(name):
    """The environment of a server, installed if it is not there."""
    folder, wanted = ROOT / "bin/peers" / name, HERE / (name + ".txt")
    stamp = folder / "installed.txt"  # a copy of the list, written last
    if not stamp.exists() or stamp.read_bytes() != wanted.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=True, with_pip=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement", wanted], check=True)
        stamp.write_bytes(wanted.read_bytes())
    return folder / "bin"


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def archive(name, tools, folder, environment):
    store = folder / "store"
    store.mkdir()
    for model, text in ("noop", HANDLER % ("mms.service" if name == "mms" else "ts.utils.util")), ("broken", BROKEN):
        source = folder / model
        source.mkdir()
        (source / (model + "_service.py")).write_text(text)
        if name == "mms":
            command = [tools / "model-archiver", "--model-path", source, "--handler", model + "_service:handle", "--runtime", "python"]
        else:
            command = [tools / "torch-model-archiver", "--version", "1.0", "--handler", source / (model + "_service.py")]
        subprocess.run([*command, "--model-name", model, "--export-path", store], check=True, env=environment, stderr=subprocess.DEVNULL)
    return store


def properties(path, ports, more):
    keys = ("inference_address", "management_address", "metrics_address")
    path.write_text("".join("%s=http://127.0.0.1:%d\n" % pair for pair in zip(keys, ports)) + more)
    return path


def start(command, folder, log, environment):
    """Starts a server in a group of its own, so that all of it can be ended."""
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


def ask(port, method, path, body=None, kind=None):
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), method=method, data=body, headers={"Content-Type": kind} if kind else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, plain(answer.read()), answer.headers.get("Content-Type")
    except urllib.error.HTTPError as e:
        return e.code, plain(e.read()), e.headers.get("Content-Type")


def plain(body):
    """A body without what is another each time."""
    text = body.decode("utf-8", "replace")
    for escaped, character in ("\\u0027", "'"), ("\\u003d", "="), ("\\u003c", "<"), ("\\u003e", ">"):
        text = text.replace(escaped, character)
    return re.sub(r'("startTime": )"[^"]*"', r"\1T", re.sub(r'("memoryUsage": )\d+', r"\g<1>0", text))


def await_ping(port, log):
    for _ in range(300):
        try:
            if ask(port, "GET", "/ping")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server does not answer:\n" + log.read_text()[-2000:])


def compare(name):
    tools = install(name)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "torch").mkdir()
        (folder / "torch/__init__.py").write_text("class Tensor:\n    pass\n")
        (folder / "tmp").mkdir()
        java = shutil.which("java")
        if java is None:
            raise SystemExit("found no java in the PATH, which both servers need")
        environment = {**os.environ, "JAVA_HOME": str(pathlib.Path(java).resolve().parents[1]), "PATH": "%s:%s" % (tools, os.environ["PATH"]), "PYTHONPATH": str(folder), "TEMP": str(folder / "tmp"),
                       "LOG_LOCATION": str(folder / "logs"), "METRICS_LOCATION": str(folder / "logs")}
        store = archive(name, tools, folder, environment)
        ports = free_ports(8)
        common = "vmargs=-Djava.io.tmpdir=%s\nnumber_of_netty_threads=2\n" % (folder / "tmp")
        if name == "mms":
            theirs = properties(folder / "theirs.properties", ports[:2], common + "preload_model=false\n")
            command = [tools / "multi-model-server", "--foreground", "--start", "--mms-config", theirs, "--model-store", store]
        else:
            theirs = properties(folder / "theirs.properties", ports[:3], common + "grpc_inference_port=%d\ngrpc_management_port=%d\n" % tuple(ports[6:]) +
                                "disable_system_metrics=true\n")
            command = [tools / "torchserve", "--foreground", "--start", "--ncs", "--ts-config", theirs, "--model-store", store, "--disable-token-auth",
                       "--enable-model-api"]
        ours = properties(folder / "ours.properties", ports[3:6], "python_executable=%s\n" % (tools / "python"))
        with open(folder / "theirs.log", "wb") as one, open(folder / "ours.log", "wb") as two:
            servers = [start(command, folder, one, environment),
                       start([ROOT / "bin/shoal", "serve", "--model-store", store, "--mms-config", ours, "--model-server", name], folder, two, environment)]
            try:
                await_ping(ports[0], folder / "theirs.log")
                await_ping(ports[3], folder / "ours.log")
                return tell(name, ports)
            finally:
                for server in servers:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()


def tell(name, ports):
    """Prints where the two differ. Returns how often nobody meant it."""
    wrong, meant = 0, 0
    for method, port, path, *rest in CALLS:
        at = 0 if port == "inference" else 1
        bare = path.partition("#")[0]  # what is behind it only tells calls apart
        theirs, ours = ask(ports[at], method, bare, *rest), ask(ports[3 + at], method, bare, *rest)
        if theirs == ours:
            continue
        reason = MEANT.get(path)
        meant, wrong = meant + (reason is not None), wrong + (reason is None)
        print("%s: %s %s %s\n  %s\n  there %s\n  here  %s" % (name, method, path, rest[:1] or "", reason or "NOT MEANT", theirs, ours))
    print("%s: %d calls: %d the same, %d meant to differ, %d not" % (name, len(CALLS), len(CALLS) - meant - wrong, meant, wrong))
    return wrong


def main():
    names = sys.argv[1:] or ["mms", "torchserve"]
    sys.exit(1 if sum(compare(name) for name in names) else 0)


main()
