"""Training data of judges: pairs, teachers, held-out data, and prompts equal to those of a judge."""

from __future__ import annotations

import csv
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from maira.cli.main import app
from maira.judge.data import make_judge_data
from maira.judge.pairing import PAIRINGS, is_held_out, make_pairs
from maira.judge.rewording import reword
from maira.judge.scores import assess_errors, format_assessment, make_score_examples
from maira.judge.verdicts import balance, make_entailment_examples
from radfact.errors import InputError
from radfact.io.jsonl import read_jsonl
from radfact.judges import load_splitter
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.offline import OfflineJudge
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import Judge
from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.meta.injection.records import InjectedError, InjectedReport, parse_facts
from radfact.metrics.llm.responses.assessment import parse_assessment

SENTENCES = (
    "There is a small left pleural effusion. The heart is mildly enlarged. No pneumothorax.",
    "No pleural effusion. There is a right upper lobe nodule. The heart is normal in size.",
    "Moderate pulmonary edema. No pneumothorax. Small right pleural effusion.",
    "The lungs are clear. No pleural effusion. No pneumothorax.",
    "Left lower lobe consolidation. There is a small left pleural effusion. No pneumothorax.",
)
OFFLINE: dict[str, Judge | None] = {"offline": OfflineJudge()}
ERRORS: dict[str, Judge | None] = {"injected": None}
NO_SHOTS = judge_prompt(Path("none"))
REPORTS = {f"r{n}": f"{SENTENCES[n % 5]} Rib fracture number {n} is old." for n in range(20)}


def test_every_kind_of_pair_is_made_without_duplicates() -> None:
    drafts = dict.fromkeys(REPORTS, "The lungs are clear.")
    pairs = make_pairs(REPORTS, PAIRINGS, drafts=drafts)
    assert {report_pair.pairing for report_pair in pairs} == set(PAIRINGS)
    assert len({report_pair.source_id for report_pair in pairs}) == len(pairs)
    assert len({(report_pair.pair.candidate, report_pair.pair.reference) for report_pair in pairs}) == len(pairs)
    assert all(report_pair.pair.candidate != report_pair.pair.reference for report_pair in pairs)
    assert pairs == make_pairs(REPORTS, PAIRINGS, drafts=drafts)


def test_the_most_similar_report_shares_rare_words() -> None:
    reports = {
        "a": "The heart is large. Old rib fracture.",
        "b": "The heart is normal. Lungs are clear.",
        "c": "The lungs show an old rib fracture.",
        "d": "The heart is  large. Old rib fracture.",
        "e": "The lungs are clear.",
    }
    nearest = {row.source_id: row.pair.candidate for row in make_pairs(reports, ["nearest"])}
    assert (nearest["a"], nearest["e"]) == (reports["c"], reports["b"])


@pytest.mark.slow
def test_similar_reports_need_no_dense_matrix() -> None:
    reports = {f"r{n}": " ".join(f"w{n // 2}x{k}" for k in range(40)) + f" own{n}" for n in range(800)}
    tracemalloc.start()
    nearest = {row.source_id: row.pair.candidate for row in make_pairs(reports, ["nearest"])}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30e6  # reports times words in float32 would take 54e6
    assert all(nearest[key] == reports[f"r{int(key[1:]) ^ 1}"] for key in reports)


def test_more_reports_do_not_move_existing_ones_between_splits() -> None:
    held_out = [is_held_out(f"r{n}", 0.2, 1) for n in range(1000)]
    assert 150 < sum(held_out) < 250
    assert all(is_held_out(f"r{n}", 0.3, 1) for n, is_held in enumerate(held_out) if is_held)


@pytest.mark.parametrize("shots", [None, Path("none")])
def test_entailment_prompts_equal_those_of_the_judge(shots: Path | None) -> None:
    pairs = make_pairs(REPORTS, ["random"], count=1)
    example = make_entailment_examples(pairs, judge_prompt(shots), load_splitter("offline"), OFFLINE).examples[0]
    label: Any = example.label
    backend = MockChatModel(example.answer)
    judge = LLMJudge("m", ChatClient(backend, {"model": "m"}), judge_prompt(shots))
    (verdict,) = judge.judge([label.query])
    assert backend.calls == [example.messages]
    assert getattr(verdict, "status", None) == label.status


