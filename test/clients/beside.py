#!/usr/bin/env python3
"""Asks bin/shoal and a real tritonserver the same of the same model.py files, and compares the answers.

    python3 test/clients/beside.py [--only WORD] [--record]

The models are in modelpy/, and the questions in modelpy.py. Each answer has to be the
same to the bit, but for those of modelpy-different.json, which has what is answered
here in place of it, and why; those are printed. --record keeps Triton's answers in modelpy.json, against
which test_modelpy.py holds bin/shoal where there is no Triton.

`make measure WHAT=python-beside-triton` brings what it needs first. The last line says how many
answers are the same or different for a known reason, and how many are not.
"""

import argparse
import json
import sys

import run

if __name__ == "__main__":
    run.restart_with_clients()

import modelpy
import shoal
import test_modelpy
import triton


def ask(name, side):
    return json.loads(json.dumps(modelpy.cases[name](side)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD", help="cases that have this in their names")
    parser.add_argument("--record", action="store_true", help="keep Triton's answers")
    arguments = parser.parse_args()
    for needed in (shoal.BINARY, triton.BINARY, shoal.PYTHON):
        if not needed.exists():
            sys.exit(f"found no {needed}: run make measure WHAT=python-beside-triton, which brings it")
    names = [name for name in modelpy.cases if arguments.only in name or name.startswith("load")]
    different = json.loads(modelpy.DIFFERENT.read_text())
    recorded = {}
    same = known = failed = 0
    with test_modelpy.serving() as here, there() as side:
        for name in names:
            found, expected = ask(name, here), ask(name, side)
            recorded[name] = expected
            if found == expected:
                same += 1
            elif name in different and different[name]["here"] == found:
                known += 1
                print(f"{name}: different, because {different[name]['why']}")
                continue
            if found != expected or name in different:
                failed += 1
                print(f"FAILED  {name}\n  here    {json.dumps(found, ensure_ascii=False)}\n  Triton  {json.dumps(expected, ensure_ascii=False)}")
                if name in different:
                    print(f"  known   {json.dumps(different[name]['here'], ensure_ascii=False)}")
    if arguments.record:
        record(recorded)
    print(f"{same} the same, {known} different for a known reason")
    print(f"{same + known} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def record(answers):
    kept = json.loads(modelpy.ANSWERS.read_text()) if modelpy.ANSWERS.exists() else {}
    kept.update(answers)
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in modelpy.cases if name in kept]
    modelpy.ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def there():
    return test_modelpy.side_of(triton.Server(modelpy.MODELS, "--model-control-mode=explicit"))


if __name__ == "__main__":
    sys.exit(main())
