"""All metrics by name, loaded when they are asked for: what each gives, what it needs and what it costs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.judges.callables import add_working_directory_to_path
from radfact.metrics.protocol import Metric, check_metric, headline_of
from radfact.statistics.bootstrap import Direction

GROUP = "radfact.metrics"
"""Entry points of this group are metrics too: NAME = "module:object"."""

Takes = Literal["nothing", "folder", "model", "resources"]


class MissingRequirementError(InputError):
    """A metric that cannot be made for want of a package, weights, a key or a judge; the others go on.

    Attributes:
        need: what it is in want of.
        mend: what would bring that.
    """

    def __init__(self, need: str, mend: str) -> None:
        self.need, self.mend = need, mend
        super().__init__(f"{need}: {mend}", code=ErrorCode.MISSING_REQUIREMENT)


@dataclass(frozen=True, slots=True)
class Entry:
    """A metric as the table knows it, without having imported it.

    Attributes:
        name: of the metric.
        home: "module:object" of its class, a factory or a metric.
        source: where it is defined.
        cost: what a report costs.
        packages: modules that must be installed.
        files: folder of weights by its name -> files in it, alternatives separated by `|`.
        judge: whether it asks the judge's model, or any judge.
        variant: whether it is another form of one that stands in the table too, and so no part of "all".
        takes: what `home` is called with; "resources" go to its class method `make`.
    """

    name: str
    home: str
    source: str = "a metric of one's own"
    cost: str = "not stated"
    packages: tuple[str, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    judge: Literal["any", "model"] | None = None
    takes: Takes = "nothing"
    variant: bool = False

    def load(self) -> Any:
        """The object at `home`, which may lie in the current directory if it was named so; its needs are not looked at.

        Raises:
            InputError: there is no such object.
        """
        module, _, name = self.home.partition(":")
        if self.name == self.home:
            add_working_directory_to_path()
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            raise InputError(f"metric '{self.name}' cannot be loaded from {self.home}: {error}") from error

    @property
    def figures(self) -> Mapping[str, Direction]:
        """What it gives, and which way is better; empty where only the metric that it makes can say it.

        Raises:
            InputError: as `load`.
        """
        found = getattr(self.load(), "figures", {})
        return found if isinstance(found, Mapping) else {}

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments that it can be made with, and their defaults.

        Raises:
            InputError: as `load`.
        """
        home = self.load()
        maker = home if self.takes == "folder" else getattr(home, "make", home)
        if not callable(maker) or (isinstance(home, Metric) and not isinstance(home, type)):
            return {}
        return {
            name: one.default
            for name, one in inspect.signature(maker).parameters.items()
            if one.default is not inspect.Parameter.empty
        }

    def check_packages(self) -> None:
        """See to it that all packages are installed.

        Raises:
            MissingRequirementError: one is not.
        """
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise MissingRequirementError(
                    f"needs the package {package}", 'pip install "maira-radfact[metrics,model]"'
                )

    def check_folders(self, weights: Weights) -> list[Path]:
        """The folders of its weights, each with all the files that it should have.

        Raises:
            MissingRequirementError: saying which files are wanted, and where they were looked for.
        """
        found, missing = [], []
        for name, files in self.files.items():
            try:
                found.append(weights.find(name, files))
            except MissingRequirementError as error:
                missing.append(error.mend)
        if missing:
            raise MissingRequirementError("needs weights", "; ".join(missing))
        return found


@dataclass(frozen=True, slots=True)
class Weights:
    """Folders of weights that the user has: `named` ones, and `roots` that hold a folder for each name."""

    named: Mapping[str, Path] = field(default_factory=dict)
    roots: Sequence[Path] = ()

    def find(self, name: str, files: Sequence[str]) -> Path:
        """The folder of this name with all these files.

        Raises:
            MissingRequirementError: it is not there, or a file is not.
        """
        places = [self.named[name]] if name in self.named else [root / name for root in self.roots]
        if not places:
            wanted = ", ".join(files).replace("|", " or ")
            raise MissingRequirementError("needs weights", f"--weights {name}=FOLDER with {wanted}")
        place = next((one for one in places if one.is_dir()), places[0])
        for wanted in files:
            if not any((place / one).exists() for one in wanted.split("|")):
                raise MissingRequirementError("needs weights", f"{place} has no {wanted.replace('|', ' or ')}")
        return place


