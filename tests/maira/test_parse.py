"""Responses are read whatever they say; a loop is ended while it is written, cut from the report, and marked."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from error_checks import raises_code
from hypothesis import example, given
from hypothesis import strategies as st

from maira.generate.constraints import BatchConstraints, Constraints, OpenResponse
from maira.model.grammar import Grammar
from maira.model.parser import ParsedReport, cut_repetitions, is_loop, parse_report, render_report
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer
from radfact.errors import ErrorCode
from radfact.records import Box, Sentence

TOKENS = ["<obj>", "</obj>", "<box>", "</box>", "<s>", "</s>", "<unk>", "<pad>", "<image>", "<x0>", "<y99>", "<x100>"]
BOX = "<box><x10><y20><x30><y40></box>"
MORE = "<box><x11><y20><x31><y40></box>"
CASES: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("model_responses.yaml").read_text("utf-8"))

words = st.text(st.characters(categories=("L", "N"), include_characters=" .,<>-"), min_size=1, max_size=30)
texts = words.map(str.strip).filter(lambda t: bool(re.search(r"\w", t)) and not re.search(r"<[^ ]*>", t))
bins = st.integers(0, 99)


@st.composite
def decoded_boxes(draw: st.DrawFn) -> Box:
    (left, right), (top, bottom) = (sorted((draw(bins), draw(bins))) for _ in range(2))
    middle = [(value + 0.5) / 100 for value in (left, top, right, bottom)]
    return Box(x_min=middle[0], y_min=middle[1], x_max=middle[2], y_max=middle[3])


box_lists = st.none() | st.lists(decoded_boxes(), min_size=1, max_size=3, unique=True).map(tuple)
reports = st.lists(st.builds(Sentence, text=texts, boxes=box_lists), max_size=5)
pieces = st.lists(st.sampled_from(TOKENS) | texts | st.text(max_size=5) | st.just(BOX), max_size=25).map("".join)


@st.composite
def mutated_reports(draw: st.DrawFn) -> str:
    text = render_report(draw(reports))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        inserted = draw(st.sampled_from(["", *TOKENS, BOX, text[start:end] * 2]))
        text = text[:start] + inserted + text[end if draw(st.booleans()) else start :]
    return text[: draw(st.integers(0, len(text)))]


def kinds(parsed: ParsedReport) -> list[tuple[int | None, str]]:
    return [(irregularity.index, irregularity.kind) for irregularity in parsed.irregularities]


def bare(parsed: ParsedReport) -> list[tuple[str, int]]:
    return [(sentence.text, len(sentence.boxes or ())) for sentence in parsed.sentences]


@given(reports)
def test_render_and_parse_round_trip(report: list[Sentence]) -> None:
    parsed = parse_report(render_report(report))
    assert parsed.sentences == report
    assert not {kind for _, kind in kinds(parsed)} - {"repeated_sentence"}


@given(mutated_reports() | pieces)
@example("<obj>a</obj" + "<x1" + "0" * 5000 + ">")
@example("\ud800 lungs")
def test_any_text_is_parsed_and_parsing_is_stable(text: str) -> None:
    parsed = parse_report(text)
    assert all(0 <= note.index < len(parsed.sentences) for note in parsed.irregularities if note.index is not None)
    if not any(re.search("<[^ ]*>", sentence.text) for sentence in parsed.sentences):
        assert parse_report(render_report(parsed.sentences)).sentences == parsed.sentences


@given(st.lists(st.sampled_from(TOKENS) | texts.map(lambda t: re.sub("[<>]", "", t)) | st.just(BOX)))
def test_no_word_is_lost(stretches: list[str]) -> None:
    parsed = parse_report(" ".join(stretches))
    plain = [re.sub(r"\W", "", stretch) for stretch in stretches if stretch not in TOKENS and stretch != BOX]
    assert re.sub(r"\W", "", "".join(sentence.text for sentence in parsed.sentences)) == "".join(plain)
    assert re.sub(r"\W", "", parsed.text) == "".join(plain)


KINDS = ("irregular", "truncated", "cut")


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in KINDS for case in CASES[kind]], ids=str)
def test_faults_of_a_response_are_noted(kind: str, case: list[Any]) -> None:
    text, sentences, notes = case
    parsed = parse_report(text.replace("BOX", BOX).replace("MORE", MORE), cut_off=kind == "truncated")
    if kind == "cut":
        parsed = cut_repetitions(parsed)
        assert parsed.text == " ".join(sentence for sentence, _ in sentences)
    assert bare(parsed) == [*map(tuple, sentences)]
    assert all(sentence.boxes is None or sentence.boxes for sentence in parsed.sentences)
    assert kinds(parsed) == [*map(tuple, notes)]


@pytest.mark.parametrize("corners", ["<x30><y20><x10><y40>", "<x10><y40><x30><y20>", "<x30><y40><x10><y20>"])
def test_swapped_corners_are_reordered(corners: str) -> None:
    parsed = parse_report(f"<obj>Nodule.<box>{corners}</box></obj>")
    [box] = parsed.sentences[0].boxes or ()
    assert box.as_tuple() == pytest.approx((0.105, 0.205, 0.305, 0.405))
    assert kinds(parsed) == [(0, "swapped_corners")]


@pytest.mark.parametrize(("text", "sentences", "is_narrative"), CASES["regular"])
def test_responses_without_faults(text: str, sentences: list[Any], is_narrative: bool) -> None:
    parsed = parse_report(text.replace("BOX", BOX))
    assert bare(parsed) == [*map(tuple, sentences)]
    assert (parsed.irregularities, parsed.is_narrative) == ([], is_narrative)
    assert parsed.text == " ".join(sentence for sentence, _ in sentences)


# encode: bin = min(99, floor(100 c))
@pytest.mark.parametrize(
    ("coordinate", "expected"), [*((edge / 100, edge) for edge in range(100)), (0.0099, 0), (0.999, 99), (1.0, 99)]
)
def test_coordinates_are_rendered_as_bins(coordinate: float, expected: int) -> None:
    box = Box(x_min=coordinate, y_min=coordinate, x_max=coordinate, y_max=coordinate)
    tokens = f"<x{expected}><y{expected}>"
    assert render_report([Sentence(text="A", boxes=(box,))]) == f"<obj>A<box>{tokens}{tokens}</box></obj>"


def test_boxes_in_equal_bins_are_rendered_once() -> None:
    boxes = (Box(x_min=0.1, y_min=0.1, x_max=0.2, y_max=0.2), Box(x_min=0.101, y_min=0.1, x_max=0.2, y_max=0.209))
    assert render_report([Sentence(text="A", boxes=boxes)]) == "<obj>A<box><x10><y10><x20><y20></box></obj>"


@pytest.mark.parametrize("text", ["See <box> here.", "</s>", "<x7>", "..."])
def test_text_that_cannot_be_parsed_back_is_refused(text: str) -> None:
    with raises_code(ErrorCode.INVALID_VALUE, field="text"):
        render_report([Sentence(text=text)])


def test_copies_in_other_words_are_kept() -> None:
    parsed = parse_report("<obj>Clear.</obj><obj>clear.</obj><obj>Clear</obj><obj>CLEAR.</obj>")
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


@pytest.mark.parametrize(("written", "following", "loop"), CASES["loops"])
def test_loop_of_a_narrative(written: str, following: str, loop: bool) -> None:
    assert is_loop(written, written + following) is loop


TOKENIZER = train_tokenizer(["Clear lungs. No mass. 1.5 cm, 1.2 cm."] * 3, 300)


@pytest.mark.parametrize(("written", "target", "ended"), CASES["ended loops"])
def test_only_a_looping_narrative_is_ended(written: str, target: str, ended: bool) -> None:
    grammar = Grammar(TOKENIZER)
    responses = [OpenResponse(grammar, "narrative", 999) for _ in range(2)]
    guard = BatchConstraints(Constraints(grammar, TOKENIZER.convert_tokens_to_ids(IMAGE)), responses)
    ids_written, (following, *_) = TOKENIZER([written, target], add_special_tokens=False)["input_ids"]
    # The prompt says the same sentences, which do not count; the other row says nothing.
    ids = torch.tensor([ids_written * 2, [TOKENIZER.pad_token_id] * (2 * len(ids_written))])
    scores = torch.zeros(2, len(TOKENIZER))
    scores[:, following] = 1
    for end in range(len(ids_written), 2 * len(ids_written) + 1):
        guarded = guard(ids[:, :end], scores)
    assert guarded.argmax(1).tolist() == [TOKENIZER.eos_token_id if ended else following, following]
