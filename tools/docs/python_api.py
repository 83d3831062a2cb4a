#!/usr/bin/env python3
"""Writes the generated part of docs/reference/python-client.md: python3 tools/docs/python_api.py

It reads the docstrings of python/src/shoal without importing it, so that it needs no numpy. With
--check it fails instead if the page is stale.
"""

import ast
import inspect
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "python-client.md"
BEGIN, END = "<!-- generated: api -->\n", "<!-- end of api -->\n"
WIDTH = 96


def declared():
    """Yields the public names of the package, and their definitions."""
    source = ROOT / "python" / "src" / "shoal"
    tree = ast.parse((source / "__init__.py").read_text())
    names = next(ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__")
    found = {}
    for file in sorted(source.glob("_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.setdefault(node.name, node)
    for name in names:
        if name in found:
            yield name, found[name]


def signature(name, node):
    """The declaration as one would type it, without self."""
    asynchronous = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{asynchronous}{name}({arguments}){returns}"
    return line if len(line) <= WIDTH else "\n    ".join(textwrap.wrap(line, WIDTH - 4, break_long_words=False))


def prose(node):
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    text = re.sub(r":(?:func|attr|meth|class):`([^`]+)`", r"`\1`", text)
    blocks = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            blocks.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        else:
            blocks.append("\n".join(textwrap.wrap(" ".join(paragraph.split()), WIDTH, break_long_words=False, break_on_hyphens=False)))
    return "\n\n".join(blocks)


def render():
    out = []
    for name, node in declared():
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(b) for b in node.bases)
            out.append(f"### shoal.{name}\n\n```python\nclass {name}{f'({bases})' if bases else ''}\n```\n\n{prose(node)}")
            for method in node.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and not method.name.startswith("_"):
                    out.append(f"#### {name}.{method.name}\n\n```python\n{signature(method.name, method)}\n```\n\n{prose(method)}")
        else:
            out.append(f"### shoal.{name}\n\n```python\n{signature(name, node)}\n```\n\n{prose(node)}")
    return "\n\n".join(part.rstrip() for part in out)


def page():
    """The page as it should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + "\n" + render() + "\n\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/reference/python-client.md is stale: run make reference")
    PAGE.write_text(page())
