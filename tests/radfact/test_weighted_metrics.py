"""Metrics that run a model, on small random weights of the true layout, and RaTEScore's formula."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import yaml
from error_checks import raises
from metric_files import CHEXBERT, write_chexbert, write_distilroberta, write_radgraph, write_ratescore

from radfact.api import evaluate
from radfact.io.jsonl import read_jsonl
from radfact.metrics.classical.bertscore import LAYER, BertScore
from radfact.metrics.classical.chexbert import CLASSES, LABELS, CheXbert, Labeler
from radfact.metrics.classical.radgraph import RadGraph, load_radgraph
from radfact.metrics.classical.ratescore import TYPES, Entities, RaTEScore, decode_spans, harmonic_mean, match_entities
from radfact.metrics.protocol import Metric
from radfact.records import Pair, TextPair

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

VALUES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("metric_values.yaml").read_text("utf-8"))
PAIRS = [
    TextPair("1", "The heart is large.", "The heart is big. No pleural effusion."),
    TextPair("2", "The lungs are clear.", "The lungs are clear."),
    TextPair("3", "", "no pneumothorax"),
]
ENTITY_PAIRS = [
    TextPair("1", "there is a small right effusion. the heart is large.", "large effusion, no pneumothorax."),
    TextPair("2", "the lungs are clear.", "the lungs are clear."),
    TextPair("3", "", "the heart is large. no edema."),
    TextPair("4", "", "."),
]
LOADERS = {"chexbert": CheXbert, "bertscore": BertScore, "radgraph": load_radgraph, "ratescore": RaTEScore}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    write_chexbert(folder / "chexbert")
    write_distilroberta(folder / "bertscore")
    write_radgraph(folder / "radgraph")
    write_ratescore(folder / "ratescore")
    return folder


def test_labels_and_embeddings_are_those_of_the_checkpoint(weights: Path) -> None:
    """Compute them again from the file: the first hidden state of BERT, and the heads on it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    tensors = torch.load(weights / "chexbert" / "chexbert.pth", weights_only=True)["model_state_dict"]
    bert = {name.removeprefix("module.bert."): tensor for name, tensor in tensors.items() if ".bert." in name}
    del bert["embeddings.position_ids"]
    words = len(bert["embeddings.word_embeddings.weight"])
    config = BertConfig(vocab_size=words, **CHEXBERT)
    model = BertModel(config).eval()
    model.load_state_dict(bert)
    tokenizer = BertTokenizer.from_pretrained(str(weights / "chexbert"))
    with torch.no_grad():
        hidden = model(**tokenizer("The heart is large.", return_tensors="pt")).last_hidden_state[0, 0]
    heads = [[tensors[f"module.linear_heads.{head}.{name}"] for name in ("weight", "bias")] for head in range(14)]
    labels, embeddings = Labeler(weights / "chexbert").label(["no pneumothorax", "The  heart is\nlarge."])
    assert labels[1].tolist() == [int((weight @ hidden + bias).argmax()) for weight, bias in heads]
    np.testing.assert_allclose(embeddings[1], hidden.numpy(), rtol=1e-4, atol=1e-5)


def test_equal_reports_have_a_similarity_of_one_and_the_same_findings(weights: Path) -> None:
    scored = CheXbert(weights / "chexbert").score(PAIRS)
    similarity = scored.values["chexbert_similarity"]
    assert similarity[1] == pytest.approx(1.0)
    assert similarity[0] < 0.99
    counts = scored.pooled["chexbert_micro_f1_14"].counts[1].reshape(4, 14)
    assert counts[1:3].sum() == 0  # neither false alarms nor misses
    assert scored.details[1]["candidate"] == scored.details[1]["reference"]
    assert set(scored.details[1]["candidate"].values()) <= set(LABELS)
    assert set(scored.details[1]["candidate"]) <= set(CLASSES)


def test_bertscore_is_that_of_layer_five_rescaled_with_the_baseline(weights: Path) -> None:
    """Compute it again from the definition: greedy cosine matches of all tokens, F1, (F - b) / (1 - b)."""
    from transformers import AutoTokenizer, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(str(weights / "bertscore"), add_prefix_space=True)
    model = RobertaModel.from_pretrained(weights / "bertscore").eval()
    vectors = []
    for text in (PAIRS[0].candidate, PAIRS[0].reference):
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        layer = output.hidden_states[LAYER][0]
        vectors.append(layer / layer.norm(dim=1, keepdim=True))
    # The first and last token may be matched, but have no weight.
    cosine = vectors[0] @ vectors[1].T
    precision, recall = (float(cosine.max(dim=dim).values[1:-1].mean()) for dim in (1, 0))
    f1 = 2 * precision * recall / (precision + recall)
    baseline = 0.8473319  # of layer 5 of distilroberta-base, in the library's table
    scores = BertScore(weights / "bertscore").score(PAIRS).values["bertscore"]
    assert scores[0] == pytest.approx((f1 - baseline) / (1 - baseline), abs=1e-3)
    assert scores[1:] == [pytest.approx(1.0, abs=1e-4), 0.0]


