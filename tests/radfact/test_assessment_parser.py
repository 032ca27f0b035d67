"""The parser of GREEN's and VERT's notation reads every form of a response right, and refuses ambiguous ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from green_responses import Counts, Explanations, GreenResponse, published_counts, responses
from hypothesis import given, settings
from hypothesis import strategies as st

from radfact.error_categories import ERROR_CATEGORIES
from radfact.metrics.llm.responses.accuracy_score import parse_accuracy_score
from radfact.metrics.llm.responses.assessment import Assessment, parse_assessment, parse_scored_assessment
from radfact.metrics.llm.responses.counts import parse_count

EXAMPLE = GreenResponse(
    (("The pleural effusion is not there",), ("Cardiomegaly is missing", "The nodule is missing"), (), (), (), ()),
    ((), (), ("The tube is 2.5 cm higher",), (), (), ()),
    ("No pneumothorax", "Clear lungs", "Intact bones"),
    score="0.55",
)


def counts(assessment: Assessment) -> Counts:
    significant, insignificant = (
        tuple(category.count for category in errors.values())
        for errors in (assessment.significant, assessment.insignificant)
    )
    return significant, insignificant, assessment.matched.count


@settings(deadline=None, max_examples=150)
@given(responses)
def test_well_formed_responses_have_the_published_counts(response: GreenResponse) -> None:
    assessment = parse_assessment(response.text())
    assert counts(assessment) == published_counts(response.text()) == response.counts
    assert assessment.matched.findings == response.findings
    assert tuple(category.errors for category in assessment.significant.values()) == response.significant


# GREEN, appendix A.2: a response of GPT-4, with a single line of significant errors.
PRINTED = """\
[Explanation]:
The candidate report misidentifies the anatomic location of the infiltrates. The reference report mentions "upper \
middle right field" while the candidate report mentions "upper dorsal right field".

[Clinically Significant Errors]:
(c) Misidentification of a finding's anatomic location/position: 1. The infiltrates are in the upper middle right \
field, not the upper dorsal right field.

[Clinically Insignificant Errors]:
(a) False report of a finding in the candidate: 0.
(b) Missing a finding present in the reference: 0.
(c) Misidentification of a finding's anatomic location/position: 0.
(d) Misassessment of the severity of a finding: 0.
(e) Mentioning a comparison that isn't in the reference: 0.
(f) Omitting a comparison detailing a change from a prior study: 0.

