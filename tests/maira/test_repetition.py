"""A loop is ended while it is written, cut from the report, and marked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maira.generate.constraints import BatchConstraints, Constraints, OpenResponse
from maira.model.grammar import Grammar
from maira.model.parser import cut_repetitions, is_loop, parse_report
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer

BOX = "<box><x10><y20><x30><y40></box>"
CLEAR = "<obj>Clear.</obj>"
TOKENIZER = train_tokenizer(["Clear lungs. No mass. 1.5 cm, 1.2 cm."] * 3, 300)


def test_repetition_in_a_narrative_is_cut() -> None:
    cut = cut_repetitions(parse_report("Clear lungs. No mass. Clear lungs. Clear lungs. Clear lungs. No effusion."))
    assert cut.text == "Clear lungs. No mass. Clear lungs. No effusion."


def test_copies_in_other_words_are_kept() -> None:
    parsed = parse_report(f"{CLEAR}<obj>clear.</obj><obj>Clear</obj><obj>CLEAR.</obj>")
    assert cut_repetitions(parsed) == parsed


@given(st.lists(st.sampled_from(["Clear.", "Mass.", f"Mass.{BOX}", "<x1>"])))
def test_notes_keep_pointing_to_their_sentences(texts: list[str]) -> None:
    parsed = parse_report("".join(f"<obj>{text}</obj>" for text in texts))
    cut = cut_repetitions(parsed)
    assert cut_repetitions(cut).sentences == cut.sentences
    for note in cut.irregularities:
        if note.kind == "repetition_cut":
            assert note.index is not None
            text = cut.sentences[note.index].text
            assert [s.text for s in parsed.sentences].count(text) > 2 == [s.text for s in cut.sentences].count(text)


@pytest.mark.parametrize(
    ("written", "following", "loop"),
    [
        ("Clear. Clear. Clear.", "", True),
        ("Clear. Clear. Clear.", " Mass", True),
        ("Clear. Clear.", "", False),
        ("Clear. Mass. Clear. Mass. Clear.", " No", True),
        ("Of 1.5 cm. Of 1.2 cm. Of 1.", "5", False),
        ("Node of 1. Node of 1. Node of 1.", "5", False),
        ("Approx. Approx. Approx.", " half", False),
        ("", "", False),
    ],
)
def test_loop_of_a_narrative(written: str, following: str, loop: bool) -> None:
    assert is_loop(written, written + following) is loop


@pytest.mark.parametrize(
    ("written", "target", "ended"),
    [
        ("Clear lungs. Clear lungs. Clear lungs.", " No", True),
        ("Clear lungs. Clear lungs. Clear lungs", ".", False),
        ("Clear lungs. Clear lungs.", " Clear", False),
        ("No 1. No 1. No 1.", "5", False),
    ],
)
def test_only_a_looping_narrative_is_ended(written: str, target: str, ended: bool) -> None:
    grammar = Grammar(TOKENIZER)
    responses = [OpenResponse(grammar, "narrative", 999) for _ in range(2)]
    guard = BatchConstraints(Constraints(grammar, TOKENIZER.convert_tokens_to_ids(IMAGE)), responses)
    ids_written, (following, *_) = (
        TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in (written, target)
    )
    # The prompt says the same sentences, which do not count; the other row says nothing.
    ids = torch.tensor([ids_written * 2, [TOKENIZER.pad_token_id] * (2 * len(ids_written))])
    scores = torch.zeros(2, len(TOKENIZER))
    scores[:, following] = 1
    for end in range(len(ids_written), 2 * len(ids_written) + 1):
        guarded = guard(ids[:, :end], scores)
    assert guarded.argmax(1).tolist() == [TOKENIZER.eos_token_id if ended else following, following]
