"""Training data of judges: pairs, teachers, held-out data, and prompts equal to those of a judge."""

import csv
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises
from maira_command import maira

from maira.judge.data import make_judge_data, make_rated_data
from maira.judge.pairing import PAIRINGS, SENTENCE_PAIRINGS, is_held_out, make_pairs
from maira.judge.rewording import reword
from maira.judge.scores import assess_errors, format_assessment, make_score_examples
from maira.judge.verdicts import balance, make_entailment_examples
from radfact.errors import InputError
from radfact.io.jsonl import read_json, read_jsonl, write_jsonl
from radfact.judges import load_splitter
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt
from radfact.judges.offline import OfflineJudge
from radfact.judges.options import JudgeOptions
from radfact.judges.protocol import Judge
from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.meta.datasets.layouts import read_ratings
from radfact.meta.injection.records import InjectedError, InjectedReport, parse_facts
from radfact.metrics.llm.green import compute_counts
from radfact.metrics.llm.responses.assessment import parse_assessment
from radfact.metrics.llm.vert import VertTuned
from radfact.records import TextPair

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("judge_data.yaml").read_text("utf-8"))
SENTENCES: list[str] = CASES["sentences"]
OFFLINE: dict[str, Judge | None] = {"offline": OfflineJudge()}
ERRORS: dict[str, Judge | None] = {"injected": None}
PLAIN = ["id", "reference", "candidate", "expert"]
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


@pytest.mark.parametrize("pairing", SENTENCE_PAIRINGS)
def test_sentences_are_shuffled_removed_or_those_of_other_reports(pairing: Any) -> None:
    for pair in (row.pair for row in make_pairs(REPORTS, [pairing])):
        candidate, reference = (str(report).rstrip(".").split(". ") for report in (pair.candidate, pair.reference))
        kept = [sentence for sentence in reference if sentence in candidate]
        holds = {
            "shuffled": sorted(candidate) == sorted(reference) and candidate != reference,
            "shortened": 0 < len(candidate) < len(reference) and candidate == kept,
            "mixed": len(candidate) == len(reference) > len(kept),
        }
        assert holds[pairing], (candidate, reference)


def test_the_most_similar_report_shares_rare_words() -> None:
    reports = CASES["similar reports"]
    nearest = {row.source_id: row.pair.candidate for row in make_pairs(reports, ["nearest"])}
    assert nearest.items() >= {name: reports[other] for name, other in CASES["most similar"].items()}.items()


def test_more_reports_do_not_move_existing_ones_between_splits() -> None:
    held_out = {share: {n for n in range(1000) if is_held_out(f"r{n}", share, 1)} for share in (0.2, 0.3)}
    assert 150 < len(held_out[0.2]) < 250
    assert held_out[0.2] < held_out[0.3]


@pytest.mark.parametrize("shots", [None, Path("none")])
def test_entailment_prompts_equal_those_of_the_judge(shots: Path | None) -> None:
    pairs = make_pairs(REPORTS, ["random"], count=1)
    example = make_entailment_examples(pairs, judge_prompt(shots), load_splitter("offline"), OFFLINE)[0][0]
    label: Any = example.label
    backend = MockChatModel(example.answer)
    judge = LLMJudge("m", ChatClient(backend, {"model": "m"}), judge_prompt(shots))
    (verdict,) = judge.judge([label.query])
    assert backend.calls == [example.messages]
    assert getattr(verdict, "status", None) == label.status


def test_held_out_data_are_readable_by_judge_check(tmp_path: Path) -> None:
    teachers, options = [JudgeOptions(judge="offline")], {"held_out": 0.3, "count": 15}
    written = make_judge_data(REPORTS, "entailment", teachers, tmp_path, few_shots=Path("none"), **options)
    result = check_judge(OfflineJudge(), load_labeled_queries(written.held_out))
    assert result.n == written.samples["heldout"]
    assert result.accuracy == 1
    rows = samples(tmp_path)
    sides = [{r["source"]["reference"] for r in rows if r["split"] == split} for split in ("train", "heldout")]
    assert sides[0].isdisjoint(sides[1])


def test_held_out_queries_are_not_in_training(tmp_path: Path) -> None:
    alike = {f"a{n}": f"{SENTENCES[n % 5]} {SENTENCES[(n + 1) % 5]}" for n in range(60)}
    shares: Any = {"held_out": 0.2, "validation": 0.2}
    make_judge_data(alike, "entailment", [JudgeOptions(judge="offline")], tmp_path, pairings=["nearest"], **shares)
    prompts = {(row["messages"][-1]["content"], row["split"]) for row in samples(tmp_path)}
    assert len(prompts) == len(dict(prompts))


