"""RaTEScore: its formula on values of the package RaTEScore 0.6.0, and its models at a small size."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from error_checks import raises
from metric_files import write_ratescore

from radfact.api import evaluate
from radfact.errors import ErrorCode, InputError
from radfact.metrics.classical.ratescore import TYPES, Entities, RaTEScore, decode_spans, harmonic_mean, match_entities
from radfact.records import Pair, TextPair

torch = pytest.importorskip("torch")

PAIRS = [
    TextPair("1", "there is a small right effusion. the heart is large.", "large effusion, no pneumothorax."),
    TextPair("2", "the lungs are clear.", "the lungs are clear."),
    TextPair("3", "", "the heart is large. no edema."),
    TextPair("4", "", "."),
]


def entities_of(*items: tuple[str, Sequence[float]]) -> Entities:
    types = np.array([TYPES.index(kind) for kind, _ in items])
    return Entities(tuple(kind.lower() for kind, _ in items), types, np.array([vector for _, vector in items], float))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ratescore(tmp_path_factory.mktemp("weights") / "ratescore")


def test_score_is_the_mean_of_the_best_cosines_weighted_by_type_in_both_directions() -> None:
    """Nearest entities at cosines 0.8 (opposite findings) and 1.0; values of the package for these vectors.

    By hand: (0.8 x 0.8717 x 0.5431 + 1 x 0.2856) / (0.5431 + 0.2856) = 0.8016, and with the weight 0.1655 of the other
    direction 0.8890.
    """
    candidate = entities_of(("ABNORMALITY", (1, 0)), ("ANATOMY", (0, 1)))
    reference = entities_of(("NON-ABNORMALITY", (0.8, 0.6)), ("ANATOMY", (0, 1)))
    forward, backward = match_entities(candidate, reference), match_entities(reference, candidate)
    assert forward.score == pytest.approx(0.8016399167)
    assert backward.score == pytest.approx(0.8889711239)
    assert forward.is_opposite.tolist() == [True, False]
    assert forward.indices.tolist() == [0, 1]
    assert harmonic_mean(forward.score, backward.score) == pytest.approx(0.8430499040)
    assert harmonic_mean(0.0, 0.0) == 0.0
    assert match_entities(candidate, reference, penalty=0).similarities.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "other", "is_opposite"),
    [
        ("DISEASE", "NON-ABNORMALITY", True),
        ("NON-DISEASE", "DISEASE", True),
        ("DISEASE", "ABNORMALITY", False),
        ("NON-DISEASE", "NON-ABNORMALITY", False),
        ("ANATOMY", "NON-DISEASE", False),
    ],
)
def test_opposite_findings_are_an_affirmed_and_a_denied_one(kind: str, other: str, is_opposite: bool) -> None:
    matches = match_entities(entities_of((kind, (1, 0))), entities_of((other, (1, 0))))
    assert matches.is_opposite.tolist() == [is_opposite]


@pytest.mark.parametrize(
    ("labels", "spans"),
    [
        # From the package.
        ("B-A I-A O", [(0, 2, "A")]),
        ("I-A B-A B-C I-A O", [(1, 2, "A"), (2, 4, "C")]),
        ("O I-A I-A B-A O I-A O", [(3, 4, "A")]),
        ("", []),
    ],
)
def test_entities_begin_with_a_label_b(labels: str, spans: list[tuple[int, int, str]]) -> None:
    assert decode_spans(labels.split()) == spans


def test_entities_and_embeddings_are_those_of_the_models(weights: Path) -> None:
    """Read them again with transformers, one sentence and one entity at a time."""
    from transformers import AutoModel, AutoModelForTokenClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(weights / "ner"))
    model = AutoModelForTokenClassification.from_pretrained(str(weights / "ner")).eval()
    expected = []
    for sentence in ("there is a small right effusion.", "the heart is large."):
        with torch.no_grad():
            best = model(**tokenizer(sentence, return_tensors="pt")).logits[0].argmax(dim=1).tolist()[1:-1]
        tokens = tokenizer.tokenize(sentence)
        for start, stop, kind in decode_spans([model.config.id2label[label] for label in best]):
            expected.append((tokenizer.convert_tokens_to_string(tokens[start:stop]).strip(), TYPES.index(kind)))
    # The full text is read among others, in a batch with padding.
    entities = RaTEScore(weights).read([pair.reference for pair in PAIRS] + [PAIRS[0].candidate])[-1]
    assert len(expected) > 1
    assert list(zip(entities.texts, entities.types.tolist(), strict=True)) == expected
    encode, encoder = (loader.from_pretrained(str(weights / "encoder")) for loader in (AutoTokenizer, AutoModel))
    with torch.no_grad():
        hidden = encoder.eval()(**encode(entities.texts[0], return_tensors="pt")).last_hidden_state[0, 0].numpy()
    np.testing.assert_allclose(entities.embeddings[0], hidden / np.linalg.norm(hidden), rtol=1e-4, atol=1e-5)


def test_scores_have_the_matched_entities_as_details(weights: Path) -> None:
    metric = RaTEScore(weights)
    scored = metric.score(PAIRS)
    candidate, reference = metric.read([PAIRS[0].candidate, PAIRS[0].reference])
    expected = harmonic_mean(match_entities(candidate, reference).score, match_entities(reference, candidate).score)
    values = scored.values["ratescore"]
    assert values[:3] == [pytest.approx(expected), pytest.approx(1.0), 0.0]
    assert np.isnan(values[3])
    assert scored.failures == {3: "neither report has a medical entity"}
    assert scored.counts == {"ratescore_without_entities": 2}
    assert [line.split(" (")[0] for line in scored.details[0]["candidate"]] == list(candidate.texts)
    assert scored.details[2]["candidate"] == []
    assert scored.details[2]["reference"]
    pairs = [Pair(pair.sample_id, pair.candidate, pair.reference) for pair in PAIRS]
    options = {"weights": {"ratescore": weights}, "bootstrap": 0}
    published = evaluate(pairs, ["ratescore"], compat=["rexrank"], **options)
    assert list(published.scores) == ["ratescore.rexrank"]
    assert list(published.values["ratescore.rexrank"]) == [*values[:2], 0.5, 0.5]
    assert published.failures == [{}] * 4
    with raises("metric_args.ratescore.penalty: invalid-option"):
        evaluate(pairs, ["ratescore"], metric_args={"ratescore": {"penalty": 2}}, **options)


@pytest.mark.parametrize(
    "name", ["ner/config.json", "ner/model.safetensors", "encoder/tokenizer.json", "labels", "head"]
)
def test_a_folder_with_other_models_is_refused(weights: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ratescore"
    shutil.copytree(weights, folder)
    if name == "labels":
        config = json.loads((folder / "ner/config.json").read_text())
        config["id2label"]["0"] = "B-PERSON"
        (folder / "ner/config.json").write_text(json.dumps(config))
    elif name == "head":
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "ner/model.safetensors")
        del tensors["classifier.weight"]
        save_file(tensors, folder / "ner/model.safetensors", metadata={"format": "pt"})
    else:
        (folder / name).write_bytes(b"{")
    with pytest.raises(InputError) as error:
        RaTEScore(folder)
    assert error.value.code is ErrorCode.INVALID_FORMAT
    assert error.value.file is not None
    assert folder in error.value.file.parents
