"""Metrics as rewards: TRL's signature, weights, directions, and what has no score."""

import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import yaml
from error_checks import raises

from radfact.errors import InputError, RunError
from radfact.metrics.protocol import Metric, MetricResult
from radfact.records import Box, Pair, Sentence
from radfact.rewards import load_reward, make_reward
from radfact.statistics.bootstrap import Direction


class Lengths(Metric):
    """The length of a candidate, and its distance from the reference's; an empty candidate has neither."""

    name = "lengths"
    scores: Mapping[str, Direction] = {"length": "higher", "length_off": "lower"}

    def __init__(self) -> None:
        self.calls: list[int] = []

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        self.calls.append(len(pairs))
        own = [float(len(pair.candidate)) or math.nan for pair in pairs]
        off = [abs(length - len(pair.reference)) for length, pair in zip(own, pairs, strict=True)]
        return MetricResult({"length": own, "length_off": off})


class LengthOff(Lengths):
    name = "length_off"
    scores: Mapping[str, Direction] = {"length_off": "lower"}


def changed_lengths(**attributes: Any) -> Metric:
    metric: Metric = type("Changed", (Lengths,), attributes)()
    return metric


class Unscored(Lengths):
    """A metric whose model gave no answer for the first pair, and that has no value for the others."""

    reads = "sentences"
    worst_values: ClassVar[dict[str, float]] = {"length": 0.0}
    box_scores = frozenset({"length_off"})

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        values = [math.nan] * len(pairs)
        return MetricResult({"length": values, "length_off": values}, failures={0: "no answer"})


CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("metric_values.yaml").read_text("utf-8"))
LENGTH = (Lengths(), "length")
BOX = (Box(x_min=0.1, y_min=0.1, x_max=0.4, y_max=0.4),)


def test_plain_and_conversational_completions_have_equal_rewards_from_one_batch() -> None:
    metric = Lengths()
    reward = make_reward((metric, "length"), (metric, "length_off"), weights=[1, 1])
    plain = reward(["ab", "abc"], ground_truth=["x", "y"])
    assert metric.calls == [2]
    conversations = [[{"role": "assistant", "content": text}] for text in ("ab", "abc")]
    assert plain == reward(conversations, ground_truth=["x", "y"], prompts=["p", "p"]) == [2.0 - 1, 3.0 - 2]


def test_scores_that_are_better_when_lower_are_negated() -> None:
    reward = make_reward(LENGTH, LengthOff(), weights=[1, 10], column="report")
    assert reward(["abc"], report=["a"]) == [3.0 - 10 * 2]
    with pytest.raises(InputError, match="'report'"):
        reward(["a"], ground_truth=["a"])


UNREADABLE = [*CASES["wordless"], *CASES["unreadable"]]


@pytest.mark.parametrize(
    ("score", "empty"),
    [
        *((name, 0.0) for name in ("rouge_l", "logical_f1", "logical_precision", "logical_recall", "findings_f1")),
        *((name, 0.0) for name in ("findings", "findings_precision", "findings_attribute_accuracy")),
        ("findings_errors", -1.4),
    ],
)
def test_an_unreadable_completion_is_as_bad_as_an_empty_one(score: str, empty: float) -> None:
    pytest.importorskip("sacrebleu")
    reward = make_reward(score, judge="offline")
    reference = "There is a large heart. Small left effusion."
    nonsense = ["asdf", "qwerty zxcv", "1"]
    assert reward(UNREADABLE, ground_truth=[reference] * len(UNREADABLE)) == [pytest.approx(empty)] * len(UNREADABLE)
    *rewards, best, last = reward([*nonsense, "There is cardiomegaly.", "..."], ground_truth=[reference] * 5)
    assert [*rewards, last] == [pytest.approx(empty)] * 4
    assert (best or 0.0) > empty
    assert reward(["The heart is large."], ground_truth=["心影增大"]) == [None]


def test_a_completion_without_any_sentence_is_as_bad_as_an_empty_one() -> None:
    reward = make_reward("logical_f1", "logical_precision", judge="offline")
    reports = ["Recommend chest CT.", "The heart is large.", ""]
    expected = {"The heart is large.": [0.0, 2.0, 0.0], "Recommend CT.": [None] * 3, "": [None] * 3}
    for reference, rewards in expected.items():
        assert reward(reports, ground_truth=[reference] * 3) == rewards
    references = ["", "nan", None, math.nan, "...", []]
    assert make_reward("rouge_l")(["a"] * 6 + [""], ground_truth=[*references, "a"]) == [None] * 6 + [0.0]
    missing: Any = None
    pairs = [Pair("0", missing, "a"), Pair("1", "a", missing), Pair("2", "a", "a")]
    assert [reward.total for reward in load_reward("rouge_l")(pairs)] == [0.0, None, 1.0]


