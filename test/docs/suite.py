#!/usr/bin/env python3
"""Tests of the documentation that need no server: python3 test/docs/suite.py [-k PATTERN]"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "test" / "docs"), str(ROOT / "tools" / "docs")]

import charts  # noqa: E402
import counted  # noqa: E402
import pages  # noqa: E402
import python_api  # noqa: E402

COLUMNS = 100


def sources():
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "examples").rglob("*.md"))


class Sources(unittest.TestCase):
    def test_lines_have_at_most_100_columns(self):
        wide = {str(page.relative_to(ROOT)): number for page in sources() if (number := first_wide(page.read_text()))}
        self.assertEqual(wide, {})

    def test_a_wide_line_is_found(self):
        self.assertEqual(first_wide("short\n" + "x" * 101), 2)
        self.assertIsNone(first_wide("| [a](b.md) | " + "x" * 86))

    def test_the_readme_has_at_most_120_lines(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), 120)

    def test_links_of_readmes_lead_somewhere(self):
        for page in [ROOT / "README.md", *(ROOT / "examples").rglob("*.md")]:
            for target in re.findall(r"\]\((?![a-z]+:|#)([^)#]+)", page.read_text()):
                with self.subTest(page=page.relative_to(ROOT), target=target):
                    self.assertTrue((page.parent / target).exists())

    def test_the_charts_are_those_of_the_figures(self):
        for name, draw in charts.CHARTS.items():
            with self.subTest(name):
                self.assertEqual((ROOT / "docs" / "pictures" / name).read_text(), draw(), "run tools/docs/charts.py")

    def test_the_reference_has_every_name_of_the_python_package(self):
        self.assertEqual(python_api.PAGE.read_text(), python_api.page(), "run make reference")


def first_wide(text):
    """The number of the first line that is too wide. The targets of links do not count."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(re.sub(r"\]\([^)]*\)", "]", line)) > COLUMNS:
            return number
    return None


class Pages(unittest.TestCase):
    def test_blocks_are_commands_files_and_outputs(self):
        text = '```sh\nls\n```\n\n```python title="a.py"\nx = 1\n```\n\n<!-- loose -->\n```text\n1\n```\n'
        command, file, output = pages.read(text)
        self.assertEqual((command.language, command.text), ("sh", "ls\n"))
        self.assertEqual((file.file, file.text), ("a.py", "x = 1\n"))
        self.assertTrue(output.loose)

    def test_a_block_in_a_list_loses_its_indent(self):
        self.assertEqual(pages.read("1. do\n\n   ```sh\n   ls\n   ```\n")[0].text, "ls\n")

    def test_a_block_that_is_not_run_needs_a_reason(self):
        self.assertEqual(pages.read("<!-- not run: a GPU -->\n```sh\nls\n```\n")[0].skipped, "a GPU")
        with self.assertRaises(pages.Wrong):
            pages.read("<!-- not run -->\n```sh\nls\n```\n")

    def test_a_comment_belongs_to_the_next_block_only(self):
        blocks = pages.read("<!-- not run: a GPU -->\n```sh\nls\n```\n```sh\npwd\n```\n")
        self.assertEqual([b.skipped for b in blocks], ["a GPU", None])

    def test_an_output_may_be_shown_soon(self):
        now, soon = pages.read("```text\na\n```\n<!-- soon -->\n```text\nb\n```\n")
        self.assertEqual((now.soon, soon.soon), (False, True))

    def test_a_block_that_does_not_end_is_an_error(self):
        with self.assertRaises(pages.Wrong):
            pages.read("```sh\nls\n")

    def test_a_language_without_a_rule_is_an_error(self):
        with self.assertRaises(pages.Wrong):
            pages.read("```\nls\n```\n")

    def test_output_matches_exactly_unless_it_is_loose(self):
        self.assertIsNone(pages.matches("y = [6]\n", "y  = [6]\nmore\n", loose=False))
        self.assertIsNotNone(pages.matches("y = [6]\n", "y = [7]\n", loose=False))
        self.assertIsNone(pages.matches("in 1.2 ms\n", "in 840 µs\n", loose=True))
        self.assertIsNotNone(pages.matches("in 1.2 ms\n", "after 840 µs\n", loose=True))

    def test_an_ellipsis_stands_for_any_text(self):
        self.assertIsNone(pages.matches("a … z\n…\nend\n", "a b c z\nmore\nend\n", loose=False))
        self.assertIsNotNone(pages.matches("a … z\n", "a b c\n", loose=False))

    def test_lines_must_come_in_their_order(self):
        self.assertIsNotNone(pages.matches("a\nb\n", "b\na\n", loose=False))

    def test_colours_do_not_count(self):
        self.assertIsNone(pages.matches("ok\n", "\x1b[32mok\x1b[0m\r\n", loose=False))


if __name__ == "__main__":
    sys.exit(counted.report(counted.run(unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"]))))