def test_candidates_with_errors_of_a_model_are_drafts(tmp_path: Path) -> None:
    reports = write(tmp_path / "reports.csv", ["id", "report"], [list(item) for item in REPORTS.items()])
    row = {"reference": "-", "candidate": "The spleen is large.", "changes": [{"category": "a", "operation": "model"}]}
    rows = [{"sample_id": f"{name}_a", "source_id": name, **row} for name in REPORTS]
    write_jsonl(tmp_path / "injected.jsonl", rows)
    arguments = ("judge-data", reports, "--task", "entailment", "--teacher", "offline", "--out", tmp_path / "out")
    arguments += ("--pairing", "drafted", "--drafts", tmp_path / "injected.jsonl")
    maira(*arguments)
    sources = [row["source"] for row in samples(tmp_path / "out")]
    assert {source["pairing"] for source in sources} == {"drafted"}
    assert {source["reference"] for source in sources} == set(REPORTS)
    write_jsonl(tmp_path / "injected.jsonl", [*rows, {**rows[0], "sample_id": "again"}])
    with raises("injected.jsonl: source_id: duplicate"):
        maira(*arguments, "--overwrite")


def test_the_teachers_answers_and_counts_are_kept_for_held_out_pairs(tmp_path: Path) -> None:
    arguments = ("--task", "green", "--teacher", "injected", "--held-out", 0.3, "--validation", 0.2)
    reports = write(tmp_path / "reports.csv", ["id", "report"], [list(item) for item in REPORTS.items()])
    assert "samples to validate with" in maira("judge-data", reports, *arguments, "--out", tmp_path / "out").output
    by_split = {row["split"]: row["answer"] for row in samples(tmp_path / "out")}
    assert set(by_split) == {"train", "validation", "heldout"}
    rows = list(csv.DictReader((tmp_path / "out" / "heldout.csv").open(encoding="utf-8")))
    assert by_split["heldout"] == rows[-1]["answer"]
    counts = compute_counts("green", parse_assessment(rows[-1]["answer"]))
    assert {name: float(rows[-1][name]) for name in counts} == counts


def labels_of(pairings: list[Any], teachers: dict[str, Judge | None]) -> list[Any]:
    """The labels of entailment queries about the reports."""
    pairs = make_pairs(REPORTS, pairings)
    return [e.label for e in make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), teachers)[0]]


def test_error_labels_agree_with_the_offline_judge() -> None:
    labels = labels_of(["permuted"], ERRORS)
    assert {label.label for label in labels} == {"entailment", "not_entailment"}
    verdicts: list[Any] = OfflineJudge().judge([label.query for label in labels])
    agree = sum(label.status == verdict.status for label, verdict in zip(labels, verdicts, strict=True))
    assert agree / len(labels) > 0.9


def test_undecided_queries_go_to_the_next_teacher() -> None:
    pairs = make_pairs(REPORTS, ["permuted", "reworded"])
    injected, combined = (
        make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), teachers)[0]
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
    rows = samples(tmp_path)
    for split in ("train", "heldout"):
        answers = [yaml.safe_load(row["answer"]) for row in rows if row["split"] == split]
        entailed = [answer for answer in answers if answer["status"] == "entailment"]
        assert len(entailed) == len(answers) / 2 > 0
        if split == "train":
            assert sum(answer["phrase"] in answer["evidence"] for answer in entailed) <= len(entailed) / 3


def test_a_balanced_draw_uses_what_is_available() -> None:
    pairs = make_pairs(REPORTS, ["edited"])
    examples: list[Any] = make_entailment_examples(pairs, NO_SHOTS, load_splitter("offline"), OFFLINE)[0]
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


@pytest.mark.parametrize(("letter", "original", "modified", "explanation"), CASES["explanations"])
def test_explanations_name_what_is_wrong(letter: Any, original: str, modified: str | None, explanation: str) -> None:
    change = InjectedError(category=letter, operation="any", original=original, modified=modified)
    reports = {"reference": f"{original}. Clear lungs.", "candidate": f"{modified or ''} Clear lungs."}
    assessed = assess_errors(InjectedReport(sample_id="a", source_id="a", changes=(change,), **reports))
    assert parse_assessment(format_assessment(assessed)).significant[letter].errors == (explanation,)


def test_vert_targets_have_one_decimal() -> None:
    client = mock_client(CASES["assessment"], name="m")
    (examples,) = make_score_examples(make_pairs(REPORTS, ["random"], count=1), "vert", {"m": client})[0]
    assert examples.answer == "0.9"
    assert examples.messages[0][1].startswith("Objective: Evaluate the accuracy of a candidate radiology report")


