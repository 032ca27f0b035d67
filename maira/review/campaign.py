"""Reader-study campaigns: the campaign file, the coordinator's actions, and the assignment of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, TypeAdapter, model_validator

from maira.review.changes import Name, Text, plain_name
from maira.review.form import Form, default_form, read_form, validate_file
from radfact.errors import ErrorCode, InputError, list_some, suggest_name
from radfact.io.yaml_files import read_yaml
from radfact.records import Record

REFERENCE_ARM = "reference"
"""Value of an arm whose drafts are the reference reports of the manifest."""

OutcomeName = Literal["corrections", "uncorrected", "implications", "significant", "active_seconds", "active_ratio"]
"""Name of an outcome in `maira.review.reader_study.OUTCOMES`."""

_CHANGEABLE = {"manifest", "arms", "readers", "instructions", "form"}
"""Settings that may change during a campaign: of arms the paths of their files, of the form texts and keys."""


class Analysis(Record):
    """Settings of the analysis, fixed before the first reading."""

    baseline: Name | None = None
    outcome: OutcomeName = "corrections"
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    significance_level: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _check(self) -> Analysis:
        if self.outcome == "active_ratio" and self.margin is not None and self.margin <= 1:
            raise ValueError(f"margin: expected a ratio above 1 for active_ratio, found {self.margin}")
        return self


class CampaignConfig(Record):
    """Settings of a campaign, explained in docs/review.md."""

    manifest: Path
    arms: Annotated[dict[Name, Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=26)]
    readers: Annotated[tuple[Name, ...], Field(min_length=1)]
    assignment: Literal["all", "split", "overlap"] = "all"
    overlap: Annotated[float, Field(gt=0, lt=1)] | None = None
    arms_per_reader: Literal["one", "all"] = "one"
    order: Literal["random", "file"] = "random"
    seed: int = 0
    training_cases: tuple[str, ...] = ()
    instructions: Text = ""
    analysis: Analysis = Analysis()
    form: Form = Field(default_factory=default_form)

    @model_validator(mode="after")
    def _check(self) -> CampaignConfig:
        keys = [name_key(name) for name in self.readers]
        if duplicates := [name for name, key in zip(self.readers, keys, strict=True) if keys.count(key) > 1]:
            raise ValueError(f"readers: duplicate {duplicates[0]!r}")
        if (self.overlap is None) == (self.assignment == "overlap"):
            raise ValueError("overlap: expected a share with the assignment 'overlap', and none with others")
        if self.analysis.baseline is not None and self.analysis.baseline not in self.arms:
            raise ValueError(f"analysis: expected an arm as baseline, found {self.analysis.baseline!r}")
        if self.form.unit == "pair" and len(self.arms) != 2:
            raise ValueError(f"arms: expected two with the form {self.form.name!r}, found {len(self.arms)}")
        return self

    @property
    def shared_fraction(self) -> float:
        return {"all": 1.0, "split": 0.0}.get(self.assignment, self.overlap or 0.0)

    def has_one_reader_per_report(self, readers: int) -> bool:
        """Return whether no report is read by two readers, although readers share studies."""
        return self.shared_fraction > 0 and self.arms_per_reader == "one" and 1 < readers <= len(self.arm_names)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Names of the arms in the database: "" if there is only one, or readers see them as pairs."""
        return tuple(self.arms) if len(self.arms) > 1 and self.form.unit != "pair" else ("",)

    @property
    def labels(self) -> dict[str, str]:
        """Label of each arm that readers see, in a random order; empty with one arm."""
        if self.arm_names == ("",):
            return {}
        letters = list(ascii_uppercase[: len(self.arms)])
        Random(f"{self.seed} labels").shuffle(letters)
        return dict(zip(self.arms, letters, strict=True))

    @property
    def shows_reference(self) -> bool:
        """Whether readers compare with the reference report: next to itself, it would reveal its arm."""
        return REFERENCE_ARM not in self.arms.values()

    def check_same(self, other: CampaignConfig, file: Path) -> None:
        before, now = (settings.model_dump(mode="json", exclude=_CHANGEABLE) for settings in (self, other))
        before["arms"], now["arms"] = list(self.arms), list(other.arms)
        for name, value in before.items():
            if now[name] != value:
                hint = "restore it, or use another --db"
                message = f"expected {value!r} as when the campaign began, found {now[name]!r}; {hint}"
                raise InputError(message, code=ErrorCode.MISMATCH, file=file, field=name)
        self.form.check_same(other.form, file)