def test_held_out_data_are_readable_by_judge_check(tmp_path: Path) -> None:
    written = make_judge_data(
        REPORTS, "entailment", [JudgeOptions(judge="offline")], tmp_path, few_shots=Path("none"), held_out=0.3, count=15
    )
    result = check_judge(OfflineJudge(), load_labeled_queries(written.held_out))
    assert result.n == written.samples["heldout"]
    assert result.accuracy == 1
    rows = [row for _, row in read_jsonl(tmp_path / "samples.jsonl")]
    sides = [{r["source"]["reference"] for r in rows if r["split"] == split} for split in ("train", "heldout")]
    assert sides[0].isdisjoint(sides[1])


def test_held_out_queries_are_not_in_training(tmp_path: Path) -> None:
    alike = {f"a{n}": f"{SENTENCES[n % 5]} {SENTENCES[(n + 1) % 5]}" for n in range(60)}
    make_judge_data(alike, "entailment", [JudgeOptions(judge="offline")], tmp_path, pairings=["nearest"], held_out=0.2)
    rows = [row for _, row in read_jsonl(tmp_path / "samples.jsonl")]
    train, held_out = ([r["messages"][-1] for r in rows if r["split"] == side] for side in ("train", "heldout"))
    assert held_out == []
    assert len(train) > 0


def labels_of(pairings: list[Any], teachers: dict[str, Judge | None]) -> list[Any]:
    """The labels of entailment queries about the reports."""
    pairs = make_pairs(REPORTS, pairings)
    return [e.label for e in make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), teachers).examples]


def test_error_labels_agree_with_the_offline_judge() -> None:
    labels = labels_of(["permuted"], ERRORS)
    assert {label.label for label in labels} == {"entailment", "not_entailment"}
    verdicts: list[Any] = OfflineJudge().judge([label.query for label in labels])
    agree = sum(label.status == verdict.status for label, verdict in zip(labels, verdicts, strict=True))
    assert agree / len(labels) > 0.9


def test_undecided_queries_go_to_the_next_teacher() -> None:
    pairs = make_pairs(REPORTS, ["permuted", "reworded"])
    injected, combined = (
        make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), teachers).examples
        for teachers in (ERRORS, ERRORS | OFFLINE)
    )
    assert {example.teacher for example in combined} == {"injected", "offline"}
    assert [example for example in combined if example.teacher == "injected"] == injected
    assert all(example.paired.injected is not None for example in injected)


def test_paraphrases_give_both_verdicts_for_sentences_that_are_not_copies() -> None:
    labels = [label for label in labels_of(["reworded"], OFFLINE) if label.phrase not in label.reference]
    assert sum(label.label == "entailment" for label in labels) > len(labels) / 4
    assert any(label.label == "not_entailment" for label in labels)


def test_a_paraphrase_states_the_same_or_less() -> None:
    report = "There is a small left pleural effusion. The heart is normal in size. No pneumothorax or consolidation."
    facts = {(fact.concept, fact.present) for fact in parse_facts(report)}
    texts = {reword(report, random.Random(seed)) for seed in range(60)}
    assert len(texts) > 20
    for text in texts:
        assert text is not None
        assert {(fact.concept, fact.present) for fact in parse_facts(text)} <= facts
    without_side = [text for text in texts if text and "left" not in text.lower()]
    assert without_side, "a side is left out at times"
    assert reword("As dictated before.", random.Random(0)) is None


def test_a_balanced_draw_is_half_entailed_with_few_copies_in_training(tmp_path: Path) -> None:
    teachers = [JudgeOptions(judge="injected"), JudgeOptions(judge="offline")]
    make_judge_data(REPORTS, "entailment", teachers, tmp_path, balanced=True, held_out=0.3)
    rows = [row for _, row in read_jsonl(tmp_path / "samples.jsonl")]
    for split in ("train", "heldout"):
        answers = [yaml.safe_load(row["answer"]) for row in rows if row["split"] == split]
        entailed = [answer for answer in answers if answer["status"] == "entailment"]
        assert len(entailed) == len(answers) / 2 > 0
        if split == "train":
            assert sum(answer["phrase"] in answer["evidence"] for answer in entailed) <= len(entailed) / 3


def test_a_balanced_draw_uses_what_is_available() -> None:
    pairs = make_pairs(REPORTS, ["edited"])
    examples: list[Any] = make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), OFFLINE).examples
    copies = [example for example in examples if example.label.phrase in example.label.reference]
    wrong = [example for example in examples if example.label.status != "entailment"]
    assert min(len(copies), len(wrong)) > 0
    assert balance(copies + wrong, 1) == []
    assert len(balance(copies + wrong, 1, few_copies=False)) == 2 * min(len(copies), len(wrong))


