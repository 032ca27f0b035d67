"""CheXprompt: the published prompt and its responses, numbers of errors and fractions of reports without errors."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radfact.llm import ChatClient, MockChatModel, mock_client
from radfact.metrics.llm.chexprompt import CheXprompt, CheXpromptJson
from radfact.metrics.llm.llm_metric import load_prompt
from radfact.metrics.llm.responses.error_lists import parse_error_lists
from radfact.records import TextPair

SIGNIFICANT = "Number of clinically significant errors by type:"
INSIGNIFICANT = "Number of clinically insignificant errors by type:"
NONE = dict.fromkeys("abcdef", 0)
COUNTS: dict[str, dict[str, dict[str, int]]] = {
    "Wrong.": {"significant": NONE | {"a": 2, "c": 1}, "insignificant": NONE | {"f": 1}},
    "Nearly right.": {"significant": NONE, "insignificant": NONE | {"d": 1}},
    "Right.": {"significant": NONE, "insignificant": NONE},
}


def published(counts: dict[str, dict[str, int]]) -> str:
    """Write a response in the published notation."""
    lists = (", ".join(f"({letter.upper()}, {n})" for letter, n in counts[kind].items()) for kind in counts)
    return "\n".join(f"{header} [{pairs}]" for header, pairs in zip((SIGNIFICANT, INSIGNIFICANT), lists, strict=True))


def in_json(counts: dict[str, dict[str, int]]) -> str:
    """Write a response in the layout of our own prompt."""
    return json.dumps({f"{kind} errors": numbers for kind, numbers in counts.items()})


WRONG = published(COUNTS["Wrong."])
SECOND = "\n" + WRONG.splitlines()[1]


@pytest.mark.parametrize(("metric", "write"), [(CheXprompt, published), (CheXpromptJson, in_json)])
def test_scores_are_counts_and_percentages_of_reports_without_errors(
    metric: type[CheXprompt], write: Callable[[dict[str, dict[str, int]]], str]
) -> None:
    def respond(text: str) -> str:
        responses = [write(COUNTS[name]) for name in COUNTS if f'"""{name}"""' in text or text.endswith(f"\n{name}")]
        return responses[0] if responses else "I cannot."

    pairs = [TextPair(text, text, "The reference.") for text in (*COUNTS, "Unclear.")]
    result = metric(mock_client(respond)).score(pairs)
    assert {name: values[:3] for name, values in result.values.items()} == {
        f"{metric.name}_errors": [4, 1, 0],
        f"{metric.name}_significant": [3, 0, 0],
        f"{metric.name}_error_free": [0, 0, 100],
        f"{metric.name}_significant_error_free": [0, 100, 100],
    }
    assert all(math.isnan(values[3]) for values in result.values.values())
    assert list(result.failures) == [3]
    assert result.details[0]["significant"]["a"] == 2


def test_the_prompt_is_the_published_one() -> None:
    model = MockChatModel(WRONG)
    CheXprompt(ChatClient(model, {})).score([TextPair("1", "A {reference} Candidate.", "The\nReference.")])
    ((system, (role, text)),) = model.calls
    assert system[0] == "system"
    assert system[1].startswith("Instructions: You are an expert radiologist. Judge the diagnostic accuracy of")
    assert system[1].endswith("provide the error counts in the list format exactly as it is given to you.")
    assert role == "user"
    assert text.startswith("A clinically significant error is one that likely affects treatment, management, or")
    # The reports are inserted as they are; the two marks before and after the examples are printed so.
    reports = 'Reference Findings: """The\nReference."""\n\nCandidate Findings: """A {reference} Candidate."""'
    assert text.endswith(f"\n##\n##\n{reports}\n\nErrors:")
    assert text.count("\n##\n##\n") == 2
    assert CheXprompt.parameters == {"temperature": 0, "top_p": 0.9, "max_tokens": 128}


def test_the_published_examples_can_be_read() -> None:
    examples = re.findall(r"^Errors: (Number .*?)\n##", load_prompt("chexprompt"), re.DOTALL | re.MULTILINE)
    counts = [
        {kind: "".join(f"{letter}{n}" for letter, n in numbers.items() if n) for kind, numbers in lists.items()}
        for lists in map(parse_error_lists, examples)
    ]
    assert counts == [
        {"significant": "a1b1f1", "insignificant": ""},
        {"significant": "b1d1", "insignificant": "b1"},
        {"significant": "a1b1", "insignificant": "a1"},
        {"significant": "d1", "insignificant": ""},
        {"significant": "", "insignificant": "a1"},
    ]


@given(
    st.permutations("ABCDEF").flatmap(
        lambda letters: st.tuples(*(st.tuples(st.just(letter), st.integers(-1, 100)) for letter in letters))
    )
    | st.lists(st.tuples(st.sampled_from("ABCDEFG"), st.integers(0, 9)), max_size=8),
    st.sampled_from(["({}, {})", "{}: {}", '["{}", {}]']),
)
def test_a_list_is_read_as_it_is_or_refused(pairs: Sequence[tuple[str, int]], pair: str) -> None:
    text = f"{SIGNIFICANT} [{', '.join(pair.format(*item) for item in pairs)}]{SECOND}"
    is_complete = sorted(letter for letter, _ in pairs) == list("ABCDEF") and all(0 <= n <= 99 for _, n in pairs)
    with nullcontext() if is_complete else pytest.raises(ValueError, match=r"\w"):
        assert parse_error_lists(text)["significant"] == {letter.lower(): n for letter, n in pairs}
