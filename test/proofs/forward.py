"""Python processes that ask one model of a server, each with one item, again and again.

    python3 forward.py SOCKET MODEL PROCESSES

Each line of its input, "WARM SECONDS", has all of them ask for so long, and is answered with a line of JSON: what came of those answers that
arrived after the first WARM seconds.
"""

import json
import mmap
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/src"))
import numpy  # noqa: E402

import shoal  # noqa: E402

MOST = 50_000  # answers of a process in one round
TAIL = 0.2  # seconds for which all go on asking, so that nobody is measured who has the server for himself


def child(path, name, number, times, counts, latencies, go, done):
    model = shoal.load(name, url="unix:" + path)
    shape = [1 if d < 0 else d for d in model.inputs[0].shape]
    array = numpy.random.default_rng(number).random(shape, dtype=numpy.float32)
    model.forward(array)
    os.write(done, b".")
    while os.read(go, 1):
        begin, end = times
        n, now = 0, time.perf_counter()
        while now < end + TAIL:
            model.forward(array)
            then = time.perf_counter()
            if begin <= then < end and n < MOST:
                latencies[number, n] = then - now
                n += 1
            now = then
        counts[number] = n
        os.write(done, b".")


def wait(done, processes):
    for _ in range(processes):
        if not os.read(done, 1):
            sys.exit("forward.py: a process has ended")


def main():
    path, name, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    times = numpy.frombuffer(mmap.mmap(-1, 4096), count=2)
    counts = numpy.frombuffer(mmap.mmap(-1, 8 * processes), dtype=numpy.int64)
    latencies = numpy.frombuffer(mmap.mmap(-1, 8 * processes * MOST)).reshape(processes, MOST)
    go, start = os.pipe()
    ended, done = os.pipe()
    for number in range(processes):
        if os.fork() == 0:
            os.close(start)
            os.close(ended)
            try:
                child(path, name, number, times, counts, latencies, go, done)
            finally:
                os._exit(0)
    os.close(done)
    os.close(go)
    wait(ended, processes)
    print("ready", flush=True)
    for line in sys.stdin:
        warm, seconds = map(float, line.split())
        times[0] = time.perf_counter() + warm
        times[1] = times[0] + seconds
        os.write(start, b"." * processes)
        wait(ended, processes)
        all_of_them = numpy.concatenate([latencies[n, : counts[n]] for n in range(processes)])
        p50, p99 = numpy.quantile(all_of_them, [0.5, 0.99]) if len(all_of_them) else (0, 0)
        print(json.dumps({"per_second": len(all_of_them) / seconds, "p50": p50, "p99": p99, "fewest": int(counts.min())}), flush=True)


if __name__ == "__main__":
    main()