def test_the_command_writes_pairs_for_meta_agreement_or_warns_that_there_are_none(tmp_path: Path) -> None:
    reports = write(tmp_path / "reports.csv", ["id", "report"], [list(item) for item in REPORTS.items()])
    for share, is_warned in ((0.0001, True), (0, False), (0.3, False)):
        arguments = ("judge-data", reports, "--task", "vert", "--teacher", "injected", "--held-out", share)
        result = maira(*arguments, "--out", tmp_path / "out")
        assert ("Increase --held-out" in " ".join(result.output.split())) == is_warned
    rows = list(csv.DictReader((tmp_path / "out" / "heldout.csv").open(encoding="utf-8")))
    assert set(rows[0]) == {"id", "reference", "candidate", "expert"}
    assert all(0 <= float(row["expert"]) < 1 for row in rows)


def test_conflicting_options_are_refused(tmp_path: Path) -> None:
    for task, teacher, options, wrong in CASES["conflicting options"]:
        with pytest.raises(InputError, match=wrong):
            make_judge_data(REPORTS, task, [JudgeOptions(**teacher)], tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def write(path: Path, columns: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return path


def rate_eval(folder: Path) -> Path:
    """Pairs of which two share a reference."""
    rows: list[list[object]] = [[f"Nodule {n // 2}.", f"Mass {n}.", n % 11 / 2] for n in range(200)]
    return write(folder / "rate_train.csv", ["gt_report", "similar_report", "Score"], rows)


def samples(folder: Path) -> list[dict[str, Any]]:
    return [dict(row) for _, row in read_jsonl(folder / "samples.jsonl")]


def test_ratings_of_rate_eval_become_scores_with_one_decimal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ratings = ("--ratings", rate_eval(tmp_path), "--layout", "rate-eval")
    maira("judge-data", "--task", "vert", *ratings, "--out", out)
    rows = samples(out)
    assert [row["answer"] for row in rows[:11]] == [f"{n / 10:.1f}" for n in range(11)]
    assert {row["task"] for row in rows} == {"vert"}
    messages = VertTuned.request(VertTuned.__new__(VertTuned), TextPair("1", "Mass 0.", "Nodule 0.")).messages
    assert rows[0]["messages"] == [{"role": role, "content": content} for role, content in messages]
    about = read_json(out / "about.json")
    assert about["samples"]["heldout"] == pytest.approx(20, abs=10)
    assert (about["ratings"], about["scale"], about["held_out"]) == ("rate-eval", [0, 5], 0.1)


def test_pairs_of_a_reference_stay_in_one_split_and_agreement_reads_held_out_pairs(tmp_path: Path) -> None:
    # Of a folder the training set is meant.
    with pytest.raises(InputError, match=r"rate_train.csv"):
        make_rated_data(tmp_path, "rate-eval", tmp_path / "out")
    rate_eval(tmp_path)
    data = make_rated_data(tmp_path, "rate-eval", tmp_path / "out", held_out=0.3)
    held_out = read_ratings(data.held_out, better="higher").samples
    assert len(held_out) == data.samples["heldout"]
    references = [reference.pair.reference for reference in held_out]
    assert all(references.count(reference) == 2 for reference in references)


def test_lower_is_better_ratings_are_inverted_and_unrated_pairs_named(tmp_path: Path) -> None:
    rows: list[list[object]] = [["a", "R.", "C.", 0], ["b", "S.", "C.", 4], ["c", "T.", "C.", 3], ["d", "U.", "C.", ""]]
    path = write(tmp_path / "plain.csv", PLAIN, rows)
    written = make_rated_data(path, "plain", tmp_path / "out", better="lower", scale=(0, 4))
    answers = {row["sample_id"]: row["answer"] for row in samples(tmp_path / "out")}
    assert answers == {"a": "1.0", "b": "0.0", "c": "0.2"}
    assert list(written.failures) == ["d"]


@pytest.mark.parametrize(("scale", "wrong"), [(None, "rating"), ((0, 3), "rating 4 of 'b'"), ((5, 0), "found 5 0")])
def test_a_missing_or_wrong_scale_is_an_error(scale: tuple[float, float] | None, wrong: str, tmp_path: Path) -> None:
    path = write(tmp_path / "plain.csv", PLAIN, [["a", "R.", "C.", 1], ["b", "R.", "D.", 4]])
    with pytest.raises(InputError, match=wrong):
        make_rated_data(path, "plain", tmp_path / "out", better="higher", scale=scale)
    assert not (tmp_path / "out").exists()
