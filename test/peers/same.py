#!/usr/bin/env python3
"""Asks bin/shoal and the real multi-model-server and TorchServe the same, and says where they differ.

    python3 test/peers/same.py [--record] [mms] [torchserve]

First the steps of MMS's document on batching: a handler is archived, registered with batch_size=8, max_batch_delay=50 and initial_workers=1, described, and asked
with curl. Then all other calls that are below, and last the load of the document, on each server: ab with 10,000 requests of 1,000 clients, of which Shoal
has to fail none. The archives are made by the real archivers.

Status, body and headers of each answer have to be the same, but for those of different.json, which has what is answered here in place of it, and why; those are
printed. `make measure WHAT=peers` brings what it needs first. The last line says how many are as they should be.

--record writes the answers of the real servers to recorded.json. recorded.py compares bin/shoal with them where the real servers are not installed.
"""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import load
import servers

DIFFERENT = pathlib.Path(__file__).resolve().parent / "different.json"
RECORDED = DIFFERENT.with_name("recorded.json")
MANIFEST = "MAR-INF/MANIFEST.json"  # of an archive

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
        if text == "memory":
            raise MemoryError("no")
        if text == "none":
            return None
        if text == "short":
            return []
        if text == "odd":
            return [object() for _ in data]
        if text == "dict":
            answers.append({"a": [1, 2]})
            continue
        if text == "fields":
            answers.append({key: str(value) for key, value in d.items()})
            continue
        if text == "where":
            answers.append({"path": context.get_request_header(i, "url_path"), "kind": context.get_request_header(i, "Content-Type")})
            continue
        if text == "header":
            context.set_response_header(i, "X-Own", "mine")
        if text == "bad":
            context.set_response_status(422, "Unprocessable", i)
        context.set_response_content_type(i, "text/special")
        answers.append(text + "/" + str(len(data)) + "/" + str(len(context.get_request_id(i))))
    return answers