def name_key(name: str) -> str:
    """Return a name in the form in which equal names are equal."""
    return plain_name(name).casefold()


def read_campaign(path: Path) -> CampaignConfig:
    """Read a campaign file; paths in it are relative to its folder."""
    fields = read_yaml(path)
    if isinstance(fields, dict) and isinstance(name := fields.get("form"), str):
        fields["form"] = read_form(name, path.parent)
    settings = validate_file(CampaignConfig, fields, path)
    arms = {
        name: file if file == REFERENCE_ARM else str((path.parent / file).resolve())
        for name, file in settings.arms.items()
    }
    return settings.model_copy(update={"manifest": (path.parent / settings.manifest).resolve(), "arms": arms})


class Configure(Record):
    kind: Literal["configure"]
    settings: CampaignConfig


class UseForm(Record):
    """Use another form than MAIRA-2 in a review that is not a campaign."""

    kind: Literal["form"]
    form: Form


class Assign(Record):
    """Assign studies to readers, after those that they have."""

    kind: Literal["assign"]
    shared_samples: tuple[str, ...] = ()
    studies: dict[str, tuple[int, ...]]


class Rename(Record):
    kind: Literal["rename"]
    reader: str
    name: Name


class Merge(Record):
    """Merge a reader into another one, who keeps their own review of a study that both read."""

    kind: Literal["merge"]
    reader: str
    into: str


class Exclude(Record):
    kind: Literal["exclude"]
    reader: str
    reason: Annotated[Text, Field(min_length=1, max_length=1000)]


class SetReaderStatus(Record):
    """Include an excluded reader again, or pause or resume one reader or, if reader is None, all."""

    kind: Literal["include", "pause", "resume"]
    reader: str | None = None


class Decide(Record):
    """Decide a study in which readers disagree."""

    kind: Literal["decide"]
    study: int
    severities: Annotated[dict[str, NonNegativeInt | None], Field(min_length=1)]
    comment: Annotated[Text, Field(max_length=10_000)] = ""


Action = Annotated[
    Configure | UseForm | Assign | Rename | Merge | Exclude | SetReaderStatus | Decide, Field(discriminator="kind")
]
action_adapter: TypeAdapter[Action] = TypeAdapter(Action)


