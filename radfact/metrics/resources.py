"""What metrics are made of: a judge, a model, weights; each is made once and shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.entailment import CallableJudge, Judge, load_judge
from radfact.errors import InputError
from radfact.files import Pair
from radfact.metrics.metric import Metric, Scored
from radfact.metrics.registry import Choice, Entry, MissingNeed, Weights, entries, is_ours

if TYPE_CHECKING:
    from radfact.entailment.callable import JudgeFunction
    from radfact.llm import ChatClient
    from radfact.sentences import Splitter

WITHOUT_MODEL = ("offline", "python")


class Resources:
    """Makes metrics, and what they share."""

    def __init__(
        self,
        *,
        judge: str | Judge | JudgeFunction | None = None,
        entailment: Callable[[], tuple[Judge, Splitter]] | None = None,
        model: str | ChatClient | None = None,
        judge_args: Mapping[str, Any] | None = None,
        base_url: str | None = None,
        concurrency: int | None = None,
        cache: Path | None = None,
        splitter: Splitter | None = None,
        weights: Mapping[str, Path] | Sequence[Path] = (),
        radfact: Mapping[str, Any] | None = None,
    ) -> None:
        """Take what there is; nothing is loaded yet.

        Args:
            judge: of RadFact: a name as in `radfact.entailment.load_judge`, a judge or a function.
            entailment: makes the judge and the splitter of RadFact instead, when they are needed.
            model: of the other metrics that ask a language model: a name as in `radfact.llm.connect`, or a client; by
                default the judge, if that is the name of a model.
            judge_args: further arguments of the model by name.
            base_url: address of an OpenAI-compatible server.
            concurrency: calls in flight.
            cache: folder for the answers of a model.
            splitter: of RadFact; by default the offline one beside the offline judge, else the judge's model.
            weights: folders of weights by name (`wordnet`, `bertscore`, `chexbert`, `radgraph`), or folders that hold
                folders of these names.
            radfact: further options of `radfact.score.RadFact`.

        Raises:
            InputError: weights have a name that no metric knows.
        """
        self.judge, self.splitter, self.radfact = judge, splitter, dict(radfact or {})
        self._entailment = entailment
        self.model = model if model is not None or not isinstance(judge, str) else judge
        self._options: dict[str, Any] = {"base_url": base_url, "concurrency": concurrency, "cache": cache}
        self._judge_args = dict(judge_args or {})
        named = {name: Path(folder) for name, folder in weights.items()} if isinstance(weights, Mapping) else {}
        known = sorted({name for entry in entries().values() for name in entry.files})
        for name in named:
            if name not in known:
                raise InputError(
                    f"no metric has weights of that name; expected {', '.join(known)}", field=f"weights.{name}"
                )
        self.weights = Weights(named, () if isinstance(weights, Mapping) else tuple(map(Path, weights)))
        self._clients: list[ChatClient] = []
        self._metrics: dict[str, Metric] = {}
        self.accounts: dict[str, Callable[[], Mapping[str, int]]] = {}

    def metric(self, entry: Entry) -> Metric:
        """The metric of an entry; the same one on every call.

        Raises:
            MissingNeed: something that it needs is not there.
            InputError: what is there cannot be used, or the entry is no metric.
        """
        if entry.name not in self._metrics:
            self._metrics[entry.name] = self._make(entry)
        return self._metrics[entry.name]

    def shared(self, name: str) -> Metric:
        """A metric of ours by name, for those that are made of it."""
        return self.metric(entries()[name])

    def _make(self, entry: Entry) -> Metric:
        entry.check_packages()
        home = entry.load()
        folders = entry.check_folders(self.weights)
        if entry.takes == "resources":
            made = home.make(self)
        elif entry.takes == "folder":
            made = home(*folders)
        elif entry.takes == "model":
            made = home(self.client(getattr(home, "parameters", {}), entry.name))
        else:
            # A user's own may be a metric, its class, or a function that makes it.
            made = home() if isinstance(home, type) or not isinstance(home, Metric) else home
        if not isinstance(made, Metric):
            raise InputError(f"{entry.home} is no metric: expected the members name, figures and score")
        return Remembering(made) if entry.takes == "folder" else made

    def identity(self, choice: Choice, metric: Metric) -> dict[str, Any] | None:
        """All that decides what a metric says of given pairs; None where that cannot be told.

        It can be told of our metrics, and of any that has a method `describe` with all that changes a value. One that
        asks a model without describing itself is asked again, and its answers are kept where they were paid for; so
        is RadFact with a judge of one's own, whose code may have changed.
        """
        entry = choice.entry
        describe = getattr(metric, "describe", None)
        settings = None if describe is None else describe()
        ours = is_ours(entry) and entry.takes in ("nothing", "folder", "resources")
        if choice.metric is not None or (settings is None and not ours) or _is_own_judge(settings):
            return None
        files = [file for folder in entry.check_folders(self.weights) for file in sorted(folder.iterdir())]
        return {
            "home": entry.home,
            "versions": {name: _version(name) for name in ("maira-radfact", *entry.packages)},
            "weights": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "settings": settings,
        }

    def status(self, entry: Entry) -> str:
        """`ready`, or what an entry needs, in one line; nothing big is loaded to say so."""
        try:
            entry.check_packages()
            entry.check_folders(self.weights)
            if entry.judge == "model":
                self.client({}, entry.name)
            elif entry.judge == "any":
                self.entailment()
            else:
                entry.load()
        except InputError as error:
            return str(error)
        return "ready"

    def client(self, parameters: Mapping[str, Any], name: str) -> ChatClient:
        """A client of the model, with the sampling that a metric wants where the user says nothing else.

        Args:
            parameters: of the metric.
            name: of the metric, for the display of a run.

        Raises:
            MissingNeed: no model is named.
            InputError: the model cannot be reached for want of a package or a key, or an option does not fit.
        """
        from radfact.llm import ChatClient, connect, split_model_args

        model = self.model
        if isinstance(model, ChatClient):
            return model
        if model is None:
            raise MissingNeed("needs a language model: --judge PROVIDER:MODEL")
        if model.partition(":")[0] in WITHOUT_MODEL:
            raise MissingNeed(f"needs a language model: --judge PROVIDER:MODEL instead of {model}")
        parameters = {**parameters, **split_model_args(self._judge_args)}
        made = connect(model, parameters=parameters, **self._options)
        self._clients.append(made)
        self.accounts[name] = made.ledger.as_dict
        return made

    def entailment(self) -> tuple[Judge, Splitter]:
        """The judge and the splitter of RadFact.

        Raises:
            MissingNeed: no judge is named.
            InputError: it cannot be made.
        """
        judge, splitter = (self._entailment or self._named)()
        self.accounts |= {"splitting": splitter.account, "judging": judge.account}
        return judge, splitter

    def _named(self) -> tuple[Judge, Splitter]:
        from radfact.sentences import load_splitter

        judge, splitter = self.judge, self.splitter
        if judge is None:
            raise MissingNeed("needs a judge: --judge offline or --judge PROVIDER:MODEL")
        if isinstance(judge, str):
            asks = judge.partition(":")[0] not in WITHOUT_MODEL
            options: dict[str, Any] = self._options if asks else {}
            if splitter is None and asks:
                splitter = load_splitter(judge, splitter_args=self._judge_args, **options)
            judge = load_judge(judge, judge_args=self._judge_args, **options)
        elif not isinstance(judge, Judge):
            judge = CallableJudge(judge)
        return judge, splitter or load_splitter("offline")

    def close(self) -> None:
        """Give back connections and the files of answers."""
        for client in self._clients:
            client.close()


class Remembering:
    """A metric that does not compute the same pairs twice in a row: others may be made of it."""

    def __init__(self, metric: Metric) -> None:
        self._metric, self.name, self.figures = metric, metric.name, metric.figures
        self._last: tuple[tuple[Pair, ...], Scored] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metric, name)

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """What the metric says, or said."""
        given = tuple(pairs)
        if self._last is None or self._last[0] != given:
            self._last = given, self._metric.score(pairs)
        return self._last[1]


def _is_own_judge(settings: Mapping[str, Any] | None) -> bool:
    judge = (settings or {}).get("judge")
    return isinstance(judge, Mapping) and str(judge.get("name", "")).startswith("python")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