"""
BROKEN = "import nothing_of_this_name\n\n\ndef handle(data, context):\n    return None\n"
ECHO = "def handle(data, context):\n    return data and [d['body'] for d in data]\n"

TEXT = "text/plain"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
WALK = "batch_size=8&max_batch_delay=50&initial_workers=1"

# What is asked: method, port, path, and body with its type. What is behind a # only tells calls apart.
BOTH = [
    ("GET", "infer", "/ping"),
    # The steps of the document.
    ("POST", "manage", f"/models?url=noop.mar&{WALK}"),
    ("GET", "manage", "/models/noop"),
    ("CURL", "infer", "/predictions/noop", b"a picture", "image/jpeg"),
    ("CURL -T", "infer", "/predictions/noop", b"a picture", None),
    ("DELETE", "manage", "/models/noop"),
    # Everything else.
    ("POST", "manage", "/models"),
    ("POST", "manage", "/models?url=absent.mar"),
    ("POST", "manage", "/models?url=../x"),
    ("POST", "manage", "/models?url=http://127.0.0.1:1/x.mar"),
    ("POST", "manage", "/models?url=http://127.0.0.1:2/x.mar"),
    ("POST", "manage", "/models?url=noop.mar"),
    ("POST", "manage", "/models?url=noop.mar#again"),
    ("GET", "manage", "/models"),
    ("GET", "manage", "/models?limit=1"),
    ("GET", "manage", "/models?limit=1000&next_page_token=1"),
    ("GET", "manage", "/models/noop#alone"),
    ("GET", "infer", "/ping#alone"),
    ("POST", "infer", "/predictions/noop", b"a", TEXT),
    ("PUT", "manage", "/models/noop?min_worker=1&synchronous=true"),
    ("PUT", "manage", "/models/noop?min_worker=2&max_worker=1"),
    ("PUT", "manage", "/models/absent?min_worker=1"),
    ("GET", "manage", "/models/noop#worker"),
    *[("POST", "infer", f"/predictions/noop#{body}", body.encode(), TEXT)
      for body in ("a", "bad", "header", "raise", "prediction", "memory", "none", "short", "odd", "dict", "where")],
    ("POST", "infer", "/predictions/noop", b'{"x": 1}', "application/json"),
    ("POST", "infer", "/predictions/noop", b"x", "application/octet-stream"),
    ("POST", "infer", "/predictions/noop", b"body=fields&y=1", FORM),
    ("POST", "infer", "/predictions/noop", b'--x\r\nContent-Disposition: form-data; name="body"\r\n\r\nfields\r\n--x\r\nContent-Disposition: form-data; name="y"; '
     b'filename="f"\r\nContent-Type: image/png\r\n\r\n\xff\r\n--x--\r\n', PARTS),
    ("PUT", "infer", "/predictions/noop", b"x", TEXT),
    ("GET", "infer", "/predictions/noop"),
    ("POST", "infer", "/predictions/noop/more", b"x", TEXT),
    ("POST", "infer", "/predictions/absent", b"x", TEXT),
    ("POST", "infer", "/predictions", b"x", TEXT),
    ("POST", "infer", "/nowhere", b"x", TEXT),
    ("POST", "infer", "/noop/predict", b"x", TEXT),
    ("POST", "infer", "/noop/predict?y=1", b"fields", TEXT),
    ("POST", "infer", "/invocations", b"x", TEXT),
    ("POST", "infer", "/invocations", b"body=x&model_name=noop", FORM),
    ("POST", "infer", "/invocations?model_name=noop", b"x", TEXT),
    ("POST", "infer", "/invocations?model_name=noop&y=1", b"fields", TEXT),
    ("POST", "infer", "/models/noop/invoke", b"x", TEXT),
    ("PATCH", "manage", "/models"),
    ("POST", "manage", "/models/noop"),
    ("GET", "manage", "/nowhere"),
    ("GET", "manage", "/models/absent"),
    ("DELETE", "manage", "/models/absent"),
    ("GET", "infer", "/models"),
    ("GET", "infer", "/ping#worker"),
    ("DELETE", "manage", "/models/noop#worker"),
    ("POST", "manage", "/models", b'{"url": "noop.mar", "initial_workers": 1, "batch_size": 2, "synchronous": true}', "application/json"),
    ("DELETE", "manage", "/models/noop#document"),
    ("POST", "manage", "/models?url=noop.mar&initial_workers=1&synchronous=true"),
    ("DELETE", "manage", "/models/noop#synchronous"),
    ("POST", "manage", "/models?url=noop.mar&initial_workers=1"),
    ("DELETE", "manage", "/models/noop#without"),
    ("POST", "manage", f"/models?url=noop.mar&{WALK}&synchronous=false"),
    ("PUT", "manage", "/models/noop?min_worker=1&synchronous=true#asynchronous"),  # waits for the worker, which is counted in the ids of later ones
    ("DELETE", "manage", "/models/noop#asynchronous"),
    ("POST", "manage", "/models?url=broken.mar&initial_workers=1&synchronous=true"),
    ("POST", "manage", "/models?url=noop.mar&model_name=x&runtime=cobol"),
    ("POST", "manage", "/models?url=noop.mar&model_name=x&batch_size=y"),
]
VERSIONS = [
    ("POST", "manage", "/models?url=noop.mar&initial_workers=1&model_name=v"),
    ("POST", "manage", "/models?url=noop.mar&model_name=v"),
    ("GET", "manage", "/models/v/1.0"),
    ("GET", "manage", "/models/v/all"),
    ("GET", "manage", "/models/v/2.0"),
    ("POST", "infer", "/predictions/v/1.0", b"x", TEXT),
    ("POST", "infer", "/predictions/v/1.0/more/of/it", b"where", TEXT),
    ("POST", "infer", "/predictions/v/2.0", b"x", TEXT),
    ("POST", "infer", "/v/1.0/predict", b"x", TEXT),
    ("PUT", "manage", "/models/v/1.0?min_worker=1&synchronous=true"),
    ("PUT", "manage", "/models/v?min_worker=1&synchronous=true&model_version=1.0"),
    ("PUT", "manage", "/models/v/2.0?min_worker=1"),
    ("PUT", "manage", "/models/v/1.0/set-default"),
    ("PUT", "manage", "/models/v/2.0/set-default"),
    ("DELETE", "manage", "/models/v/2.0"),
    ("DELETE", "manage", "/models/v/1.0"),
]
CALLS = {"mms": BOTH, "torchserve": BOTH + VERSIONS}

# Properties of all servers, and of Shoal alone.
ROOM = "job_queue_size=1000\n"
ALLOWED = "allowed_urls=http://127.0.0.1:1/.*\n"

# Headers that belong to the connection or the moment, and Retry-After, which Shoal adds.
NOT_COMPARED = {"connection", "content-length", "date", "retry-after"}


def handlers(kind):
    """The service.py of each archive that the calls name."""
    return {"noop": HANDLER % ("mms.service" if kind.name == "mms" else "ts.utils.util"), "broken": BROKEN}


def calls_of(kind):
    return {name_of(*call): call for call in CALLS[kind.name]}


def name_of(method, _, path, body=b"", kind=None):
    return " ".join(filter(None, [method, path, "" if "#" in path else repr(body)[2:-1], kind]))


def answer(server, method, port, path, body=None, kind=None):
    """What a server answers: status, text, and headers."""
    address, path = getattr(server, port), path.partition("#")[0]
    if method.startswith("CURL"):
        return curl(f"http://{address}{path}", method.endswith("-T"), body, kind)
    status, text, headers = server.ask(method, address, path, body, {"Content-Type": kind} if kind else None)
    return [status, plain(text), compared(headers.items())]


def curl(url, upload, body, kind):
    """The two calls of people who have a file."""
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        file.write(body)
        file.flush()
        how = ["-T", file.name] if upload else ["--data-binary", f"@{file.name}", "-H", f"Content-Type: {kind}"]
        done = subprocess.run(["curl", "-s", "-X", "POST", "-w", "%{stderr}[%{http_code}, %{header_json}]", *how, url], capture_output=True, timeout=60)
    status, headers = json.loads(done.stderr)
    return [status, plain(done.stdout), compared((name, ", ".join(values)) for name, values in headers.items())]


def compared(headers):
    """The headers that are compared, without the request's id, which is another each time."""
    found = {name.lower(): value for name, value in headers if name.lower() not in NOT_COMPARED}
    if "x-request-id" in found:
        found["x-request-id"] = ""
    return dict(sorted(found.items()))