_BERT = ("torch", "transformers")
_FOLDERS = {
    "wordnet": ("lexnames", "data.noun", "index.noun", "noun.exc"),
    "bertscore": ("config.json", "tokenizer.json|vocab.json", "model.safetensors|pytorch_model.bin"),
    "chexbert": ("chexbert.pth", "vocab.txt"),
    "radgraph": ("config.json", "weights.th", "vocabulary", "encoder"),
}
_TABLE = (
    Entry(
        "radfact",
        "radfact.metrics.radfact_metric:RadFactMetric",
        source="MAIRA-2 (004), appendix C",
        cost="a question a sentence, and two splits of a narrative",
        judge="any",
        takes="resources",
    ),
    Entry(
        "rouge_l",
        "radfact.metrics.rouge:RougeL",
        source="MAIRA-2 (004), D.1",
        cost="nothing",
        packages=("rouge_score",),
    ),
    Entry(
        "bleu",
        "radfact.metrics.bleu:Bleu",
        source="MAIRA-2 (004), D.1",
        cost="nothing",
        packages=("sacrebleu",),
    ),
    Entry(
        "meteor",
        "radfact.metrics.meteor:Meteor",
        source="MAIRA-2 (004), D.1",
        cost="nothing",
        packages=("nltk",),
        files={"wordnet": _FOLDERS["wordnet"]},
        takes="folder",
    ),
    Entry(
        "bertscore",
        "radfact.metrics.bertscore:BertScore",
        source="the part of RadCliQ",
        cost="two passes of DistilRoBERTa",
        packages=("bert_score", *_BERT),
        files={"bertscore": _FOLDERS["bertscore"]},
        takes="folder",
    ),
    Entry(
        "chexbert",
        "radfact.metrics.chexbert:CheXbert",
        source="MAIRA-2 (004), D.1, figures 3 and 5, table B.3",
        cost="two passes of BERT",
        packages=_BERT,
        files={"chexbert": _FOLDERS["chexbert"]},
        takes="folder",
    ),
    Entry(
        "radgraph",
        "radfact.metrics.radgraph:RadGraph",
        source="MAIRA-2 (004), D.1",
        cost="two passes of PubMedBERT",
        packages=("radgraph", *_BERT),
        files={"radgraph": _FOLDERS["radgraph"]},
        takes="folder",
    ),
    Entry(
        "radcliq",
        "radfact.metrics.radcliq:RadCliQ",
        source="MAIRA-2 (004), D.1",
        cost="that of RadGraph, BERTScore and CheXbert, once",
        packages=("nltk", "radgraph", "bert_score", *_BERT),
        files={name: _FOLDERS[name] for name in ("radgraph", "bertscore", "chexbert")},
        takes="resources",
    ),
    Entry(
        "lateral_mentions",
        "radfact.metrics.mentions:LateralMentions",
        source="MAIRA-2 (004), listing 6",
        cost="nothing",
    ),
    Entry(
        "green",
        "radfact.metrics.green:Green",
        source="GREEN (000), VERT (003) appendix B",
        cost="an answer of up to 2,048 tokens",
        judge="model",
        takes="model",
    ),
    Entry(
        "vert",
        "radfact.metrics.vert:Vert",
        source="VERT (003), D.2",
        cost="an answer",
        judge="model",
        takes="model",
    ),
    Entry(
        "vert_formula",
        "radfact.metrics.vert:VertFormula",
        source="VERT (003), D.3",
        cost="an answer",
        judge="model",
        takes="model",
        variant=True,
    ),
    Entry(
        "vert_rubric",
        "radfact.metrics.vert:VertRubric",
        source="VERT (003), D.4",
        cost="an answer",
        judge="model",
        takes="model",
        variant=True,
    ),
    Entry(
        "vert_tuned",
        "radfact.metrics.vert:VertTuned",
        source="VERT (003), 4.1.4",
        cost="an answer of one number",
        judge="model",
        takes="model",
        variant=True,
    ),
    Entry(
        "fineradscore",
        "radfact.metrics.fineradscore:FineRadScore",
        source="FineRadScore (001), appendix A",
        cost="an answer as long as the corrected report",
        judge="model",
        takes="model",
    ),
    Entry(
        "chexprompt",
        "radfact.metrics.chexprompt:CheXprompt",
        source="MAIRA-2 (004), D.1; our prompt",
        cost="an answer",
        judge="model",
        takes="model",
    ),
    Entry(
        "comparison_mentions",
        "radfact.metrics.mentions:ComparisonMentions",
        source="MAIRA-2 (004), D.6.1; our prompt",
        cost="two short answers",
        judge="model",
        takes="model",
    ),
)


