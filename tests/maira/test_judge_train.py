"""A language model trained as a judge by the loop of all trainings, asked as any judge is."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_judge import TEMPLATE, ask_folder, write_tiny_model
from tiny_runs import metrics, quiet
from transformers import AutoModelForCausalLM, AutoTokenizer

from maira.judge.corpus import encode_chat
from maira.judge.pairing import Paired
from maira.judge.recipe import JudgeRecipe, read_judge_recipe
from maira.judge.samples import ChatMessage, ChatSample, write_samples
from maira.judge.teachers import Taught, held_out_judgements, teach_entailment
from maira.judge.training import JudgeModel, check_packing, stops, train_judge
from maira.train.items import Totals
from maira.train.loop import Run
from maira.train.packing import collate
from radfact.entailment.check import check, load_labelled
from radfact.entailment.llm import LLMJudge, judge_prompt
from radfact.entailment.offline import OfflineJudge
from radfact.errors import InputError
from radfact.files import Pair
from radfact.jsonl import write_json
from radfact.sentences import load_splitter

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "judges"
FINDINGS = ("pneumothorax", "pleural effusion", "consolidation", "nodule", "pulmonary edema", "atelectasis")
OTHERS = (
    *("Cardiomegaly.", "Hiatal hernia.", "Rib fracture.", "Scoliosis.", "Granuloma.", "Emphysema."),
    *("No hiatal hernia.", "No rib fracture.", "No cardiomegaly.", "No scoliosis.", "No granuloma.", "No emphysema."),
)


def lesson() -> list[Taught]:
    """Whether a finding is there, of reports of two findings, by the offline judge."""
    drawn = random.Random(0)
    pairs = []
    for number, (finding, there, said, other) in enumerate(product(FINDINGS, (0, 1), (0, 1), OTHERS)):
        texts = [f"{finding.capitalize()}." if yes else f"No {finding}." for yes in (there, said)]
        reference = f"{texts[0]} {other}" if drawn.random() < 0.5 else f"{other} {texts[0]}"
        pairs.append(Paired(Pair(f"{number}", texts[1], reference), "random", f"{number}"))
    taught = teach_entailment(pairs, judge_prompt(Path("none")), load_splitter("offline"), OfflineJudge()).taught
    return [one for one in taught if "/A" in one.name]


def samples(taught: list[Taught]) -> list[ChatSample]:
    drawn = random.Random(1)
    aside = set(drawn.sample(range(len(taught)), len(taught) // 5))
    return [
        ChatSample(
            sample_id=one.name,
            task="entailment",
            messages=one.messages,
            answer=one.answer,
            split="heldout" if place in aside else "train",
        )
        for place, one in enumerate(taught)
    ]


@pytest.fixture(scope="module")
def taught() -> list[Taught]:
    return lesson()


@pytest.fixture(scope="module")
def data(taught: list[Taught], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.jsonl"
    write_samples(path, samples(taught))
    return path


@pytest.fixture(scope="module")
def model(taught: list[Taught], tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [one.messages[-1].content for one in taught] + [one.answer for one in taught]
    return write_tiny_model(tmp_path_factory.mktemp("model"), texts)


def recipe(model: Path, data: Path, out: Path, **changes: Any) -> JudgeRecipe:
    values: dict[str, Any] = {
        "model": model,
        "train": data,
        "out": out,
        "passes": 24,
        "global_batch": 8,
        "token_budget": 2048,
        "precision": "no",
        "learning_rate": 3e-3,
        "workers": 1,
        "save_every": 2,
        "log_every": 1,
        "trackers": [],
    }
    return JudgeRecipe.model_validate(values | changes)


def test_a_tiny_model_trained_on_a_few_hundred_pairs_beats_the_constant_answer(
    taught: list[Taught], data: Path, model: Path, tmp_path: Path
) -> None:
    made = samples(taught)
    changes: dict[str, Any] = {"passes": None, "epochs": 16, "global_batch": 16, "save_every": 1000, "log_every": 20}
    folder = train_judge(recipe(model, data, tmp_path / "run", **changes), quiet())
    aside = [one for one, sample in zip(taught, made, strict=True) if sample.split == "heldout"]
    write_json(tmp_path / "heldout.json", held_out_judgements(aside))
    labelled = load_labelled(tmp_path / "heldout.json")
    entailed = sum(one.entailed for one in labelled) / len(labelled)
    found = check(LLMJudge("tiny", ask_folder(folder), judge_prompt(Path("none"))), labelled)
    assert found.accuracy > max(entailed, 1 - entailed) + 0.2
