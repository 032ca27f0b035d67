"""Weights of the true layout at a small size, written by the tests that load them, and a metric without any."""

import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from radfact.metrics.protocol import Metric, MetricResult
from radfact.records import Pair

_TEXT = "the heart is large big lungs are clear there a small left right pleural effusion no pneumothorax mild edema"
WORDS = [*_TEXT.split(), ".", ","]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
FILES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CHEXBERT, SMALL = FILES["chexbert"], FILES["small"]


def fixed_metric(name: str, values: list[float]) -> Metric:

    def score(_: Metric, pairs: Sequence[Pair]) -> MetricResult:
        return MetricResult({name: values[: len(pairs)]})

    return type("FixedMetric", (Metric,), {"name": name, "scores": {name: "higher"}, "score": score})()


def write_wordnet(folder: Path) -> Path:
    """WordNet in NLTK's layout with one noun synset of two lemmas, `bosom` and `chest`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES["wordnet"].items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def write_chexbert(folder: Path) -> Path:
    """`chexbert.pth` with the published names (`module.bert...`, `module.linear_heads.0...`) and `vocab.txt`."""
    import torch
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    # A wide range, so that texts differ.
    config = BertConfig(vocab_size=len(VOCABULARY), **CHEXBERT, initializer_range=0.5)
    weights = {f"module.bert.{name}": value for name, value in BertModel(config).state_dict().items()}
    weights["module.bert.embeddings.position_ids"] = torch.arange(512)[None]
    for head in range(14):
        weights[f"module.linear_heads.{head}.weight"] = torch.randn(4 if head < 13 else 2, 64)
        weights[f"module.linear_heads.{head}.bias"] = torch.randn(4 if head < 13 else 2)
    torch.save({"epoch": 1, "model_state_dict": weights}, folder / "chexbert.pth")
    return folder


def write_distilroberta(folder: Path) -> Path:
    """A RoBERTa of six layers with a byte-level vocabulary, as transformers writes it."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator([" ".join(WORDS)], vocab_size=320, special_tokens=special)
    trained.save_model(str(folder))
    RobertaTokenizer.from_pretrained(str(folder)).save_pretrained(str(folder))
    torch.manual_seed(0)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    sizes = SMALL | {"vocab_size": len(vocabulary), "num_hidden_layers": 6, "max_position_embeddings": 514}
    config = RobertaConfig(**sizes, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    RobertaModel(config).save_pretrained(folder)
    return folder


def write_radgraph(folder: Path) -> Path:
    """The model's configuration, vocabulary, weights and encoder, as the library radgraph takes them, but small."""
    import torch
    from radgraph import radgraph as library
    from transformers import BertConfig, BertModel, BertTokenizer

    from radfact.metrics.classical.radgraph import patch_tokenizers

    (folder / "encoder").mkdir(parents=True)
    (folder / "vocabulary").mkdir()
    (folder / "encoder" / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    bert = BertConfig(vocab_size=len(VOCABULARY), **SMALL)
    BertModel(bert).save_pretrained(folder / "encoder")
    BertTokenizer(str(folder / "encoder" / "vocab.txt")).save_pretrained(folder / "encoder")
    for name, labels in (("ner", ("Observation", "Anatomy")), ("relation", ("located_at", "modify"))):
        lines = "".join(f"{label}\n" for label in ("", *labels))
        (folder / "vocabulary" / f"radgraph__{name}_labels.txt").write_text(lines, encoding="utf-8")
    (folder / "vocabulary" / "non_padded_namespaces.txt").write_text("*labels\n*tags\n", encoding="utf-8")

    config = deepcopy(FILES["radgraph"])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    patch_tokenizers()
    encoder = library.token_embedders.PretrainedTransformerMismatchedEmbedder(str(folder / "encoder"), max_length=512)
    made = library.dygie.DyGIE(
        vocab=library.Vocabulary.from_files(str(folder / "vocabulary"), None, None),
        embedder=library.text_field_embedders.BasicTextFieldEmbedder({"bert": encoder}),
        **{
            name: library.DotMap(value) if isinstance(value, dict) else value
            for name, value in config["model"].items()
            if name not in ("type", "initializer", "module_initializer", "embedder")
        },
    )
    torch.save(made.state_dict(), folder / "weights.th")
    return folder


def write_ratescore(folder: Path) -> Path:
    """`ner`, a DeBERTa that labels tokens, and `encoder`, an MPNet, as transformers writes them, but small."""
    import torch
    import transformers as library

    kinds = ("ABNORMALITY", "NON-ABNORMALITY", "DISEASE", "NON-DISEASE", "ANATOMY")
    labels = [*(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"), "O"]
    special = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")]
    letters = sorted(set("".join(WORDS)))
    pieces = [*special, ("▁", -4.0), *((f"▁{word}", -2.0) for word in WORDS), *((letter, -6.0) for letter in letters)]
    ner = folder / "ner"
    library.DebertaV2Tokenizer(vocab=list(dict(pieces).items()), unk_id=3).save_pretrained(ner)
    torch.manual_seed(6)
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    config = library.DebertaV2Config(vocab_size=len(pieces), **SMALL, **FILES["ratescore"], **names)
    classifier = library.DebertaV2ForTokenClassification(config)
    # Smaller logits of "I-" and "O", so that several entities begin in a sentence.
    classifier.classifier.weight.data[1::2] /= 4
    classifier.classifier.weight.data[-1] /= 4
    classifier.save_pretrained(ner)
    encoder = folder / "encoder"
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>", *WORDS]
    library.MPNetTokenizer(vocab={token: index for index, token in enumerate(tokens)}).save_pretrained(encoder)
    sizes = library.MPNetConfig(vocab_size=len(tokens), **SMALL, max_position_embeddings=64, initializer_range=0.5)
    library.MPNetModel(sizes).save_pretrained(encoder)
    return folder
