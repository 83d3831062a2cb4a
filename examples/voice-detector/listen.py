"""Prints when there are voices in a file of sound: python3 listen.py FILE.wav [URL]

The file has 16-bit samples of one channel at 16 kHz. Each frame of 32 ms is a request. All requests
of a file are one sequence: the server keeps what the detector remembers of the frames before.
"""

import array
import http.client
import json
import os
import sys
import urllib.parse
import wave

RATE, FRAME = 16000, 512
VOICE = 0.5  # probability from which a frame counts as one with a voice


def frames(path):
    """Yields frames of samples between -1 and 1. The last one is filled up with zeros."""
    with wave.open(path) as sound:
        if (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) != (RATE, 2, 1):
            sys.exit(f"{path}: expected 16-bit samples of one channel at 16 kHz")
        while block := sound.readframes(FRAME):
            samples = array.array("h", block)
            if sys.byteorder == "big":
                samples.byteswap()
            yield [s / 32768 for s in samples] + [0.0] * (FRAME - len(samples))


def probabilities(path, url):
    """Yields the probability of a voice in each frame."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc)
    sequence = f"{os.getpid()} {path}"[:128]
    following = frames(path)
    frame, first = next(following, None), True
    while frame is not None:
        after = next(following, None)
        connection.request("POST", "/v2/models/silero_vad/infer", json.dumps({
            "parameters": {"sequence_id": sequence, "sequence_start": first, "sequence_end": after is None},
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, FRAME], "data": frame}],
        }))
        answer = json.load(connection.getresponse())
        if "error" in answer:
            sys.exit(answer["error"])
        yield answer["outputs"][0]["data"][0]
        frame, first = after, False


def main(path, url="http://localhost:8000"):
    since, at = None, 0.0
    for probability in probabilities(path, url):
        voice = probability >= VOICE
        if voice and since is None:
            since = at
        if not voice and since is not None:
            print(f"{since:8.2f} s to {at:8.2f} s")
            since = None
        at += FRAME / RATE
    if since is not None:
        print(f"{since:8.2f} s to {at:8.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