def test_injected_errors_give_green_responses() -> None:
    for example in make_pairs(REPORTS, ["permuted"]):
        assert example.injected is not None
        assessment = parse_assessment(format_assessment(assess_errors(example.injected)))
        assert {letter: item.count for letter, item in assessment.significant.items()} == example.injected.counts
        assert not any(item.count for item in assessment.insignificant.values())


@pytest.mark.parametrize(
    ("letter", "original", "modified", "explanation"),
    [
        ("b", "Small left pleural effusion", "No pleural effusion.", "Small left pleural effusion"),
        ("b", "Small left pleural effusion", None, "Small left pleural effusion"),
        ("b", "Cardiomegaly. Small effusion", "Cardiomegaly.", "Small effusion"),
        ("f", "The effusion is unchanged", "The effusion is present.", "The effusion is unchanged"),
        ("a", "No pneumothorax", "There is a small pneumothorax.", "There is a small pneumothorax"),
        ("c", "Left nodule", "Right nodule.", "Right nodule"),
    ],
)
def test_explanations_name_what_is_wrong_or_missing(
    letter: Any, original: str, modified: str | None, explanation: str
) -> None:
    change = InjectedError(category=letter, operation="any", original=original, modified=modified)
    example = InjectedReport(
        sample_id="a",
        source_id="a",
        reference=f"{original}. Clear lungs.",
        candidate=f"{modified or ''} Clear lungs.",
        changes=(change,),
    )
    assessment = parse_assessment(format_assessment(assess_errors(example))).significant
    assert assessment[letter].errors == (explanation,)


def test_vert_targets_have_one_decimal() -> None:
    none = "\n".join(f"({letter}) x: 0." for letter in "abcdef")
    answer = (
        f"[Explanation]:\nSame.\n\n[Clinically Significant Errors]:\n{none}\n\n"
        f"[Clinically Insignificant Errors]:\n{none}\n\n"
        "[Matched Findings]:\n1. Heart\n\n[Overall Accuracy Score]:\n0.87"
    )
    client = mock_client(answer, name="m")
    (examples,) = make_score_examples(make_pairs(REPORTS, ["random"], count=1), "vert", {"m": client}).examples
    assert examples.answer == "0.9"
    assert examples.messages[0][1].startswith("Objective: Evaluate the accuracy of a candidate radiology report")


def test_the_command_writes_pairs_for_meta_agreement_or_warns_that_there_are_none(tmp_path: Path) -> None:
    with (tmp_path / "reports.csv").open("w", encoding="utf-8") as handle:
        csv.writer(handle).writerows([["id", "report"], *REPORTS.items()])
    arguments = ["judge-data", str(tmp_path / "reports.csv"), "--task", "vert", "--teacher", "injected"]
    for share, is_warned in (("0.0001", True), ("0", False), ("0.3", False)):
        result = CliRunner().invoke(app, [*arguments, "--held-out", share, "--out", str(tmp_path / "out")])
        assert result.exit_code == 0, result.output
        assert ("Increase --held-out" in " ".join(result.output.split())) == is_warned
    rows = list(csv.DictReader((tmp_path / "out" / "heldout.csv").open(encoding="utf-8")))
    assert set(rows[0]) == {"id", "reference", "candidate", "expert"}
    assert all(0 <= float(row["expert"]) < 1 for row in rows)


@pytest.mark.parametrize(
    ("task", "teacher", "options", "wrong"),
    [
        ("green", "offline", {}, "no answers for green"),
        ("vert", "injected", {"few_shots": Path("none")}, "leave this out for vert"),
        ("vert", "injected", {"balanced": True}, "leave this out for vert"),
        ("entailment", "injected", {"pairings": ["random"]}, "'permuted' makes such"),
        ("entailment", "injected", {"balanced": True}, "a teacher after injected"),
        ("entailment", "injected", {"base_url": "http://localhost:1"}, "the last teacher, which is"),
        ("entailment", "offline", {"base_url": "http://localhost:1"}, "no language model"),
        ("entailment", "offline", {"pairings": ["drafted"]}, "need a model's drafts"),
    ],
)
def test_conflicting_options_are_refused(
    task: Any, teacher: str, options: dict[str, Any], wrong: str, tmp_path: Path
) -> None:
    teachers = [JudgeOptions(judge=teacher, base_url=options.pop("base_url", None))]
    with pytest.raises(InputError, match=wrong):
        make_judge_data(REPORTS, task, teachers, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
