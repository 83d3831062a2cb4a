"""Runs ab, the load of the document of MMS."""

import csv
import pathlib
import re
import shutil
import subprocess
import tempfile

import servers


def check():
    if shutil.which("ab") is None:
        raise servers.Wrong("found no ab in the PATH (Debian: apache2-utils)")


class Load:
    """What ab says of one run."""

    def __init__(self, text, percentiles):
        self.text = text
        self.complete = int(self._number("Complete requests"))
        self.failed = int(self._number("Failed requests"))
        self.others = int(self._number("Non-2xx responses", "0"))
        self.rate = float(self._number("Requests per second"))
        self.p50, self.p99 = percentiles[50], percentiles[99]  # milliseconds

    def _number(self, name, unless=None):
        found = re.search(rf"^{name}:\s+([\d.]+)", self.text, re.MULTILINE)
        if not found and unless is None:
            raise servers.Wrong(f"found no {name} in what ab says:\n{self.text}")
        return found[1] if found else unless


def run(address, path, body, kind, clients, *how):
    """Sends the body over and over, for as long or as often as how says, with connections that stay open."""
    with tempfile.TemporaryDirectory(prefix="shoal-ab-") as folder:
        data, percentiles = pathlib.Path(folder) / "body", pathlib.Path(folder) / "percentiles.csv"
        data.write_bytes(body)
        call = ["ab", "-q", "-k", "-l", "-s", "60", "-c", str(clients), "-T", kind, "-p", data, "-e", percentiles, *how, f"http://{address}{path}"]
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        if done.returncode != 0:
            raise servers.Wrong(f"{' '.join(map(str, call))}: ended with {done.returncode}:\n{done.stdout}")
        rows = list(csv.reader(percentiles.read_text().splitlines()))[1:]
        return Load(done.stdout, {int(percent): float(ms) for percent, ms in rows})
