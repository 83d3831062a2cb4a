"""Hooks of MkDocs: links that leave docs/ become links to the repository."""

import os
import re

from mkdocs.exceptions import PluginError

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_page_markdown(markdown, page, config, files):
    root = os.path.dirname(config.config_file_path)
    here = os.path.dirname(os.path.join(config.docs_dir, page.file.src_path))

    def link(match):
        target = os.path.normpath(os.path.join(here, match[1]))
        if target.startswith(config.docs_dir + os.sep):
            return match[0]  # MkDocs checks those
        if not os.path.exists(target):
            raise PluginError(f"{page.file.src_path}: the link to {match[1]} leads nowhere")
        kind = "tree" if os.path.isdir(target) else "blob"
        return f"{config.extra['repository']}/{kind}/main/{os.path.relpath(target, root)}"

    text = fenced_apart(markdown)
    return "".join(part if code else LINK.sub(link, part) for code, part in text)


def fenced_apart(markdown):
    """Yields (is code, text) for each stretch of the page."""
    for i, part in enumerate(re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)):
        yield i % 2 == 1, part
