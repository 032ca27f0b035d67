"""Metrics that run a model, on small random weights of the true layout."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest
from error_checks import raises, raises_code
from metric_files import write_chexbert, write_distilroberta, write_radgraph

from radfact.api import evaluate
from radfact.errors import ErrorCode
from radfact.io.jsonl import read_jsonl
from radfact.metrics.classical.bertscore import LAYER, BertScore
from radfact.metrics.classical.chexbert import CLASSES, LABELS, CheXbert, Labeler
from radfact.metrics.classical.radgraph import RadGraph, load_radgraph
from radfact.metrics.protocol import Metric
from radfact.records import TextPair

torch = pytest.importorskip("torch")

PAIRS = [
    TextPair("1", "The heart is large.", "The heart is big. No pleural effusion."),
    TextPair("2", "The lungs are clear.", "The lungs are clear."),
    TextPair("3", "", "no pneumothorax"),
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    write_chexbert(folder / "chexbert")
    write_distilroberta(folder / "bertscore")
    write_radgraph(folder / "radgraph")
    return folder


def test_labels_and_embeddings_are_those_of_the_checkpoint(weights: Path) -> None:
    """Compute them again from the file: the first hidden state of BERT, and the heads on it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    tensors = torch.load(weights / "chexbert" / "chexbert.pth", weights_only=True)["model_state_dict"]
    bert = {name.removeprefix("module.bert."): tensor for name, tensor in tensors.items() if ".bert." in name}
    del bert["embeddings.position_ids"]
    words, width = bert["embeddings.word_embeddings.weight"].shape
    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=2, num_attention_heads=1, intermediate_size=96
    )
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("linear_heads.13.bias", None),
        ("bert.encoder.layer.0.intermediate.dense.bias", None),
        *(("bert.embeddings.word_embeddings.weight", value) for value in ([[0.0]], torch.zeros(3))),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(name: str, value: object, weights: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(weights / "chexbert" / "chexbert.pth", weights_only=True)
    checkpoint["model_state_dict"][f"module.{name}"] = value
    if value is None:
        del checkpoint["model_state_dict"][f"module.{name}"]
    torch.save(checkpoint, tmp_path / "chexbert.pth")
    with raises("chexbert.pth: model_state_dict: invalid-format"):
        CheXbert(tmp_path)


@pytest.mark.parametrize(
    ("load", "files", "code", "file"),
    [
        (CheXbert, {"chexbert.pth": b""}, ErrorCode.FILE_UNREADABLE, "chexbert.pth"),
        (CheXbert, {"chexbert.pth": b"no checkpoint"}, ErrorCode.FILE_UNREADABLE, "chexbert.pth"),
        (load_radgraph, {"config.json": b"{}"}, ErrorCode.INVALID_FORMAT, "config.json"),
        (BertScore, {"config.json": b"{}"}, ErrorCode.INVALID_FORMAT, ""),
    ],
)
def test_a_folder_without_the_model_is_refused(
    load: Callable[[Path], object], files: dict[str, bytes], code: ErrorCode, file: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with raises_code(code, file=tmp_path / file):
        load(tmp_path)


@pytest.mark.parametrize("name", ["vocabulary/non_padded_namespaces.txt", "vocabulary", "weights.th", "encoder"])
def test_an_incomplete_radgraph_is_refused(weights: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "radgraph"
    shutil.copytree(weights / "radgraph", folder)
    (folder / name).rename(tmp_path / "elsewhere")
    with raises_code(ErrorCode.INVALID_FORMAT, match=re.escape(str(folder)), file=folder):
        load_radgraph(folder)


def test_radcliq_shares_the_results_of_its_parts(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