@dataclass(slots=True)
class Campaign:
    """State of a campaign after the actions so far; readers have their first name, and None of `paused` is for all."""

    settings: CampaignConfig | None = None
    form: Form = field(default_factory=default_form)
    lists: dict[str, list[int]] = field(default_factory=dict)
    shared_samples: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    paused: set[str | None] = field(default_factory=set)
    decisions: dict[int, tuple[str, Decide]] = field(default_factory=dict)
    history: list[tuple[str, Action]] = field(default_factory=list)

    @property
    def config(self) -> CampaignConfig:
        if self.settings is None:
            raise InputError("the review is not a campaign")
        return self.settings

    def name(self, reader: str) -> str:
        return self.names.get(reader, reader)

    def with_merged(self, reader: str) -> list[str]:
        """Return a reader and those merged into them: the first with a review of a study counts."""
        direct = [source for source, target in self.merged.items() if target == reader]
        return [reader, *direct, *(each for source in direct for each in self.with_merged(source)[1:])]

    def save_blocked_reason(self, reader: str) -> str | None:
        if reader in self.excluded:
            return "the coordinator has ended your part in this campaign"
        if {None, reader} & self.paused:
            return "the coordinator has paused the campaign"
        return None

    def check(self, action: Action, readers: Sequence[str], studies: int) -> None:
        active = [name for name in readers if name not in self.merged]
        concerned = [getattr(action, name, None) for name in ("reader", "into")]
        for reader in filter(None, concerned):
            if reader not in active:
                hint = suggest_name(reader, active, "reload the page")
                raise InputError(f"unknown reader {reader!r:.120}; {hint}", code=ErrorCode.UNKNOWN_NAME, field="reader")
        match action:
            case Rename():
                others = [name for name in readers if name != action.reader]
                if name_key(action.name) in map(name_key, (*others, *map(self.name, others))):
                    raise InputError("another reader has this name; merge them", code=ErrorCode.DUPLICATE, field="name")
            case Merge():
                if action.reader == action.into:
                    raise InputError("a reader cannot be merged into themselves", field="into")
            case SetReaderStatus(kind="include", reader=None):
                raise InputError("expected a reader", field="reader")
            case Decide():
                if not 1 <= action.study <= studies:
                    raise InputError(f"expected a study from 1 to {studies}, found {action.study}", field="study")

    def apply(self, action: Action, made: str) -> None:
        self.history.append((made, action))
        match action:
            case Configure():
                self.settings, self.form = action.settings, action.settings.form
            case UseForm():
                self.form = action.form
            case Assign():
                self.shared_samples += action.shared_samples
                for reader, numbers in action.studies.items():
                    self.lists.setdefault(reader, []).extend(numbers)
            case Rename():
                self.names[action.reader] = action.name
            case Merge():
                self.merged[action.reader] = action.into
                own = self.lists.setdefault(action.into, [])
                own += [number for number in self.lists.get(action.reader, ()) if number not in own]
            case Exclude():
                self.excluded[action.reader] = action.reason
            case SetReaderStatus(kind="include"):
                self.excluded.pop(str(action.reader), None)
            case SetReaderStatus(kind="pause"):
                self.paused.add(action.reader)
            case SetReaderStatus():
                self.paused.discard(action.reader)
            case Decide():
                self.decisions[action.study] = made, action

    def assign(self, readers: Sequence[str], numbers: Mapping[str, Mapping[str, int]]) -> Assign:
        """Assign new samples to readers, and to new readers those of all; arms alternate by reader (Latin square)."""
        settings = self.config
        if unknown := [name for name in settings.training_cases if name not in numbers]:
            message = f"expected samples of the drafts, found {list_some(unknown)}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="training_cases")
        sample_of = {number: sample for sample, by_arm in numbers.items() for number in by_arm.values()}
        before = {reader: {sample_of[number] for number in self.lists.get(reader, ())} for reader in readers}
        known = set[str]().union(*before.values(), settings.training_cases)
        new = [sample for sample in numbers if sample not in known]
        Random(f"{settings.seed} {len(known)}").shuffle(new)
        count = round(settings.shared_fraction * len(new))
        shared = [*self.shared_samples, *new[:count]]
        active = [name for name in readers if name not in self.merged and name not in self.excluded]
        work = {reader: [sample for sample in shared if sample not in before[reader]] for reader in active}
        # Without an active reader, samples wait for the next one.
        for sample in new[count:] if active else ():
            reader = min(active, key=lambda name: len(before[name]) + len(work[name]))
            work[reader].append(sample)
        cases, arms = settings.training_cases, settings.arm_names
        training = [numbers[sample][arms[place % len(arms)]] for place, sample in enumerate(cases)]
        studies = {}
        for reader, samples in work.items():
            known_samples = before[reader] - {*cases}
            # A shared sample has the same place for all readers, whenever and however many others they read.
            ranks = {sample: rank for rank, sample in enumerate(shared)}
            others = [sample for sample in samples if sample not in ranks]
            ranks |= {sample: rank for rank, sample in enumerate(others, len(shared) + len(known_samples - {*shared}))}
            first = readers.index(reader)
            places = [(first + ranks[sample], sample) for sample in samples]
            ordered = self._ordered(places, f"{reader} {first + len(known_samples)}", numbers)
            if own := ordered if self.lists.get(reader) else [*training, *ordered]:
                studies[reader] = tuple(own)
        return Assign(kind="assign", shared_samples=tuple(new[:count]), studies=studies)

    def _ordered(
        self, places: Sequence[tuple[int, str]], seed: str, numbers: Mapping[str, Mapping[str, int]]
    ) -> list[int]:
        settings, arms = self.config, self.config.arm_names
        places = list(places)
        if settings.order == "random":
            Random(f"{settings.seed} {seed}").shuffle(places)
        else:
            places.sort(key=lambda item: min(numbers[item[1]].values()))
        # In the same order in every arm, so that the readings of a sample are as far apart as possible.
        rounds = range(len(arms) if settings.arms_per_reader == "all" else 1)
        return [numbers[sample][arms[(place + turn) % len(arms)]] for turn in rounds for place, sample in places]