def test_bertscore_is_cut_at_the_length_of_the_model_and_does_not_depend_on_the_other_pairs(weights: Path) -> None:
    metric, long = BertScore(weights / "bertscore"), "the heart is large . " * 400
    (alone,) = metric.score(PAIRS[:1]).values["bertscore"]
    values = metric.score([*PAIRS, TextPair("4", "mild edema " * 40, "no"), TextPair("5", long, long)]).values
    assert values["bertscore"][0] == pytest.approx(alone, abs=1e-5)
    assert values["bertscore"][4] == pytest.approx(1.0, abs=1e-4)


def test_radgraph_loads_local_files_alone_and_prints_nothing(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metric = RadGraph(load_radgraph(weights / "radgraph"))
    capsys.readouterr()
    scored = metric.score(
        [TextPair("1", "The heart is large.", "the heart is large."), TextPair("2", "", "clear lungs")]
    )
    graph = scored.details[0]["candidate"]
    assert graph
    assert all(line.split(" (")[0] in "the heart is large ." for line in graph)
    assert scored.values["rg_e"] == [1.0, 0.0]
    assert scored.values["rg_er"] == [1.0, 0.0]
    assert capsys.readouterr().out == ""


def test_radcliq_shares_results_of_its_parts(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics: tuple[type[Metric], ...] = (RadGraph, BertScore, CheXbert)
    spies = [create_autospec(metric.score, side_effect=metric.score) for metric in metrics]
    for metric, spy in zip(metrics, spies, strict=True):
        monkeypatch.setattr(metric, "score", spy)
    names = ["radgraph", "chexbert", "radcliq"]
    result = evaluate(PAIRS, names, weights=[weights], out=tmp_path)
    assert [spy.call_count for spy in spies] == [1, 1, 1]
    parts = [row["details"] for _, row in read_jsonl(tmp_path / "metrics" / "radcliq.jsonl")]
    for name in ("radgraph_f1", "chexbert_similarity"):
        assert [row[name] for row in parts] == list(result.values[name])


def entities_of(*items: tuple[str, Sequence[float]]) -> Entities:
    types = np.array([TYPES.index(kind) for kind, _ in items])
    return Entities(tuple(kind.lower() for kind, _ in items), types, np.array([vector for _, vector in items], float))


def test_score_is_the_mean_of_the_best_cosines_weighted_by_type_in_both_directions() -> None:
    """Nearest entities at cosines 0.8 (opposite findings) and 1.0; values of the package for these vectors.

    By hand: (0.8 x 0.8717 x 0.5431 + 1 x 0.2856) / (0.5431 + 0.2856) = 0.8016, and with the weight 0.1655 of the other
    direction 0.8890.
    """
    candidate = entities_of(("ABNORMALITY", (1, 0)), ("ANATOMY", (0, 1)))
    reference = entities_of(("NON-ABNORMALITY", (0.8, 0.6)), ("ANATOMY", (0, 1)))
    (forward, matches), (backward, _) = match_entities(candidate, reference), match_entities(reference, candidate)
    assert forward == pytest.approx(0.8016399167)
    assert backward == pytest.approx(0.8889711239)
    first = "abnormality (ABNORMALITY) matches non-abnormality (NON-ABNORMALITY), similarity"
    same = "anatomy (ANATOMY) matches anatomy (ANATOMY), similarity 1.00"
    assert matches == [f"{first} 0.70, opposite", same]
    assert harmonic_mean(forward, backward) == pytest.approx(0.8430499040)
    assert match_entities(candidate, reference, penalty=0)[1] == [f"{first} 0.00, opposite", same]


@pytest.mark.parametrize(("kind", "other", "is_opposite"), VALUES["opposites"])
def test_opposite_findings_are_an_affirmed_and_a_denied_one(kind: str, other: str, is_opposite: bool) -> None:
    _, (match,) = match_entities(entities_of((kind, (1, 0))), entities_of((other, (1, 0))))
    assert match.endswith("opposite") == is_opposite


@pytest.mark.parametrize(("labels", "spans"), VALUES["spans"])
def test_entities_begin_with_a_label_b(labels: str, spans: list[list[Any]]) -> None:
    assert list(map(list, decode_spans(labels.split()))) == spans


def test_entities_and_embeddings_are_those_of_the_models(weights: Path) -> None:
    """Read them again with transformers, one sentence and one entity at a time."""
    from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

    folder = weights / "ratescore"
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "ner"))
    model = AutoModelForTokenClassification.from_pretrained(str(folder / "ner")).eval()
    expected = []
    for sentence in ("there is a small right effusion.", "the heart is large."):
        with torch.no_grad():
            best = model(**tokenizer(sentence, return_tensors="pt")).logits[0].argmax(dim=1).tolist()[1:-1]
        tokens = tokenizer.tokenize(sentence)
        for start, stop, kind in decode_spans([model.config.id2label[label] for label in best]):
            expected.append((tokenizer.convert_tokens_to_string(tokens[start:stop]).strip(), TYPES.index(kind)))
    # The full text is read among others, in a batch with padding.
    entities = RaTEScore(weights / "ratescore").read(
        [pair.reference for pair in ENTITY_PAIRS] + [ENTITY_PAIRS[0].candidate]
    )[-1]
    assert len(expected) > 1
    assert list(zip(entities.texts, entities.types.tolist(), strict=True)) == expected
    encode, encoder = (loader.from_pretrained(str(folder / "encoder")) for loader in (AutoTokenizer, AutoModel))
    with torch.no_grad():
        hidden = encoder.eval()(**encode(entities.texts[0], return_tensors="pt")).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(entities.embeddings[0], hidden / np.linalg.norm(hidden), rtol=1e-4, atol=1e-5)


