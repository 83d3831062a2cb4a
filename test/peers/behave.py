#!/usr/bin/env python3
"""Brings servers into five kinds of trouble, and says what they make of it.

    python3 test/peers/behave.py [--only WORD] [shoal] [mms] [torchserve]

- clients leave while they wait: are they run all the same?
- 600 come at once: are those told so for whom there is no place?
- one request of eight is bad, and the handler says so, or raises: do the others fail, too?
- the worker is killed: who fails, and is it told that there is none?
- the server is told to end: is anybody lost who is inside?

Each server runs one worker, with a handler that takes half a second for a batch of up to 8, and has a queue of 100. It prints a table. What is promised of Shoal is
held; the others are only told of. `make measure WHAT=behaviours` brings what it needs first.

Other servers can be asked, too: play takes anything that has what Registered has. What it runs is slow.py, whose log says what was run.
"""

import argparse
import asyncio
import collections
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

import servers
import measure  # where servers.py looks, too

SECONDS = 0.5  # that a batch takes
PATIENCE = 60  # seconds, after which a client gives up

HANDLER = """
import slow


def handle(data, context):
    if data is None:
        return None
    bodies = [d["body"] for d in data]
    answers = slow.run({log!r}, {seconds}, [b if isinstance(b, str) else b.decode() for b in bodies])
    for i, answer in enumerate(answers):
        if answer is None:
            context.set_response_status(422, "Unprocessable", i)
    return [answer or "this one is bad" for answer in answers]
"""


class Registered:
    """A server of servers.py with the handler. start returns when it answers; what is read of the others is all that is needed of any server."""

    path, ready = "/predictions/slow", "/ping"
    refusals = (503,)  # how it tells that there is no place

    def __init__(self, title, make, kind, more=""):
        self.title, self._make, self._kind, self._more = title, make, kind, more

    def start(self, folder):
        self.log = folder / "ran.jsonl"
        self.log.touch()
        for name in ("store", "server", "archives"):
            (folder / name).mkdir()
        files = {"service.py": HANDLER.format(log=str(self.log), seconds=SECONDS), "slow.py": (pathlib.Path(__file__).parent / "slow.py").read_text()}
        self._kind.archive(folder / "store", folder / "archives", "slow", files)
        self._server = self._make(self._kind, folder / "server", folder / "store", "job_queue_size=100\n")
        self._server.register(f"url=slow.mar&batch_size=8&max_batch_delay=20&initial_workers=1{self._more}")
        self.address, self.process = self._server.infer, self._server.process

    def request(self, text):
        """The headers and the body of a request whose handler is given the text."""
        return {"Content-Type": "text/plain"}, text.encode()

    def main(self):
        return self._server.main()

    def stop(self):
        self._server.stop()


SERVERS = {
    "shoal": Registered("Shoal", servers.Shoal, servers.KINDS["mms"], "&retry_apart=true"),
    **{name: Registered(kind.title, servers.Real, kind) for name, kind in servers.KINDS.items()},
}


class Answer:
    def __init__(self, status, began):
        self.status = status  # a word if there is none
        self.began, self.ended = began, time.monotonic()


