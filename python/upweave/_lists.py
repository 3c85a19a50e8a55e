"""What the library knows: its operations, and the pipelines that come with it."""

from typing import NamedTuple

from . import _core


class Operation(NamedTuple):
    """One word of the pipelines' language."""

    name: str
    summary: str
    example: str


class Entry(NamedTuple):
    """A pipeline that comes with the library; `compile` takes its slug in place of a text."""

    slug: str
    title: str
    text: str
    settings: dict[str, str]  # defaults of the text's $names


def vocabulary() -> list[Operation]:
    """Every operation that a pipeline's text may use."""
    return [Operation(*row) for row in _core.vocabulary()]


def catalog() -> list[Entry]:
    """Every pipeline that comes with the library."""
    return [Entry(*row) for row in _core.catalog()]
