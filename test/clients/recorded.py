"""What the replays of Triton's recorded answers share: cases, their servers, and the comparison.

A case is a line of a file cases.json: its name, what it is about, its models, what is loaded, and the
steps of its clients. A replay says how a step is made, and what of the answers is compared. Of the
cases that are known to differ, different.json beside it has how they do: they may not differ in
another way.
"""

import argparse
import json

import shoal


def write_models(case, code, record, repository):
    """Writes the repository of a case. Models in Python have the code that code returns for their names, and append
    what they run to record."""
    for name, (config, versions, in_python) in case["models"].items():
        for version in versions:
            directory = repository / name / str(version)
            directory.mkdir(parents=True)
            if in_python:
                (directory / "model.py").write_text(code(name))
        (repository / name / "config.pbtxt").write_text(config.replace("@RECORD@", str(record)))


def start(case, repository):
    """Starts bin/shoal as Triton was started. It raises shoal.Ended if bin/shoal refuses that."""
    loads = [flag for model in case["load"] for flag in ("--load-model", model)]
    return shoal.Server(
        repository, "--model-control-mode", "explicit", "--triton-status", "--batching", "triton", "--exit-on-error=false", "--strict-readiness=false", *loads, *case.get("flags", []),
        python=shoal.PYTHON,
    )


def plain(answers):
    """Answers without what no client relies on: all lines of an error but the first, and spaces at its end."""
    return [[name, {**answer, "error": answer["error"].split("\n")[0].strip()} if "error" in answer else answer] for name, answer in answers]


def compare(expected, found, where=""):
    """Yields the answers that differ. where begins the lines."""
    for (name, triton), (_, here) in zip(plain(expected), plain(found)):
        if triton != here:
            yield f"{where}{name}: Triton {json.dumps(triton)}\n      here {json.dumps(here)}"
    if len(found) != len(expected):
        yield f"{where}{len(expected)} answers of Triton, {len(found)} here"


def main(file, known, differences, attempts=1):
    """Replays the cases of a file, and returns whether one failed.

    known has the reason for each case that differs. differences yields how a case does; a case that
    is about times, and differs otherwise than it should, has several attempts on a busy machine.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD", help="cases that have this in their names")
    parser.add_argument("--record", action="store_true", help="keep how the known cases differ, instead of comparing")
    arguments = parser.parse_args()
    different = file.with_name("different.json")
    kept = json.loads(different.read_text())
    same = differ = failed = 0
    for case in map(json.loads, file.read_text().splitlines()):
        name = case["name"]
        if arguments.only not in name or arguments.record and name not in known:
            continue
        expected = kept.get(name, []) if name in known else []
        for _ in range(1 if arguments.record else attempts):
            found = list(differences(case))
            if found == expected:
                break
        if name in known and found and (arguments.record or found == expected):
            kept[name] = found
            differ += 1
            print(f"differs  {name}: {known[name]}", flush=True)
        elif not found and name not in known:
            same += 1
        else:
            failed += 1
            print(f"FAILED   {name}: {case['about']}" + "".join(f"\n    {line}" for line in found or ["the same as in Triton now: take it out of DIFFERENT"]), flush=True)
            if found and expected:
                print("    It is known to differ in this way:" + "".join(f"\n    {line}" for line in expected), flush=True)
    if arguments.record:
        different.write_text(json.dumps({name: kept[name] for name in known if name in kept}, indent=1) + "\n")
    print(f"{same} the same, {differ} different for a known reason")
    print(f"{same + differ} passed, {failed} failed, 0 skipped")
    return failed > 0 or same + differ == 0
