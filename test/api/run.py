#!/usr/bin/env python3
"""Sends generated requests to bin/shoal, and compares the answers with openapi.yaml.

    python3 test/api/run.py [--examples N]

schemathesis makes N requests of each operation (1,000 unless given), valid and invalid. Statuses,
content types, headers and bodies must be those of docs/reference/openapi.yaml, requests that do not
match it must be rejected, and none may be answered with 500. It needs bin/schemathesis
(tools/get-schemathesis), bin/shoal and lib. The last line counts operations, as .ci/run wants it.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "unsupported_method")


def serve():
    """Starts a server on free ports, and returns it with the URL of its HTTP port."""
    server = subprocess.Popen(
        [ROOT / "bin/shoal", "serve", ROOT / "examples/onnx", *(f"--{p}-port=0" for p in ("http", "grpc", "metrics"))],
        stderr=subprocess.PIPE, text=True)
    url = None
    for line in server.stderr:
        if found := re.search(r"msg=listening protocol=http address=(\S+)", line):
            url = f"http://{found[1]}"
            break
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{url}/v2/health/ready")
            return server, url
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server is not ready")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=1000)
    arguments = parser.parse_args()
    server, url = serve()
    threading.Thread(target=server.stderr.read, daemon=True).start()  # or the pipe would fill up
    try:
        done = subprocess.run(
            [ROOT / "bin/schemathesis/bin/python", "-m", "schemathesis.cli", "--config-file", ROOT / "test/api/schemathesis.toml",
             "run", ROOT / "docs/reference/openapi.yaml", "--exclude-path", "/dashboard/events",  # which does not end
             "--url", url, "--phases", "examples,coverage,fuzzing",
             "--max-examples", str(arguments.examples), "--checks", ",".join(CHECKS), "--seed", "1",
             "--generation-database", "none", "--no-color"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tempfile.gettempdir())
        print(done.stdout)
        alive = server.poll() is None
    finally:
        server.terminate()
        server.wait(timeout=60)
    tested = int(found[1]) if (found := re.search(r"Tested: (\d+)", done.stdout)) else 0
    failed = 0 if done.returncode == 0 and alive else max(1, len(re.findall(r"^_{5,} ", done.stdout, re.M)))
    print(f"{max(tested - failed, 0)} passed, {failed} failed, 0 skipped")
    return 1 if failed or not tested else 0


if __name__ == "__main__":
    sys.exit(main())