[Matched Findings]:
3. Doubtful retrocardiac suggestive of respiratory infection; Costophrenic sinuses are clear; No other notable findings.
"""


def test_the_printed_response() -> None:
    assessment = parse_assessment(PRINTED)
    assert counts(assessment) == published_counts(PRINTED) == ((0, 0, 1, 0, 0, 0), (0,) * 6, 3)
    assert assessment.explanation.startswith("The candidate report misidentifies")


def as_json(response: GreenResponse, entry: Callable[[tuple[str, ...]], Any]) -> dict[str, Any]:
    def section(errors: Explanations) -> dict[str, Any]:
        categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
        return {f"({letter}) {name}": entry(explanations) for (letter, name), explanations in categories}

    return {
        "Explanation": response.explanation,
        "Clinically Significant Errors": section(response.significant),
        "Clinically Insignificant Errors": section(response.insignificant),
        "Matched Findings": entry(response.findings),
        "Overall Accuracy Score": 0.55,
    }


JSON = json.dumps(as_json(EXAMPLE, lambda errors: {"count": len(errors), "errors": list(errors)}))


def fields(response: GreenResponse, *, count: str = "Count") -> str:
    """A response whose categories and findings are lists of fields, with the items one level deeper."""

    def format_fields(items: tuple[str, ...], key: str) -> str:
        if not items:
            return f"\n  - {count}: 0\n  - {key}: None"
        return f"\n  - {count}: {len(items)}\n  - {key}:" + "".join(f"\n    - {item}" for item in items)

    def section(errors: Explanations) -> str:
        categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
        return "\n".join(
            f"- **({letter}) {name}:**{format_fields(items, 'Errors')}" for (letter, name), items in categories
        )

    return (
        f"## Clinically Significant Errors\n{section(response.significant)}\n\n"
        f"## Clinically Insignificant Errors\n{section(response.insignificant)}\n\n"
        f"## Matched Findings{format_fields(response.findings, 'Findings')}\n\n## Overall Accuracy Score\n0.55\n"
    )


def nested(items: tuple[str, ...]) -> str:
    """Return a list whose items have nested lists."""
    return "".join(f"\n  - {item}\n      - reference: one\n      - candidate: other" for item in items)


def flat(errors: Explanations) -> list[str]:
    """Single errors, each after the name of its category."""
    categories = zip(ERROR_CATEGORIES.items(), errors, strict=True)
    return [f"({letter}) {name}: {error}" for (letter, name), explanations in categories for error in explanations]


def numbered(text: str) -> str:
    """The matched findings as a numbered list."""
    return text.replace("3. No pneumothorax; Clear lungs;", "1. No pneumothorax\n2. Clear lungs\n3.")


FORMS: dict[str, Callable[[str], str]] = {
    "no full stops": lambda text: re.sub(r"(\n|: )(\d)\.(?=\s)", r"\1\2", text),
    "no full stops, lower case": lambda text: re.sub(r"(\n|: )(\d)\.(?=\s)", r"\1\2", text).lower(),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "no blank lines": lambda text: re.sub(r"\n+", "\n", text),
    "one line": lambda text: " ".join(text.split()),
    "one line without names": lambda text: " ".join(re.sub(r"(\([a-f]\))[^:\n]*:", r"\1", text).split()),
    "one line, letters without brackets": lambda text: " ".join(re.sub(r"\(([a-f])\)", r"\1)", text).split()),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "lower-case headers": lambda text: re.sub(r"\[.*?\]", lambda match: match[0].lower(), text),
    "bold headers": lambda text: re.sub(r"\[(.*?)\]:", r"**\1:**", text),
    "bold brackets": lambda text: re.sub(r"(\[.*?\]):", r"**\1**:", text),
    "headings": lambda text: re.sub(r"\[(.*?)\]:", r"### \1", text),
    "numbered headings": lambda text: text.replace("[Clin", "2. [Clin").replace("[Matched", "4. [Matched"),
    "bold letters": lambda text: re.sub(r"\(([a-f])\)", r"**(\1)**", text),
    "bold counts": lambda text: re.sub(r": (\d)\.", r": **\1**.", text),
    "bullets": lambda text: text.replace("\n(", "\n- ("),
    "stars": lambda text: text.replace("\n(", "\n* ("),
    "indented": lambda text: text.replace("\n", "\n    "),
    "letters without brackets": lambda text: re.sub(r"\(([a-f])\)", r"\1)", text),
    "capital letters": lambda text: re.sub(r"\(([a-f])\)", lambda match: match[0].upper(), text),
    "no letters": lambda text: re.sub(r"\([a-f]\) ", "", text),
    "no names": lambda text: re.sub(r"(\([a-f]\))[^:\n]*:", r"\1", text),
    "numbers for letters": lambda text: re.sub(r"\(([a-f])\)", lambda m: f"({'abcdef'.index(m[1]) + 1})", text),
    "count in brackets": lambda text: re.sub(r": (\d)\.", r": (\1)", text),
    "count with its noun": lambda text: re.sub(r": (\d)\.", r": \1 error(s):", text).replace("error(s)", "errors"),
    "number words": lambda text: re.sub(r": ([0-2])\.", lambda m: f": {['None', 'One', 'Two'][int(m[1])]}.", text),
    "none for zero": lambda text: re.sub(r": 0\.", ": None.", text),
    "no errors for zero": lambda text: re.sub(r": 0\.", ": No errors were found.", text),
    "nothing for zero": lambda text: re.sub(r": 0\.", ":", text),
    "only what there is": lambda text: re.sub(r"\n\([a-f]\)[^\n]*: 0\.", "", text),
    "one error a line": lambda text: text.replace(". Cardiomegaly is missing;", ".\n  - Cardiomegaly is missing\n  -"),
    "list without count": lambda text: text.replace(": 2. Cardiomegaly is missing;", ":\n- Cardiomegaly is missing\n-"),
    "numbered list": lambda text: text.replace("2. Cardiomegaly is missing;", "1. Cardiomegaly is missing; 2."),
    "numbered findings": numbered,
    "numbered findings in a line": lambda text: numbered(text).replace("lungs\n3.", "lungs. 3."),
    "named count of findings": lambda text: text.replace("3. No", "Number of matched findings: 3. No"),
    "count of findings in a sentence": lambda text: text.replace("3. No", "The number of matched findings is 3. No"),
    "findings in the header's line": lambda text: text.replace("Findings]:\n", "Findings]: "),
    "an explanation an error": lambda text: FORMS["bold headers"](text).replace(
        "not there\n", "not there\nExplanation: it is clear.\nScore: 1\n"
    ),
    "fenced": lambda text: f"```\n{text}```",
    "words around": lambda text: f"Sure! Here is my assessment:\n\n{text}\nLet me know if you need more.",
    "thinking aloud": lambda text: f"<think>\n[Matched Findings]:\n1. I begin\n</think>\n{text}",
    "template first": lambda text: "[Matched Findings]:\n<The number of matched findings>. <Finding 1>\n\n" + text,
    "stated twice": lambda text: text + "\n" + text,
    "full-width": lambda text: text.replace(":", "：").replace(". ", "。").replace("3", "３"),
    "prose with a header's name": lambda text: text.replace("The candidate differs.", "Matched findings: there are 7."),
    "table": lambda text: re.sub(r"\n\(([a-f])\) ([^:\n]*): (\d)\.([^\n]*)", r"\n| (\1) \2 | \3 | \4 |", text),
    "fields": lambda _: fields(EXAMPLE),
    "fields with a long name of the count": lambda _: fields(EXAMPLE, count="Number of errors"),
    "numbered fields": lambda text: text.replace(": 2. Card", ":\n  1. Count: 2\n  2. Errors: Card"),
    "fields without bullets": lambda text: re.sub(r": (\d)\.(.*)", r":\nCount: \1\nErrors:\2", text),
    "the count as the only field": lambda text: re.sub(r": (\d)\..*", r":\n- Count: \1", text),
    "the count as the last field": lambda text: re.sub(r": (\d)\..*", r":\n- Errors: some\n- Count: \1", text),
    "a bullet with the count over the others": lambda text: text.replace(
        ": 2. Cardiomegaly is missing;", ":\n- 2 errors\n- Cardiomegaly is missing\n-"
    ),
    "findings with nested lists": lambda text: text.replace(
        "3. No pneumothorax; Clear lungs; Intact bones", nested(EXAMPLE.findings)
    ),
    "findings by part of the body": lambda text: text.replace(
        "3. No pneumothorax; Clear lungs; Intact bones", "- Pleura: no pneumothorax\n- Lungs: clear\n- Bones: intact"
    ),
    "errors with nested lists": lambda text: text.replace(
        "2. Cardiomegaly is missing; The nodule is missing", nested(EXAMPLE.significant[1])
    ),
    "JSON": lambda _: JSON,
    "fenced JSON": lambda _: f"Here you are:\n```json\n{JSON}\n```",
    "JSON of texts": lambda _: json.dumps(as_json(EXAMPLE, lambda errors: f"{len(errors)}. {'; '.join(errors)}")),
    "JSON of lists": lambda _: json.dumps(as_json(EXAMPLE, list)),
    "JSON of errors one by one": lambda _: json.dumps(
        as_json(EXAMPLE, list)
        | {"Clinically Significant Errors": flat(EXAMPLE.significant)}
        | {"Clinically Insignificant Errors": [{"category": "c", "severity": "mild", "error": "The tube is higher"}]}
    ),
    "JSON in JSON": lambda _: f'{{"assessment": {JSON}}}',
    "JSON with other names": lambda _: (
        JSON.replace("Clinically Significant Errors", "clinically_significant_errors")
        .replace("Matched Findings", "matched_findings")
        .replace("Overall Accuracy Score", "overall_accuracy_score")
    ),
    "JSON with a list of categories": lambda _: json.dumps(
        as_json(EXAMPLE, list)
        | {
            "Clinically Significant Errors": [
                {"category": f"({letter})", "count": len(errors)}
                for letter, errors in zip(ERROR_CATEGORIES, EXAMPLE.significant, strict=True)
            ]
        }
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_the_published_parser_misreads_are_parsed(form: str) -> None:
    assessment = parse_scored_assessment(FORMS[form](EXAMPLE.text()))
    assert counts(assessment) == EXAMPLE.counts
    assert assessment.score == 0.55


@settings(deadline=None, max_examples=80)
@given(responses, st.sampled_from(["no full stops", "bold headers", "lower-case headers", "blank lines", "stars"]))
def test_any_response_is_parsed_in_these_forms(response: GreenResponse, form: str) -> None:
    assert counts(parse_assessment(FORMS[form](response.text()))) == response.counts


@settings(deadline=None, max_examples=80)
@given(responses, st.sampled_from(["Count", "Number of errors", "Total", "count", "Error count"]))
def test_any_response_is_parsed_in_fields(response: GreenResponse, count: str) -> None:
    assert counts(parse_assessment(fields(response, count=count))) == response.counts


@settings(deadline=None, max_examples=80)
@given(st.lists(st.sampled_from(["Heart", "Lungs are clear", "No effusion"]), min_size=1).map(tuple), st.integers(2, 5))
def test_only_the_first_level_of_a_list_counts(items: tuple[str, ...], depth: int) -> None:
    listed = nested(items).replace("\n      -", "\n  " + " " * depth + "-")
    text = EXAMPLE.text().replace("3. No pneumothorax; Clear lungs; Intact bones", listed)
    assert parse_assessment(text).matched.count == len(items)


@pytest.mark.parametrize("empty", [{}, []])
def test_a_json_section_without_entries_has_no_errors(empty: Any) -> None:
    data = as_json(EXAMPLE, list) | {"Clinically Insignificant Errors": empty, "Matched Findings": []}
    assessment = parse_assessment(json.dumps(data))
    assert counts(assessment)[1:] == ((0,) * 6, 0)


@settings(deadline=None, max_examples=120)
@given(responses, st.data())
def test_a_response_that_is_cut_off_is_parsed_right_or_not_at_all(response: GreenResponse, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([response.text(), fields(response)]))
    with suppress(ValueError):
        assert counts(parse_assessment(text[: data.draw(st.integers(0, len(text)))])) == response.counts


@pytest.mark.parametrize("end", ["C", "Coun", "Count"])
def test_a_list_that_ends_within_its_count_has_no_count(end: str) -> None:
    with pytest.raises(ValueError, match="has no number"):
        parse_count(f"\n  - {end}", name="Matched findings")


@settings(deadline=None, max_examples=120)
@given(
    st.text(max_size=200) | responses.flatmap(lambda response: st.permutations(response.text().split()).map(" ".join))
)
def test_any_text_has_counts_in_range_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        significant, insignificant, matched = counts(parse_assessment(text))
        assert all(0 <= count <= 99 for count in (*significant, *insignificant, matched))


def line(text: str) -> str:
    """The example with another line (d) of significant errors."""
    name = ERROR_CATEGORIES["d"]
    return EXAMPLE.text().replace(f"(d) {name}: 0.", f"(d) {name}: {text}", 1)


UNREADABLE = {
    "refusal": "I'm sorry, but I can't help with medical reports.",
    "another language": "[Erklärung]:\nDer Kandidat weicht ab.\n\n[Klinisch bedeutsame Fehler]:\n(a) Falsch: 1.",
    "prose": "The candidate report matches the reference in three findings and misses one.",
    "only a score": "[Overall Accuracy Score]:\n0.85",
    "no significant errors": re.sub(r"\[Clinically S.*?\n\n", "", EXAMPLE.text(), flags=re.DOTALL),
    "no insignificant errors": re.sub(r"\[Clinically I.*?\n\n", "", EXAMPLE.text(), flags=re.DOTALL),
    "no matched findings": re.sub(r"\[Matched.*?\n\n", "", EXAMPLE.text(), flags=re.DOTALL),
    "an empty section": re.sub(r"(\[Clinically S.*?:\n).*?\n\n", r"\1\n", EXAMPLE.text(), flags=re.DOTALL),
    "thinking without an end": f"<think>{EXAMPLE.text()}",
    "two answers": EXAMPLE.text() + EXAMPLE.text().replace("3. No", "4. No"),
    "no count": line("The candidate says severe."),
    "a measure": line("2.5 cm instead of 3 cm"),
    "another measure": line("2 cm instead of 3 cm"),
    "a range": line("1-2. Perhaps"),
    "a share": line("1/3. Perhaps"),
    "a year": line("2019. Compared"),
    "findings, not errors": line("2 nodules described as large"),
    "a category twice": line("1. One\n(d) Misassessment of the severity of a finding: 1. Two"),
    "two categories in a line": EXAMPLE.text()
    .replace("\n(d)", " (d)")
    .replace("severity of a finding: 0.", "severity: x"),
    "fields without a count": line("\n- Severity: mild in the reference\n- Explanation: it is severe"),
    "parts of one error": line("\n- Left lung: mild\n- Right lung: severe"),
    "two counts": line("\n- Count: 1\n- Count: 2"),
    "a list whose depth is unknown": line("- Too large\n    - Too small"),
    "a list that begins deep": line("\n    - Too large\n- Too small"),
    "findings as fields": EXAMPLE.text()
    .replace("3. No", "- Reference: clear\n- Candidate: clear\n")
    .replace(" pneumothorax; Clear lungs; Intact bones", ""),
    "fields in JSON": json.dumps(as_json(EXAMPLE, lambda _: ["Count: 0", "Errors: None"])),
    "counts in a list in JSON": json.dumps(as_json(EXAMPLE, lambda errors: [{"count": len(errors)}])),
    "names without errors in JSON": json.dumps(
        as_json(EXAMPLE, list) | {"Clinically Significant Errors": ["(b) Missing a finding present in the reference"]}
    ),
    "errors and counts in one list": json.dumps(
        as_json(EXAMPLE, list) | {"Clinically Significant Errors": ["(b) The heart is missing", "(c) 2. One; two"]}
    ),
    "errors that hold a number": json.dumps(
        as_json(EXAMPLE, list) | {"Clinically Significant Errors": [{"category": "b", "errors": "2. One; two"}]}
    ),
    "totals in JSON": '{"significant errors": 2, "insignificant errors": 0, "matched findings": 3}',
    "findings without a number": EXAMPLE.text().replace("3. No", "No"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_ambiguous_responses_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_assessment(UNREADABLE[kind])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"<think>{EXAMPLE.text()}", "ends before the answer begins"),
        (f"{EXAMPLE.text()}\n</think>\n", "ends before the answer begins"),
        (line("The candidate says severe."), r"\(d\) of \[Clinically Significant Errors\] has no number"),
    ],
)
def test_the_model_learns_what_to_repair(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_assessment(text)


def test_sections_without_errors_may_be_one_word() -> None:
    text = re.sub(r"(\[Clinically I.*?:\n).*?\n\n", r"\1None.\n\n", EXAMPLE.text(), flags=re.DOTALL)
    assert counts(parse_assessment(text))[1] == (0,) * 6


def with_matched(body: str) -> str:
    return re.sub(r"(\[Matched Findings\]:\n).*", lambda match: match[1] + body, EXAMPLE.text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "item",
    ["No. 2 rib fracture", "No.5 rib is intact", "no. II rib fracture", "No. two rib", "No. L5 fracture",
     "No. fourth rib", "None of the ribs are fractured", "Zero rib fractures", "Nil by mouth tube",
     '"No. 3 rib fracture"'],
)  # fmt: skip
def test_an_item_that_begins_like_none_counts(item: str) -> None:
    assert parse_assessment(with_matched(f"- {item}")).matched.count == 1
    assert parse_assessment(with_matched(f"- {item}\n- Clear lungs")).matched.count == 2
    assert parse_assessment(line(f"\n- {item}\n- Other")).significant["d"].count == 2
    assert parse_assessment(json.dumps(as_json(EXAMPLE, list) | {"Matched Findings": [item]})).matched.count == 1


@pytest.mark.parametrize("text", ["No. 2 rib fracture", "No. 2 rib is missing. 1 error"])
def test_a_name_with_a_number_is_neither_a_count_nor_none(text: str) -> None:
    for response in (
        line(text),
        with_matched(text),
        re.sub(r"\(a\).*?\n\n", f"{text}\n\n", EXAMPLE.text(), flags=re.DOTALL),
    ):
        with pytest.raises(ValueError, match=r"has no"):
            parse_assessment(response)


@pytest.mark.parametrize("text", ["No.", "None.", "No. The reports agree.", "None. No. 2 rib is intact.", "Zero.", "-"])
def test_none_is_0(text: str) -> None:
    assert parse_assessment(line(text)).significant["d"].count == 0


UNKNOWN_IN_JSON = [None, "", " ", "-", [None], [""], [{}], [0], [2], [True], [{"finding": None}], {"count": None},
                   {"count": ""}, {"count": None, "errors": ["One"]}, {"count": None, "errors": []}, {}]  # fmt: skip


@pytest.mark.parametrize("value", UNKNOWN_IN_JSON, ids=json.dumps)
def test_an_empty_value_in_json_is_a_missing_count(value: Any) -> None:
    complete = as_json(EXAMPLE, list)
    assert counts(parse_assessment(json.dumps(complete))) == EXAMPLE.counts
    errors: dict[str, Any] = complete["Clinically Significant Errors"]
    for response in (
        complete | {"Matched Findings": value},
        complete | {"Clinically Significant Errors": errors | {next(iter(errors)): value}},
        complete
        | {"Clinically Significant Errors": [f"({letter}) {name}:" for letter, name in ERROR_CATEGORIES.items()]},
    ):
        with pytest.raises(ValueError, match=r"has n"):
            parse_assessment(json.dumps(response))


def test_the_number_counts_and_not_the_length_of_the_list() -> None:
    assert parse_assessment(line("3. The effusions are large")).significant["d"].count == 3


SCORES = {
    "0.85": 0.85,
    "0.85.": 0.85,
    "**0.85**": 0.85,
    "<0.85>": 0.85,
    "0,85": 0.85,
    ".85": 0.85,
    "1": 1.0,
    "0": 0.0,
    "0.85/1.00": 0.85,
    "8.5/10": 0.85,
    "85%": 0.85,
    "85 / 100": 0.85,
    "Overall accuracy score: 0.85": 0.85,
    "The score is 0.85 because one finding is missing.": 0.85,
    "0.85 (one error)": 0.85,
    "0.85 - one finding is missing": 0.85,
    "Score = 3 / (3 + 2*1 + 0.5*0) = 0.60": 0.6,
    "3 / (3 + 2)\n= 3 / 5\n= 0.60": 0.6,
    "0.85. One finding is missing.": 0.85,
    "0.85\n1 error": 0.85,
    "0.85 out of 1": 0.85,
    "1 out of 1.00": 1.0,
    "1.": 1.0,
    "1 (no errors)": 1.0,
    "Score: 1. All findings match.": 1.0,
    "S = 1, I = 0, score = 0.85": 0.85,
}


@pytest.mark.parametrize("text", SCORES)
def test_scores_are_parsed_in_many_forms(text: str) -> None:
    response = EXAMPLE.text().replace("0.55", text)
    assert parse_scored_assessment(response).score == pytest.approx(SCORES[text])


@pytest.mark.parametrize(
    "text",
    ["0.80-0.85", "0.8 to 0.9", "8.5", "-0.5", "high", "", "3 / (3 + 2)", "4/5", "N/A",
     "1 significant error, so 0.85", "1 error found", "0 errors", "1. The candidate misses one finding.", "0.8 0.9",
     "0.8, 0.9", "0.8\n0.9", "1 (significant) error", "1\nso it is 0.85", "errors = 1", "0.85 errors", "4 out of 5"],
)  # fmt: skip
def test_other_numbers_are_not_scores(text: str) -> None:
    with pytest.raises(ValueError, match="has no number from"):
        parse_accuracy_score(text)


@settings(deadline=None, max_examples=80)
@given(
    st.integers(0, 9), st.sampled_from(["error", "errors", "significant error, so 0.85", "finding. 0.85", ". Missing"])
)
def test_a_count_is_not_a_score(number: int, what: str) -> None:
    with pytest.raises(ValueError, match="has no number from"):
        parse_accuracy_score(f"{number}{what}" if what.startswith(".") else f"{number} {what}")


def test_a_score_is_required_only_on_request() -> None:
    text = GreenResponse(((),) * 6, ((),) * 6, ("One",)).text()
    assert parse_assessment(text).matched.count == 1
    with pytest.raises(ValueError, match=r"Overall Accuracy Score"):
        parse_scored_assessment(text)