def plain(body):
    """A body without what is another each time, and with the characters that Java's JSON writes as numbers."""
    text = body.decode("utf-8", "backslashreplace")
    for escaped, character in ("\\u0027", "'"), ("\\u003d", "="), ("\\u003c", "<"), ("\\u003e", ">"):
        text = text.replace(escaped, character)
    for changing, kept in (r'"startTime": "[^"]*"', '"startTime": ""'), (r'"(memoryUsage|pid)": \d+', r'"\1": 0'), (r'"id": "(\d+)-[0-9a-f]+"', r'"id": "\1-"'), (r"install it, \S*python3 ", "install it, python3 "):
        text = re.sub(changing, kept, text)
    return text


def compare(kind, here, expect):
    """Asks here everything, and prints where it differs from what expect returns for a call, by its name.

    Returns how many answers are the same, different for a known reason, and neither.
    """
    different = json.loads(DIFFERENT.read_text())[kind.name]
    calls = calls_of(kind)
    unknown = set(different) - set(calls)
    same = known = 0
    failed = len(unknown)
    for name in sorted(unknown):
        print(f"FAILED  {kind.name}: {DIFFERENT.name} has {name}, which no call asks")
    for name, call in calls.items():
        expected, found = expect(name), answer(here, *call)
        reason = different.get(name)
        if found == expected and reason is None:
            same += 1
        elif found != expected and reason and reason["here"] == found:
            known += 1
            print(f"{kind.name}: {name}: different, because {reason['why']}")
        else:
            failed += 1
            print(f"FAILED  {kind.name}: {name}\n  here   {json.dumps(found)}\n  there  {json.dumps(expected)}")
            if reason:
                print(f"  known  {json.dumps(reason['here'])}")
    return same, known, failed


