"""What all servers run in behave.py. A copy of it is in their archives, so that it needs nothing else."""

import json
import os
import time


def run(log, seconds, texts):
    """One batch: it takes its time, and the log gets who was in it, and which process ran it. What is bad has None for an answer, and what raises raises."""
    with open(log, "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "texts": texts}) + "\n")
    time.sleep(seconds)
    if any("raise" in text for text in texts):
        raise ValueError("one of them is wrong")
    return [None if "bad" in text else "answer to " + text for text in texts]
