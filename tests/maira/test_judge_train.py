"""A language model trained as a judge and queried like any judge."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_judge
import torch
from error_checks import raises
from test_train import Interrupted, interrupt_at, is_same
from tiny_judge import DATA, TEMPLATE, samples, texts, train_config, train_judge, write_tiny_model
from tiny_runs import Command, metrics
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from maira.judge.dataset import NO_IMAGES, encode_chat
from maira.judge.run_config import read_judge_config
from maira.judge.samples import ChatMessage, ChatSample, TrainingExample
from maira.judge.training import JudgeLossModel, check_packing, stops
from maira.train.components import gather_weights
from maira.train.data.packing import EncodedSample, StepTotals, collate
from radfact.errors import InputError, RunError
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt

LORA = {"lora": {"rank": 4, "alpha": 8}}
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "judges"


@pytest.fixture(scope="module")
def examples() -> list[TrainingExample]:
    return tiny_judge.example_set()


@pytest.fixture(scope="module")
def data(examples: list[TrainingExample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.jsonl"
    tiny_judge.write_samples(path, samples(examples))
    return path


@pytest.fixture(scope="module")
def model(examples: list[TrainingExample], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), texts(examples))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


@pytest.mark.slow
def test_a_tiny_model_trained_on_a_few_hundred_pairs_beats_the_constant_answer(tmp_path: Path) -> None:
    folder, held_out = tiny_judge.train_tiny_judge(tmp_path)
    labeled = load_labeled_queries(held_out)
    entailed = sum(query.status == "entailment" for query in labeled) / len(labeled)
    result = check_judge(LLMJudge("tiny", tiny_judge.ask_folder(folder), judge_prompt(Path("none"))), labeled)
    assert result.accuracy > max(entailed, 1 - entailed) + 0.2


def test_an_interrupted_run_resumes_to_the_same_model(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_judge(train_config(model, data, tmp_path / "whole"))
    interrupt_at(monkeypatch, 2)
    with pytest.raises(Interrupted):
        train_judge(train_config(model, data, tmp_path / "parts"))
    monkeypatch.undo()
    train_judge(train_config(model, data, tmp_path / "parts"))
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    assert is_same(weights(tmp_path / "parts" / "checkpoint"), weights(tmp_path / "whole" / "checkpoint"))


def test_adapters_are_validated_and_merged(data: Path, model: Path, tmp_path: Path) -> None:
    validation = {"sources": [{"file": data, "split": "heldout"}], "every": 2, "samples": 8}
    config = train_config(model, data, tmp_path, passes=16, validation=validation, **LORA)
    folder = train_judge(config)
    before, after = weights(model), weights(folder)
    changed = {name.rsplit(".", 2)[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
    assert "loss/entailment" in metrics(tmp_path)[-1]


@pytest.mark.parametrize("changes", [{}, LORA])
@pytest.mark.slow
def test_sharded_tied_embeddings_stay_tied(
    changes: dict[str, Any], data: Path, examples: list[TrainingExample], tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tied", texts(examples), tie_word_embeddings=True)
    alone = train_judge(train_config(model, data, tmp_path / "one", **changes))
    sharded = train_config(model, data, tmp_path / "two", parallel="fsdp", **changes)
    options = sharded.model_dump(mode="json", exclude_unset=True)
    command = Command(tmp_path / "said", 2, command="judge-train", **options)
    assert command.end() == [0, 0], command.said
    ours, theirs = weights(tmp_path / "two" / "checkpoint"), weights(alone)
    assert torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"])
    # On the mean: where a gradient is all rounding, Adam makes steps of it.
    assert max(float((ours[name] - weight).abs().mean()) for name, weight in theirs.items()) < 1e-5
    losses = [[row["loss"] for row in metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.parametrize("changes", [{}, LORA])
def test_weights_missing_from_the_model_are_an_error(
    changes: dict[str, Any], data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renamed(*arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        return {f"inner.{name}": weight for name, weight in gather_weights(*arguments, **options).items()}

    monkeypatch.setattr("maira.judge.training.gather_weights", renamed)
    with pytest.raises(RunError, match="trained weights would be lost"):
        train_judge(train_config(model, data, tmp_path, passes=16, **changes))
    assert not (tmp_path / "checkpoint").exists()


def chat(answer: str = "yes", sample_id: str = "one") -> ChatSample:
    messages = (ChatMessage(role="user", content="Is it?"),)
    return ChatSample(sample_id=sample_id, task="vert", messages=messages, answer=answer)


def test_the_loss_covers_the_answer_and_its_end_token_only(model: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    ids, prompt = encode_chat(chat("Yes."), tokenizer, stops(AutoModelForCausalLM.from_pretrained(model), tokenizer))
    assert tokenizer.decode(ids[:prompt]) == "<|user|>Is it?<|end|>\n<|assistant|>"
    assert tokenizer.decode(ids[prompt:]) == "Yes.<|end|>"


@pytest.mark.parametrize(("old", "new", "wrong"), DATA["misaligned templates"])
def test_a_misaligned_chat_template_is_an_error_naming_the_sample(old: str, new: str, wrong: str, model: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE.replace(old, new)
    with pytest.raises(InputError, match=f"sample 'one': .*{wrong}"):
        encode_chat(chat(), tokenizer, frozenset([tokenizer.eos_token_id]))


def test_losses_do_not_depend_on_how_samples_are_packed(model: Path, examples: list[TrainingExample]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    judge = JudgeLossModel(AutoModelForCausalLM.from_pretrained(model)).eval()
    encoded = []
    for sample in samples(examples)[:3]:
        ids, prompt = encode_chat(sample, tokenizer, stops(judge.model, tokenizer))
        encoded.append(EncodedSample(sample.sample_id, sample.task, ids, prompt, NO_IMAGES))

    def losses(rows: list[list[EncodedSample]]) -> list[float]:
        return [value for row in rows for value in judge(collate(row, StepTotals(1, 1), 0, 8)).per_sample.tolist()]

    assert losses([encoded]) == pytest.approx(losses([[one] for one in encoded]), abs=1e-3)


def test_a_model_that_mixes_samples_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(model)
    check_packing(network, model)
    monkeypatch.setattr("maira.train.attention.packed_kwargs", lambda *_: {})
    with pytest.raises(InputError, match="packed row"):
        check_packing(network, model)


def test_configs_match_the_papers() -> None:
    green, vert, entailment = (read_judge_config(CONFIGS / f"{name}.yaml") for name in ("green", "vert", "entailment"))
    assert {config.validation.sources[0].split for config in (green, vert, entailment)} == {"heldout"}
    optimizer = green.learning_rate, green.warmup, green.weight_decay, green.global_batch, green.epochs, green.lora
    assert optimizer == (1e-4, 0.05, 0.1, 2048, 12, None)
    second = read_judge_config(CONFIGS / "green-modalities.yaml")
    assert (second.learning_rate, second.global_batch, second.epochs) == (1e-4, 80, 8)
    assert vert.lora is not None
    adapters = vert.lora.rank, vert.lora.alpha, vert.lora.quantize, vert.learning_rate
    assert adapters == (32, 64, "nf4", 2e-4)


def test_unusable_data_is_an_error_without_an_output_folder(model: Path, data: Path, tmp_path: Path) -> None:
    tiny_judge.write_samples(tmp_path / "twice.jsonl", [chat(), chat()])
    damaged = [line if number != 1 else "{\n" for number, line in enumerate(data.open(encoding="utf-8"))]
    (tmp_path / "damaged.jsonl").write_text("".join(damaged), encoding="utf-8")
    short = write_tiny_model(tmp_path / "short", ["Is it?"], max_position_embeddings=16)
    other = GPT2LMHeadModel(GPT2Config(vocab_size=len(AutoTokenizer.from_pretrained(model)), n_embd=8, n_head=1))
    shutil.copytree(model, tmp_path / "gpt2")
    other.save_pretrained(tmp_path / "gpt2")
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"model": tmp_path}, "no config.json"),
        ({"model": tmp_path / "gpt2"}, "no intermediate_size"),
        ({"model": short}, r"at most 16 tokens.*\(task entailment\)"),
        ({"tasks": {"green": 1}}, "'train' .* green"),
        ({"train": tmp_path / "twice.jsonl"}, r"twice\.jsonl:2: sample_id: duplicate"),
        ({"train": tmp_path / "damaged.jsonl"}, r"damaged\.jsonl:2: "),
        ({"token_budget": 20}, "^token_budget: "),
    ]
    for changes, wrong in refusals:
        with pytest.raises(InputError, match=wrong):
            train_judge(train_config(changes.pop("model", model), data, tmp_path / "out", **changes))
        assert not (tmp_path / "out").exists()


def test_judge_adapters_have_no_maira_specific_parts() -> None:
    with raises("the command line: lora.added_tokens: unknown-field"):
        read_judge_config(CONFIGS / "vert.yaml", ["lora.added_tokens=true"])