async def ask(server, text, method="POST", path=None, patience=PATIENCE):
    """One request on a connection of its own. A client whose patience ends leaves."""
    began = time.monotonic()
    headers, body = server.request(text) if method == "POST" else ({}, b"")
    lines = [f"{method} {path or server.path} HTTP/1.1", f"Host: {server.address}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer = None
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(*server.address.split(":"))
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
            return Answer(await status(reader), began)
    except TimeoutError:
        return Answer("left", began)
    except (OSError, EOFError):
        return Answer("cut off", began)
    finally:
        if writer is not None:
            writer.close()


async def status(reader):
    """That of an answer, when all of it is there. Not every server closes the connection then."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if length := re.search(r"\r\ncontent-length: *(\d+)", head):
        await reader.readexactly(int(length[1]))
    elif "\r\ntransfer-encoding: chunked" in head:
        await reader.readuntil(b"0\r\n\r\n")
    return int(head.split()[1])


def batches(server):
    """What was run so far."""
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def ran(server):
    return [text for batch in batches(server) for text in batch["texts"]]


async def until(what, true, patience=30):
    deadline = time.monotonic() + patience
    while not true():
        if time.monotonic() > deadline:
            raise servers.Wrong(f"found nothing after {patience} s, expected {what}")
        await asyncio.sleep(0.01)


async def busy(server):
    """Has the server run a batch of one, and returns its client when it runs."""
    before = len(batches(server))
    client = asyncio.create_task(ask(server, "first"))
    await until("a batch", lambda: len(batches(server)) > before)
    return client


async def still(server):
    """Waits until nothing has been run for a while."""
    last, since = -1, 0
    while last != len(batches(server)) or time.monotonic() < since + 3 * SECONDS:
        if last != len(batches(server)):
            last, since = len(batches(server)), time.monotonic()
        await asyncio.sleep(0.05)


def counted(answers):
    """How often there was which status."""
    counts = collections.Counter(str(a.status) for a in answers)
    return ", ".join(f"{n} × {status}" for status, n in sorted(counts.items()))


class Finding:
    """What came of one kind of trouble: whether it is as it should be, and a few words on it."""

    def __init__(self, good, words):
        self.good, self.words = good, words


async def clients_leave(server):
    first = await busy(server)
    left = [asyncio.create_task(ask(server, f"left {i}", patience=0.6 * SECONDS)) for i in range(24)]
    await asyncio.gather(*left)  # while the first batch still runs
    stayed = await asyncio.gather(*[ask(server, f"stays {i}") for i in range(4)], first)
    await still(server)
    n = sum(text.startswith("left") for text in ran(server))
    return Finding(n == 0 and all(a.status == 200 for a in stayed), f"{n} of 24 run all the same")


async def too_many_come(server):
    answers = await asyncio.gather(*[ask(server, f"one {i}", patience=30) for i in range(600)])
    served = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status in server.refusals]
    words = counted(answers)
    if refused:
        words += f"; told after {max(a.ended - a.began for a in refused):.1f} s at most"
    await still(server)
    # Of what was asked: a server may also run what it makes up, to measure it.
    in_vain = sum(text.startswith("one ") for text in ran(server)) - len(served)
    if in_vain:
        words += f"; {in_vain} run for nobody"
    # 8 run and 100 wait; how many of them come before the first have left is a matter of speed.
    good = len(served) + len(refused) == 600 and 100 <= len(served) <= 200 and in_vain == 0
    return Finding(good, words)


async def one_is(server, what):
    first = await busy(server)
    answers = await asyncio.gather(*[ask(server, what if i == 3 else f"good {i}") for i in range(8)], first)
    one, others = answers.pop(3), answers
    fine = sum(a.status == 200 for a in others[:7])
    return Finding(one.status != 200 and fine == 7, f"{one.status}, and {fine} of the 7 others are answered")


async def one_is_bad(server):
    return await one_is(server, "bad")


async def one_raises(server):
    return await one_is(server, "raise")


async def worker_is_killed(server):
    answers, told, ends = [], [], time.monotonic() + 6

    async def client(number):
        while time.monotonic() < ends:
            answers.append(await ask(server, f"of {number}"))
            if answers[-1].status != 200:
                await asyncio.sleep(0.02)

    async def watch():
        while time.monotonic() < ends:
            told.append(await ask(server, "", "GET", server.ready, patience=1))
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(client(i)) for i in range(8)] + [asyncio.create_task(watch())]
    await until("full batches", lambda: len(batches(server)) > 2)
    before = len(batches(server))
    await until("another", lambda: len(batches(server)) > before)  # of which all is still to be run
    worker = batches(server)[-1]["pid"]
    killed = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    await asyncio.gather(*tasks)
    failed = [a for a in answers if a.status != 200]
    others = [a for a in failed if a.began > killed]
    back = min((a.ended for a in answers if a.status == 200 and a.began > killed), default=None)
    words = f"{counted(failed) or 'none'} of its batch"
    if others:
        words = f"{counted(failed)}, of which {len(others)} came later"
    if back is None:
        return Finding(False, words + "; never back")
    away = [a for a in told if a.began > killed and a.ended < back - SECONDS]
    truly = any(a.status != 200 for a in away) and told[-1].status == 200
    words += f"; back after {back - killed - SECONDS:.1f} s, and meanwhile ready says {counted(away) or 'nothing'}"
    return Finding(truly and len(failed) <= 8 and not others, words)


async def told_to_end(server):
    clients = [asyncio.create_task(ask(server, f"of {i}")) for i in range(24)]
    await until("a batch", lambda: batches(server))
    await asyncio.sleep(0.4 * SECONDS)  # until all are there
    began = time.monotonic()
    os.kill(server.main(), signal.SIGTERM)
    answers = await asyncio.gather(*clients)
    while server.process.poll() is None and time.monotonic() < began + 30:
        await asyncio.sleep(0.05)
    lost = sum(a.status != 200 for a in answers)
    words = f"{lost} of 24 are lost"
    if server.process.poll() is None:
        words += "; does not end"
    return Finding(lost == 0 and server.process.poll() == 0, words)


BEHAVIOURS = {
    "24 clients leave the queue": clients_leave,
    "600 come at once": too_many_come,
    "one of eight is bad, and the handler says so": one_is_bad,
    "one of eight is bad, and the handler raises": one_raises,
    "the worker is killed": worker_is_killed,
    "SIGTERM with 24 inside": told_to_end,
}


def play(server, name):
    """Starts the server for one of BEHAVIOURS, and returns the finding."""
    with tempfile.TemporaryDirectory(prefix="shoal-behave-") as folder:
        server.start(pathlib.Path(folder))
        try:
            return asyncio.run(BEHAVIOURS[name](server))
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD", help="kinds of trouble that have this in their names, such as 'SIGTERM'")
    parser.add_argument("servers", nargs="*", metavar="shoal|mms|torchserve", help="(all)")
    arguments = parser.parse_args()
    chosen = arguments.servers or list(SERVERS)
    servers.check([servers.KINDS["mms" if name == "shoal" else name] for name in chosen])
    verdicts = []
    print("| | " + " | ".join(SERVERS[name].title for name in chosen) + " |\n" + "|---" * (len(chosen) + 1) + "|")
    for trouble in [name for name in BEHAVIOURS if arguments.only in name]:
        findings = {name: play(SERVERS[name], trouble) for name in chosen}
        print(f"| {trouble} | " + " | ".join(finding.words for finding in findings.values()) + " |", flush=True)
        if "shoal" in findings:
            verdicts.append((findings["shoal"].good, f"{trouble}: {findings['shoal'].words}"))
    print()
    return measure.conclude(verdicts)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except servers.Wrong as wrong:
        sys.exit(str(wrong))
