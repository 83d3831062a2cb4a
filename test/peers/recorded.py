#!/usr/bin/env python3
"""Compares bin/shoal with recorded answers of the real multi-model-server and TorchServe.

    python3 test/peers/recorded.py [mms] [torchserve]

The calls are those of same.py, and `same.py --record` wrote recorded.json. The archives are zipped here, with the manifests that the real archivers wrote, and
the handlers run in bin/worker, so this needs neither Java nor the real servers. The last line counts the answers, as .ci/run expects.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import zipfile

import same
import servers
import shoal


def make_archives(kind, store, manifests):
    for name, text in same.handlers(kind).items():
        with zipfile.ZipFile(store / f"{name}.mar", "w") as archive:
            archive.writestr(same.MANIFEST, json.dumps(manifests[name]))
            archive.writestr("service.py", text)


def replay(kind, folder, recorded):
    """Asks Shoal everything, and compares with the record. Returns what same.compare does."""
    for name in ("store", "here"):
        (folder / name).mkdir()
    make_archives(kind, folder / "store", recorded["manifests"])
    answers = recorded["answers"]
    changed = set(answers) ^ set(same.calls_of(kind))
    if changed:
        raise servers.Wrong(f"{same.RECORDED.name} does not have the calls of same.py: run same.py --record {kind.name}. Changed: {', '.join(sorted(changed))}")
    with servers.Shoal(kind, folder / "here", folder / "store", same.ROOM + same.ALLOWED, python=shoal.PYTHON) as here:
        return same.compare(kind, here, answers.get)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="mms|torchserve", help="whose answers are compared (both)")
    kinds = [servers.KINDS[name] for name in parser.parse_args().kinds or servers.KINDS]
    servers.check_shoal()
    if not shoal.PYTHON.exists():
        raise servers.Wrong(f"found no {shoal.PYTHON}: run make numpy")
    record = json.loads(same.RECORDED.read_text())
    passed = known = failed = 0
    for kind in kinds:
        recorded = record[kind.name]
        print(f"== {recorded['server']}, recorded {recorded['date']}")
        with tempfile.TemporaryDirectory(prefix="shoal-peers-") as folder:
            more = replay(kind, pathlib.Path(folder), recorded)
        passed, known, failed = passed + more[0], known + more[1], failed + more[2]
    print(f"{passed} the same, {known} different for a known reason")
    print(f"{passed + known} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except servers.Wrong as wrong:
        sys.exit(str(wrong))
