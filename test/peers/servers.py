"""Starts bin/shoal, and the real servers whose place it takes, with archives of their own archivers.

tools/get-mms and tools/get-torchserve bring those to bin/peers. They need Java, and TorchServe imports torch, which it does not bring: an empty module
stands in.
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

import shoal

PEERS = shoal.ROOT / "bin/peers"


def free_ports(count):
    """Ports that nobody listens on. MMS takes none above 32,766, where those are that the machine gives."""
    held = []
    while len(held) < count:
        try:
            held.append(socket.create_server(("127.0.0.1", random.randrange(20000, 32767))))
        except OSError:
            pass  # somebody listens there
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Wrong(Exception):
    """Something that has to be there, or does not do what it should."""


class Kind:
    """The real server of a kind, what makes its archives, and how it is started."""

    def __init__(self, name, title):
        self.name, self.title = name, title
        self.bin = PEERS / name / "bin"
        self.python = self.bin / "python"

    def check(self):
        if not self.python.exists():
            raise Wrong(f"found no {self.python}: run tools/get-{self.name}, which brings it")
        if shutil.which("java") is None:
            raise Wrong("found no java in the PATH, which the real servers need (Debian: openjdk-17-jre-headless)")

    def environment(self, folder):
        """With everything that the server writes below the folder."""
        for name in ("tmp", "torch"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "torch/__init__.py").write_text("class Tensor:\n    pass\n")
        java = shutil.which("java")  # which the real servers need, and Shoal does not
        home = {"JAVA_HOME": str(pathlib.Path(java).resolve().parents[1])} if java else {}
        return {**os.environ, **home, "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": str(folder), "TEMP": str(folder / "tmp"),
                "LOG_LOCATION": str(folder / "logs"), "METRICS_LOCATION": str(folder / "logs")}

    def archive(self, store, folder, name, files):
        """Makes an archive of a handler: service.py, whose function is handle, and what it needs besides."""
        source = folder / f"{name}-source"
        source.mkdir()
        for file, content in files.items():
            (source / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        done = subprocess.run([*self.archiver(source, [source / file for file in files if file != "service.py"]), "--model-name", name, "--export-path", store],
                              env=self.environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Wrong(f"no archive was made of {name}:\n{done.stdout}")


class MMS(Kind):
    def archiver(self, source, _):
        return [self.bin / "model-archiver", "--model-path", source, "--handler", "service:handle", "--runtime", "python"]

    def command(self, config, store):
        return [self.bin / "multi-model-server", "--foreground", "--start", "--mms-config", config, "--model-store", store]

    def properties(self):
        return "preload_model=false\n"


class TorchServe(Kind):
    def archiver(self, source, others):
        more = ["--extra-files", ",".join(map(str, others))] if others else []
        return [self.bin / "torch-model-archiver", "--version", "1.0", "--handler", source / "service.py", *more]

    def command(self, config, store):
        return [self.bin / "torchserve", "--foreground", "--start", "--ncs", "--ts-config", config, "--model-store", store, "--disable-token-auth", "--enable-model-api"]

    def properties(self):
        ports = free_ports(2)
        return "grpc_inference_port=%d\ngrpc_management_port=%d\ndisable_system_metrics=true\n" % tuple(ports)


KINDS = {"mms": MMS("mms", "multi-model-server 1.1.11"), "torchserve": TorchServe("torchserve", "TorchServe 0.12.0")}


class Server:
    """One run of a server with a store. infer and manage are host:port once it answers. What it writes is below the folder, which is empty at first."""

    def __init__(self, kind, folder, store, properties):
        self.kind, self._folder = kind, folder
        ports = free_ports(3)
        self.infer, self.manage = (f"127.0.0.1:{port}" for port in ports[:2])
        config = folder / "config.properties"
        addresses = zip(("inference", "management", "metrics"), ports)
        config.write_text("".join(f"{name}_address=http://127.0.0.1:{port}\n" for name, port in addresses) + properties + self.properties())
        with open(folder / "log", "wb") as log:
            # In a group of its own, so that all of it can be ended.
            self.process = subprocess.Popen(self.command(config, store), cwd=folder, env=kind.environment(folder), stdout=log, stderr=log, start_new_session=True)
        try:
            self._await(time.monotonic() + 60)
        except BaseException:
            self.stop()
            raise

    def _await(self, patience):
        while True:
            try:
                if self.ask("GET", self.infer, "/ping")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > patience:
                raise Wrong(f"{self.title} does not answer:\n" + (self._folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def ask(self, method, address, path, body=None, headers=None):
        """Status, body and headers of an answer."""
        request = urllib.request.Request(f"http://{address}{path}", method=method, data=body, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as e:
            return e.code, e.read(), e.headers

    def register(self, query):
        status, body, _ = self.ask("POST", self.manage, f"/models?{query}&synchronous=true")
        if status != 200:
            raise Wrong(f"{self.title} does not register {query}: {status} {body.decode(errors='replace')}")

    def main(self):
        """The process that is told to end."""
        return self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Real(Server):
    def __init__(self, kind, folder, store, properties=""):
        self.title = kind.title
        super().__init__(kind, folder, store, properties)

    def command(self, config, store):
        return self.kind.command(config, store)

    def properties(self):
        return f"number_of_netty_threads=2\nvmargs=-Djava.io.tmpdir={self._folder / 'tmp'}\n" + self.kind.properties()

    def main(self):
        """What was started waits for a Java that it has started."""
        for pid in children(self.process.pid):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return pid
        return self.process.pid


class Shoal(Server):
    """It answers in the words of the kind, and its handlers run with the given Python, or with the Python and the packages of the real server."""

    def __init__(self, kind, folder, store, properties="", python=None):
        self.title = "Shoal"
        self._python = python or kind.python
        super().__init__(kind, folder, store, properties)

    def command(self, config, store):
        return [shoal.BINARY, "serve", "--model-store", store, "--mms-config", config, "--model-server", self.kind.name,
                "--http-port=0", "--grpc-port=0", "--metrics-port=0"]

    def properties(self):
        return f"python_executable={self._python}\n"


def children(pid):
    return [int(n) for n in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def check(kinds):
    """Makes sure that everything is there that is not part of this folder."""
    check_shoal()
    for kind in kinds:
        kind.check()


def check_shoal():
    if not shoal.BINARY.exists():
        raise Wrong(f"found no {shoal.BINARY}: run make build")