def test_scores_have_the_matched_entities_as_details(weights: Path) -> None:
    metric = RaTEScore(weights / "ratescore")
    scored = metric.score(ENTITY_PAIRS)
    candidate, reference = metric.read([ENTITY_PAIRS[0].candidate, ENTITY_PAIRS[0].reference])
    expected = harmonic_mean(match_entities(candidate, reference)[0], match_entities(reference, candidate)[0])
    values = scored.values["ratescore"]
    assert values[:3] == [pytest.approx(expected), pytest.approx(1.0), 0.0]
    assert np.isnan(values[3])
    assert scored.failures == {3: "neither report has a medical entity"}
    assert scored.counts == {"ratescore_without_entities": 2}
    assert [line.split(" (")[0] for line in scored.details[0]["candidate"]] == list(candidate.texts)
    assert scored.details[2]["candidate"] == []
    assert scored.details[2]["reference"]
    pairs = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in ENTITY_PAIRS]
    options = {"weights": [weights], "bootstrap": 0}
    published = evaluate(pairs, ["ratescore"], compat=["rexrank"], **options)
    assert list(published.scores) == ["ratescore.rexrank"]
    assert list(published.values["ratescore.rexrank"]) == [*values[:2], 0.5, 0.5]
    assert published.failures == [{}] * 4
    with raises("metric_args.ratescore.penalty: invalid-option"):
        evaluate(pairs, ["ratescore"], metric_args={"ratescore": {"penalty": 2}}, **options)


def change_file(path: Path, name: str, value: Any) -> None:
    """Change a tensor or label in a file; a number of zeros stands for a tensor, and null removes it."""
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        content["id2label"][name] = value
        path.write_text(json.dumps(content))
        return
    is_checkpoint = path.suffix == ".pth"
    content = torch.load(path, weights_only=True) if is_checkpoint else safetensors.load_file(path)
    tensors = content["model_state_dict"] if is_checkpoint else content
    tensors[name] = torch.zeros(value) if isinstance(value, int) else value
    if value is None:
        del tensors[name]
    if is_checkpoint:
        torch.save(content, path)
    else:
        safetensors.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(("metric", "file", "change", "error"), VALUES["damages"])
def test_a_folder_with_a_damaged_or_another_model_is_refused(
    weights: Path, tmp_path: Path, metric: str, file: str, change: str | dict[str, Any] | None, error: str
) -> None:
    shutil.copytree(weights / metric, tmp_path / metric)
    path = tmp_path / metric / file
    if change is None:
        path.rename(tmp_path / "elsewhere")
    elif isinstance(change, str):
        path.write_text(change)
    else:
        change_file(path, *next(iter(change.items())))
    with raises(error) as caught:
        LOADERS[metric](tmp_path / metric)
    assert str(tmp_path / metric) in str(caught.value)