def is_ours(entry: Entry) -> bool:
    """Whether a metric is one of this package, and no other package's or the user's."""
    return entry in _TABLE


@cache
def entries() -> Mapping[str, Entry]:
    """All metrics by name: ours, then those that installed packages add under names of their own."""
    table = {entry.name: entry for entry in _TABLE}
    for point in entry_points(group=GROUP):
        table.setdefault(point.name, Entry(point.name, point.value, source=f"package {point.dist and point.dist.name}"))
    return table


@dataclass(frozen=True, slots=True)
class Choice:
    """A metric that was asked for, and which of its figures.

    Attributes:
        entry: of the table.
        whole: whether all of them are wanted, because the metric was named.
        figures: names of those that were named by themselves.
        by_name: whether it was named, and not just one of all.
        metric: the metric itself, where it was given instead of a name.
    """

    entry: Entry
    whole: bool = True
    figures: tuple[str, ...] = ()
    by_name: bool = True
    metric: Metric | None = None

    @classmethod
    def of(cls, metric: Metric) -> Choice:
        """A metric that was given itself.

        Raises:
            InputError: it is none.
        """
        check_metric(metric, type(metric).__name__)
        return cls(Entry(metric.name, f"{type(metric).__module__}:{type(metric).__qualname__}"), metric=metric)

    def wanted(self, figures: Mapping[str, Direction]) -> dict[str, Direction]:
        """Those of a metric's figures that are wanted, in its order."""
        return {name: one for name, one in figures.items() if self.whole or name in self.figures}

    def headline(self, metric: Metric) -> list[str]:
        """Those that are wanted where the metric is one row, test or reward: by its name its headline, in its order."""
        named = {*self.figures, *(headline_of(metric) if self.whole else ())}
        return [name for name in metric.figures if name in named]


def choose(names: Sequence[str]) -> list[Choice]:
    """The metrics that some names mean, each once.

    Args:
        names: of metrics (all their figures), of single figures (that one), "module:object" of one's own, or "all",
            which is all but variants.

    Raises:
        InputError: a name is none of these, or there are none.
    """
    if not names:
        raise InputError("no metric is named; see 'radfact metrics'", field="metrics")
    chosen: dict[str, Choice] = {}
    for name in names:
        if name == "all":
            for entry in (one for one in entries().values() if not one.variant):
                before = chosen.get(entry.name, Choice(entry, by_name=False))
                chosen[entry.name] = replace(before, whole=True)
            continue
        entry = Entry(name, name) if ":" in name else entries().get(name) or _with_figure(name)
        before = chosen.get(entry.name, Choice(entry, whole=False))
        figures = before.figures if entry.name == name else (*before.figures, name)
        chosen[entry.name] = Choice(entry, before.whole or entry.name == name, figures)
    return list(chosen.values())


def _with_figure(name: str) -> Entry:
    known: dict[str, Entry] = {}
    for entry in entries().values():
        # A package's metric that cannot be loaded is no reason to refuse another's figure.
        with suppress(InputError):
            known.update(dict.fromkeys(entry.figures, entry))
    if name in known:
        return known[name]
    hint = suggest_name(name, [*entries(), *known], "see 'radfact metrics'")
    raise InputError(f"no metric and no figure is called '{name}'; {hint}", field="metrics")
