"""RadGraph: F1 of the entities and relations of two reports, extracted by the package radgraph."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Self

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.metrics.resources import MetricResources
from radfact.records import TextPair

Graph = Mapping[str, Any]
"""Annotations of a report: `entities` by id, each with `tokens`, `label` and `relations`, a list of (kind, id)."""

Annotate = Callable[[Sequence[str]], Sequence[Graph]]


SCORES = ("radgraph_f1", "rg_e", "rg_er", "rg_er_complete")
"""RadGraph-F1, and the rewards "simple", "partial" and "complete" of the package."""


def _parts(graph: Graph) -> tuple[set[Hashable], ...]:
    """Return entities, relations, entities with whether they have a relation, and entities with each relation."""
    names = {key: (entity["tokens"].lower(), entity["label"]) for key, entity in graph["entities"].items()}
    relations, linked, complete = set[Hashable](), set[Hashable](), set[Hashable]()
    for key, entity in graph["entities"].items():
        known = [(kind, names[target]) for kind, target in entity["relations"] if target in names]
        relations |= {(names[key], target, kind) for kind, target in known}
        linked.add((*names[key], bool(entity["relations"])))
        complete |= {(*names[key], kind, tokens) for kind, (tokens, _) in known} or {names[key]}
    return set(names.values()), relations, linked, complete


def score_graphs(candidate: Graph, reference: Graph) -> list[float]:
    """Compute `SCORES`; the first is the mean of the F1 of entities and relations (RadCliQ; MAIRA-2, appendix D.1)."""
    f1 = []
    for ours, theirs in zip(_parts(candidate), _parts(reference), strict=True):
        shared = len(ours & theirs)
        f1.append(2 * shared / (len(ours) + len(theirs)) if shared else 0.0)
    entities, relations, linked, complete = f1
    return [(entities + relations) / 2, entities, linked, complete]


WEIGHTS = {"radgraph": ("config.json", "weights.th", "vocabulary", "encoder")}


class RadGraph(Metric):
    """RadGraph-F1 and the rewards of the package radgraph, on texts in lower case."""

    name = "radgraph"
    measures = "agreement on entities and their relations"
    scores: Mapping[str, Score] = {name: Score("higher", "F1 of entities and relations") for name in SCORES}
    main_scores = ("radgraph_f1",)
    requirements = Requirements(packages=("radgraph", "torch", "transformers"), weights=WEIGHTS)
    cost = "two passes of PubMedBERT"
    for_chest_xrays = True
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1"

    def __init__(self, annotate: Annotate) -> None:
        """Take the function that annotates reports: the model, see `load_radgraph`, or another one."""
        self._annotate = annotate

    @classmethod
    def create(cls, resources: MetricResources) -> Self:  # type: ignore[override]
        return cls(load_radgraph(*resources.find_weights(cls.requirements)))

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs from 0 to 1, with both graphs as details."""
        texts = [(pair.candidate.lower(), pair.reference.lower()) for pair in pairs]
        distinct = list(dict.fromkeys(text for pair_texts in texts for text in pair_texts if text.strip()))
        graphs = dict(zip(distinct, self._annotate(distinct), strict=True)) if distinct else {}
        empty: Graph = {"entities": {}}
        graph_pairs = [(graphs.get(candidate, empty), graphs.get(reference, empty)) for candidate, reference in texts]
        rows = [score_graphs(*graph_pair) for graph_pair in graph_pairs]
        values = {name: [row[place] for row in rows] for place, name in enumerate(SCORES)}
        details = [{"candidate": _describe(ours), "reference": _describe(theirs)} for ours, theirs in graph_pairs]
        return MetricResult(values, details=details)


def _describe(graph: Graph) -> list[str]:
    entities = graph["entities"]
    lines = []
    for entity in entities.values():
        relations = [(kind, entities[target]["tokens"]) for kind, target in entity["relations"] if target in entities]
        links = "".join(f"; {kind} {tokens}" for kind, tokens in relations)
        lines.append(f"{entity['tokens']} ({entity['label']}{links})")
    return lines


def load_radgraph(folder: Path) -> Annotate:
    """Load the model with the files of a folder alone; by itself radgraph downloads what its configuration names."""
    import radgraph

    config = read_json(folder / "config.json")
    try:
        config["dataset_reader"]["token_indexers"]["bert"]["model_name"] = str(folder / "encoder")
        config["model"]["embedder"]["token_embedders"]["bert"]["model_name"] = str(folder / "encoder")
    except (KeyError, TypeError):
        message = "expected the configuration of RadGraph"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder / "config.json") from None
    patch_tokenizers()
    # radgraph prints its device.
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(io.StringIO()):
        model_folder = Path(cache) / "radgraph"
        model_folder.mkdir()
        (model_folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for name in ("weights.th", "vocabulary"):
            (model_folder / name).symlink_to((folder / name).resolve())
        try:
            model = radgraph.RadGraph(model_type="radgraph", model_cache_dir=cache)
        except (OSError, RuntimeError, LookupError, TypeError, ValueError, UnpicklingError) as error:
            reason = " ".join(str(error).replace(str(model_folder), str(folder)).split())
            raise InputError(f"expected RadGraph: {reason:.200}", code=ErrorCode.INVALID_FORMAT, file=folder) from None

    def annotate(texts: Sequence[str]) -> list[Graph]:
        with contextlib.redirect_stdout(io.StringIO()):
            annotations = model(list(texts))
        return [annotations[str(index)] for index in range(len(texts))]

    return annotate


def patch_tokenizers() -> None:
    """Add two tokenizer methods that radgraph calls and transformers 5 has removed."""
    from radgraph.allennlp.common import cached_transformers

    get = cached_transformers.get_tokenizer
    if get.__module__ == __name__:
        return

    def get_tokenizer(name: str, **options: Any) -> Any:
        tokenizer = get(name, **options)
        if not hasattr(tokenizer, "encode_plus"):
            tokenizer.encode_plus = tokenizer.__call__
        if not hasattr(tokenizer, "build_inputs_with_special_tokens"):
            first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
            tokenizer.build_inputs_with_special_tokens = lambda tokens: [first, *tokens, last]
        return tokenizer

    cached_transformers.get_tokenizer = get_tokenizer
