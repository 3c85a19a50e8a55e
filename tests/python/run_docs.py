"""run_docs FILE...: runs every ```python block of a page, in order and in one namespace, as a reader would."""

import pathlib
import re
import sys


def blocks(page):
    text = pathlib.Path(page).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[:match.start()].count("\n") + 2, match[1]


def run(page):
    """The number of blocks that ran."""
    names, count = {"__name__": "__main__"}, 0
    for line, block in blocks(page):
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), names)
        count += 1
    return count


if __name__ == "__main__":
    for page in sys.argv[1:]:
        if run(page) == 0:
            sys.exit(f"{page} has no Python to run")