def record(kind, store, answers):
    """Writes the answers of a kind to recorded.json, with the manifests of the archives, of which recorded.py makes them again."""
    manifests = {}
    for name in handlers(kind):
        with zipfile.ZipFile(store / f"{name}.mar") as archive:
            manifests[name] = json.loads(archive.read(MANIFEST))
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    kept[kind.name] = {"server": kind.title, "date": datetime.date.today().isoformat(), "manifests": manifests, "answers": answers}
    RECORDED.write_text("{\n" + ",\n".join(lines_of(name, kept[name]) for name in servers.KINDS if name in kept) + "\n}\n")


def lines_of(name, part):
    """A part of recorded.json, with a line for each answer."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(part[key])},\n" for key in ("server", "date", "manifests"))
    answers = ",\n".join(f"{json.dumps(call)}: {json.dumps(said)}" for call, said in part["answers"].items())
    return f'{json.dumps(name)}: {{\n{head}"answers": {{\n{answers}\n}}\n}}'


def crowd(kind, server):
    """The load of the document. Returns whether none failed, and all were answered with 200."""
    server.register(f"url=echo.mar&{WALK}")
    head = f"| {kind.name} | {server.title} |"
    try:
        said = load.run(server.infer, "/predictions/echo", b"x" * 1000, "image/jpeg", 1000, "-n", "10000")
    except servers.Wrong as wrong:
        print(f"{head} ab gave up: {str(wrong).splitlines()[-1]} |")
        return False
    print(f"{head} {said.complete:,} | {said.failed} | {said.others} | {said.rate:,.0f} | {said.p50:.0f} | {said.p99:.0f} |")
    return said.complete == 10000 and said.failed == 0 and said.others == 0


def beside(kind, folder, recording):
    """Starts both servers of a kind, asks them everything, and records the answers of the real one if told to."""
    for name in ("store", "here", "there", "archives"):
        (folder / name).mkdir()
    for name, text in {**handlers(kind), "echo": ECHO}.items():
        kind.archive(folder / "store", folder / "archives", name, {"service.py": text})
    answers, calls = {}, calls_of(kind)

    def expect(name):
        answers[name] = answer(there, *calls[name])
        return answers[name]

    with servers.Real(kind, folder / "there", folder / "store", ROOM) as there, servers.Shoal(kind, folder / "here", folder / "store", ROOM + ALLOWED) as here:
        same, known, failed = compare(kind, here, expect)
        if recording:
            record(kind, folder / "store", answers)
        print("\n| in the words of | server | answered | failed | other than 2xx | requests/s | p50, ms | p99, ms |\n|---|---|---|---|---|---|---|---|")
        crowd(kind, there)
        if not crowd(kind, here):
            print("FAILED  the load of the document is not answered as a whole")
            return same, known, failed + 1
        print()
        return same + 1, known, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="mms|torchserve", help="whose answers are looked at (both)")
    parser.add_argument("--record", action="store_true", help=f"write the answers of the real servers to {RECORDED.name}")
    arguments = parser.parse_args()
    kinds = [servers.KINDS[name] for name in arguments.kinds or servers.KINDS]
    servers.check(kinds)
    load.check()
    same = known = failed = 0
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="shoal-peers-") as folder:
            more = beside(kind, pathlib.Path(folder), arguments.record)
        same, known, failed = same + more[0], known + more[1], failed + more[2]
    print(f"{same} the same, {known} different for a known reason")
    print(f"{same + known} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except servers.Wrong as wrong:
        sys.exit(str(wrong))
