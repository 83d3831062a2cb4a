"""Reads the blocks of a page that a reader would follow.

A page is a sequence of fenced blocks. The word after the fence says what a reader does with one:

    sh                  types it into a terminal
    python, json, …     title="FILE": saves it as FILE
    python              without a title: runs it with python3
    text                sees it as the output of the block before

A comment on the line before a block changes that:

    <!-- not run: WHY -->   the block needs something that a test does not have
    <!-- loose -->          numbers in the shown output may differ
    <!-- soon -->           the output is shown soon: the command is repeated until then

An ellipsis in shown output stands for any text, and one alone on a line for any lines.
"""

import dataclasses
import re

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<word>not run|loose|soon)(?::\s*(?P<reason>.+?))?\s*-->\s*$")
TITLE = re.compile(r'title="([^"]+)"')
NUMBER = re.compile(r"[-+]?\d[\d,.]*(?:e[-+]?\d+)?(?:\s?(?:ns|µs|ms|s|%|MiB|KiB|MB|KB)\b)?")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

SAVED = {"python", "json", "yaml", "toml", "ini", "go", "js", "pbtxt", "text", "nginx", "dockerfile"}


class Wrong(Exception):
    """A page that cannot be followed, or shows what is not so."""


@dataclasses.dataclass
class Block:
    line: int  # of the opening fence
    language: str
    text: str
    file: str | None = None  # where a reader saves it
    skipped: str | None = None  # why it is not run
    loose: bool = False
    soon: bool = False


def read(markdown):
    """Returns the blocks of a page that a reader acts on, and the outputs that it shows."""
    blocks, lines, comment = [], markdown.splitlines(), None
    at = 0
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if not opening:
            comment = COMMENT.match(lines[at]) or (comment if not lines[at].strip() else None)
            at += 1
            continue
        words = opening["info"].split(None, 1)
        start, indent = at, len(opening["indent"])
        at += 1
        body = []
        while at < len(lines) and lines[at].strip() != "```":
            body.append(lines[at][indent:])
            at += 1
        if at == len(lines):
            raise Wrong(f"line {start + 1}: the block does not end")
        at += 1
        block = Block(start + 1, words[0] if words else "", "\n".join(body) + "\n")
        if title := TITLE.search(opening["info"]):
            block.file = title[1]
        if comment and comment["word"] == "not run":
            if not comment["reason"]:
                raise Wrong(f"line {start + 1}: a block that is not run needs a reason")
            block.skipped = comment["reason"]
        block.loose = bool(comment and comment["word"] == "loose")
        block.soon = bool(comment and comment["word"] == "soon")
        comment = None
        if block.language not in {"sh", "text"} | SAVED:
            raise Wrong(f"line {start + 1}: no rule for a block of {block.language or 'no language'}")
        blocks.append(block)
    return blocks


def matches(shown, real, loose):
    """Says which shown line the real output does not have, or returns None."""
    patterns = [pattern(line, loose) for line in shown.splitlines() if line.strip()]
    lines = [plain(line, loose) for line in ESCAPE.sub("", real).splitlines()]
    at = 0
    for want in patterns:
        if want is None:
            continue  # any lines
        while at < len(lines) and not want.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            return want.pattern
        at += 1
    return None


def plain(line, loose):
    line = " ".join(line.split())
    return NUMBER.sub("#", line) if loose else line


def pattern(line, loose):
    if line.strip() in ("…", "..."):
        return None
    parts = [re.escape(plain(part, loose)) for part in line.split("…")]
    return re.compile(r"\s*.*?\s*".join(parts))
