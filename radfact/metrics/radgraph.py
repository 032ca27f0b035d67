"""RadGraph: entities and relations of two reports compared, read by the library radgraph."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from radfact.errors import InputError
from radfact.io.jsonl import read_json
from radfact.io.pairs import Pair
from radfact.metrics.protocol import Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction

Graph = Mapping[str, Any]
"""Annotations of one report: `entities` by id, each with `tokens`, `label` and `relations`, a list of (kind, id)."""

Annotate = Callable[[Sequence[str]], Sequence[Graph]]


def combined_f1(candidate: Graph, reference: Graph) -> float:
    """RadGraph-F1: mean of the F1 of the entities and that of the relations; an empty set gives 0.

    Source: the RadCliQ paper's code, as paper 004, D.1 has it.
    """
    return (_f1(_entities(candidate), _entities(reference)) + _f1(_relations(candidate), _relations(reference))) / 2


def entity_reward(candidate: Graph, reference: Graph) -> float:
    """RG_E, reward "simple": F1 of the entities with their labels."""
    return _f1(_entities(candidate), _entities(reference))


def partial_reward(candidate: Graph, reference: Graph) -> float:
    """RG_ER, reward "partial": F1 of the entities with their labels and whether they have a relation."""
    return _f1(_linked(candidate), _linked(reference))


def complete_reward(candidate: Graph, reference: Graph) -> float:
    """Reward "complete": F1 of the entities with their relations, kind and target included."""
    return _f1(_spelled_out(candidate), _spelled_out(reference))


def _entities(graph: Graph) -> set[Hashable]:
    return {(one["tokens"].lower(), one["label"]) for one in graph["entities"].values()}


def _relations(graph: Graph) -> set[Hashable]:
    entities = graph["entities"]
    names = {key: (one["tokens"].lower(), one["label"]) for key, one in entities.items()}
    return {
        (names[key], names[target], kind)
        for key, one in entities.items()
        for kind, target in one["relations"]
        if target in names
    }


def _linked(graph: Graph) -> set[Hashable]:
    return {(one["tokens"].lower(), one["label"], bool(one["relations"])) for one in graph["entities"].values()}


def _spelled_out(graph: Graph) -> set[Hashable]:
    entities = graph["entities"]
    found: set[Hashable] = set()
    for one in entities.values():
        name = (one["tokens"].lower(), one["label"])
        found |= {
            (*name, kind, entities[target]["tokens"].lower()) for kind, target in one["relations"] if target in entities
        } or {name}
    return found


def _f1(candidate: set[Hashable], reference: set[Hashable]) -> float:
    shared = len(candidate & reference)
    return 2 * shared / (len(candidate) + len(reference)) if shared else 0.0


_FIGURES: Mapping[str, Callable[[Graph, Graph], float]] = {
    "radgraph_f1": combined_f1,
    "rg_e": entity_reward,
    "rg_er": partial_reward,
    "rg_er_complete": complete_reward,
}


class RadGraph:
    """RadGraph-F1 and the rewards of the library radgraph, on texts in lower case (paper 004, D.1)."""

    name = "radgraph"
    figures: Mapping[str, Direction] = dict.fromkeys(_FIGURES, "higher")
    headline = ("radgraph_f1",)

    def __init__(self, folder: Path | None = None, *, annotate: Annotate | None = None) -> None:
        """Load the model, or take what annotates reports instead.

        Args:
            folder: the published model `radgraph`: `config.json`, `weights.th`, `vocabulary/`, and `encoder/` with the
                BERT that its configuration names, as transformers writes it.
            annotate: gives the graph of every text.

        Raises:
            InputError: neither or both are given, or the folder holds something else.
            ModuleNotFoundError: radgraph is not installed.
        """
        if (folder is None) == (annotate is None):
            raise InputError("expected either a folder or a function that annotates")
        self._annotate = annotate if annotate is not None else _load(Path(str(folder)))

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Four values a pair, from 0 to 1, and both graphs as details; the figures of the set are means."""
        texts = [(narrative(pair.candidate).lower(), narrative(pair.reference).lower()) for pair in pairs]
        distinct = list(dict.fromkeys(text for both in texts for text in both if text.strip()))
        graphs = dict(zip(distinct, self._annotate(distinct), strict=True)) if distinct else {}
        both = [tuple(graphs.get(text, {"entities": {}}) for text in one) for one in texts]
        return Scored(
            {name: [value(*one) for one in both] for name, value in _FIGURES.items()},
            details=[{"candidate": _in_words(said), "reference": _in_words(true)} for said, true in both],
        )


def _in_words(graph: Graph) -> list[str]:
    entities = graph["entities"]
    lines = []
    for one in entities.values():
        links = "".join(f"; {kind} {entities[to]['tokens']}" for kind, to in one["relations"] if to in entities)
        lines.append(f"{one['tokens']} ({one['label']}{links})")
    return lines


def _load(folder: Path) -> Annotate:
    """The library's model, held to files of the folder, because by itself it fetches what its configuration names."""
    import radgraph

    config = read_json(folder / "config.json")
    try:
        config["dataset_reader"]["token_indexers"]["bert"]["model_name"] = str(folder / "encoder")
        config["model"]["embedder"]["token_embedders"]["bert"]["model_name"] = str(folder / "encoder")
    except (KeyError, TypeError):
        raise InputError("not the configuration of RadGraph", file=folder / "config.json") from None
    restore_methods_of_tokenizers()
    # The library says on standard output which device it took.
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        home = Path(place) / "radgraph"
        home.mkdir()
        (home / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for name in ("weights.th", "vocabulary"):
            (home / name).symlink_to((folder / name).resolve())
        try:
            model = radgraph.RadGraph(model_type="radgraph", model_cache_dir=place)
        except (OSError, RuntimeError, LookupError, TypeError, ValueError, UnpicklingError) as error:
            said = " ".join(str(error).replace(str(home), str(folder)).split())
            raise InputError(f"not RadGraph: {said:.200}", file=folder) from None

    def annotate(texts: Sequence[str]) -> list[Graph]:
        with contextlib.redirect_stdout(io.StringIO()):
            found = model(list(texts))
        return [found[str(index)] for index in range(len(texts))]

    return annotate


def restore_methods_of_tokenizers() -> None:
    """Give the library's tokenizers two methods that it calls and that transformers 5 has no more."""
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
