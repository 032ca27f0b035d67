"""What an examination says: items in sections, and the state of every command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["ok", "missing", "wrong", "note"]
"""`missing` is not there, `wrong` is there and cannot be used, `note` is neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at.

    Attributes:
        name: what it is.
        state: how it is.
        text: what was found, in one line.
        mend: the one line that mends it, where something does.
        is_basic: whether no command works without it.
        details: the same in numbers and names, for programs.
    """

    name: str
    state: State
    text: str
    mend: str | None = None
    is_basic: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """Items under a title."""

    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was looked at.

    Attributes:
        program: whose examination it is, with its version.
        sections: of what was found.
        commands: an item for each command; `ok` is one that can run.
    """

    program: str
    sections: tuple[Section, ...]
    commands: tuple[Item, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether everything that all commands need is in order."""
        return all(item.state == "ok" for section in self.sections for item in section.items if item.is_basic)

    def to_json(self) -> dict[str, Any]:
        """One object: `sound`, the items of each section by its title, and the commands."""
        return {
            "program": self.program,
            "sound": self.is_sound,
            "sections": {one.title: [asdict(item) for item in one.items] for one in self.sections},
            "commands": [asdict(item) for item in self.commands],
        }

    def lines(self) -> Iterator[tuple[State | None, str]]:
        """The examination as lines of text, those of an item with its state; no word is shown for `note`."""
        yield None, self.program
        for section in self.sections:
            yield from _lines(section, ok="ok")
        if self.commands:
            yield from _lines(Section("Commands", self.commands), ok="ready")


def _lines(section: Section, ok: str) -> Iterator[tuple[State | None, str]]:
    words = {"ok": ok, "note": ""}
    yield None, ""
    yield None, section.title
    width = max((len(item.name) for item in section.items), default=0)
    for item in section.items:
        yield item.state, f"  {words.get(item.state, item.state):8}{item.name:{width}}  {item.text}".rstrip()
        if item.mend is not None:
            yield "note", f"  {'':8}{'':{width}}  -> {item.mend}"


def looked_at(title: str, *looks: Callable[[], Sequence[Item]]) -> Section:
    """A section of what several looks find; a look that fails is an item that says so.

    Args:
        title: of the section.
        looks: each gives its items.
    """
    items: list[Item] = []
    for look in looks:
        try:
            items.extend(look())
        except Exception as error:  # whatever is broken is what the user wants to know
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            name = getattr(look, "__name__", "look").strip("_").replace("_", " ")
            items.append(Item(name, "wrong", f"cannot be looked at ({reason:.200})"))
    return Section(title, tuple(items))