def test_where_the_metric_failed_there_is_no_reward() -> None:
    assert make_reward((Unscored(), "length"))(["", "", "a"], ground_truth=["a", "a", "a"]) == [None, 0.0, None]
    pairs = [Pair(name, "Mass.", [Sentence(text="Mass.", boxes=BOX)]) for name in "ab"]
    assert [reward.total for reward in load_reward((Unscored(), "length_off"))(pairs)] == [None, 0.0]


def test_a_metric_may_return_none_for_a_missing_value() -> None:
    values: list[Any] = [None, 2.0, math.nan]
    metric = changed_lengths(score=lambda *_: MetricResult({"length": values, "length_off": values}))
    assert make_reward((metric, "length"))(["a"] * 3, ground_truth=["a"] * 3) == [None, 2.0, None]


def test_metrics_are_named_as_on_the_command_line() -> None:
    pytest.importorskip("sacrebleu")
    reward = make_reward("bleu_2", "lateral_mentions", weights=[1, -1])
    assert reward.__name__ == "bleu_2_and_lateral_mentions"
    reports = ["The heart is large.", "No."]
    same, other = make_reward("bleu_2")(reports[:1] * 2, ground_truth=reports)
    assert same == pytest.approx(100)
    assert other == pytest.approx(10, abs=10)


@pytest.mark.parametrize(
    ("metric", "options", "score"),
    [
        ("radfact", {"judge": "offline"}, "logical_f1"),
        ("bleu", {}, "bleu_2"),
        (changed_lengths(main_scores=("length_off",)), {}, "length_off"),
    ],
)
def test_the_reward_of_a_metric_is_its_main_score(metric: Any, options: dict[str, Any], score: str) -> None:
    pytest.importorskip("sacrebleu")
    assert make_reward(metric, **options).__name__ == score


def test_grounded_references_are_converted_to_sentences() -> None:
    reference = [{"text": "ab", "boxes": None}, {"text": "c", "boxes": []}]
    assert make_reward(LengthOff())(["ab c"], ground_truth=[reference]) == [0.0]


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((LENGTH,), {"weights": [1, 2]}, "weights: invalid-option"),
        ((LENGTH,), {"weights": [math.nan]}, "weights: invalid-option"),
        ((("radfact", "spatial_precision"),), {"judge": "offline"}, "metrics: invalid-option"),
        ((Lengths(),), {}, "metrics: invalid-option"),
        ((LengthOff,), {}, "metrics: invalid-plugin"),
        (((Lengths(), "width"),), {}, "metrics: invalid-option"),
        (((changed_lengths(dataset_scores=frozenset({"length"})), "length"),), {}, "metrics: invalid-option"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple[Any, ...], options: dict[str, Any], error: str) -> None:
    with raises(error):
        make_reward(*arguments, **options)


@pytest.mark.slow
def test_three_steps_of_grpo(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<end>", "heart", "is", "large", "no", "effusion", "."]
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes, **tokens))
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    rewards: list[list[float | None]] = []
    make = make_reward(LENGTH, LengthOff(), weights=[1, 0.5])

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rewards.append(make(completions, **columns))
        return rewards[-1]

    rows = [{"prompt": "heart is", "ground_truth": "large ."}, {"prompt": "no", "ground_truth": "effusion ."}]
    sampling = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 6}
    quiet = {"report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "disable_tqdm": True}
    GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path), max_steps=3, learning_rate=1e-2, **sampling, **quiet),
        train_dataset=datasets.Dataset.from_list(rows * 8),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>"),
    ).train()
    assert len(rewards) == 3
    assert len({value for values in rewards for value in values}) > 1
    assert not torch.equal(before, model.model.layers[0].mlp.up_proj.weight)


def test_a_metric_that_fails_is_named() -> None:
    failing = changed_lengths(score=Mock(side_effect=KeyError("a")))
    with pytest.raises(RunError, match="lengths fails with KeyError"):
        make_reward((failing, "length"))(["a"], ground_truth=["a"])


def test_a_reward_can_be_sent_to_another_process() -> None:
    reward = pickle.loads(pickle.dumps(make_reward("rouge_l", compat="coco")))
    assert (reward.__name__, reward(["clear"], ground_truth=["clear"])) == ("rouge_l.coco", [1.0])


def test_scores_of_boxes_count_unless_neither_report_has_any() -> None:
    plain = [Sentence(text="There is a pleural effusion.", boxes=None)]
    located = [Sentence(text="There is a pleural effusion.", boxes=BOX)]
    reports = [(located, located), (plain, located), (located, plain), (plain, plain)]
    pairs = [Pair(str(index), candidate, reference) for index, (candidate, reference) in enumerate(reports)]
    rewards = load_reward("logical_f1", "spatial_f1", weights=[0.5, 1.5], judge="offline")(pairs)
    # A report without boxes does not escape the score; of two such reports, logical F1 has the weight of both.
    assert [reward.total for reward in rewards] == [2.0, 0.5, 0.5, 2.0]
    assert [reward.scores["spatial_f1"] for reward in rewards] == [1.0, 0.0, 0.0, None]
