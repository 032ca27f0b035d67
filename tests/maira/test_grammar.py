"""Any logits give a report that parses without irregularities, and well-formed reports are unchanged."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from test_parse import CASES, decoded_boxes
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from maira.generate.constraints import Constraints, OpenResponse
from maira.generate.engine import Form
from maira.grounding.boxes import read_completion
from maira.model.grammar import Grammar, ReportState
from maira.model.parser import cut_repetitions, parse_report, render_report
from maira.model.tokens import BOX, BOX_END, OBJECT, OBJECT_END, add_tokens
from maira.train.components import train_tokenizer
from radfact.records import Box, Sentence

BOX_A, BOX_B = "<box><x10><y20><x30><y40></box>", "<box><x11><y20><x30><y40></box>"
PIECES = ["▁Clear", "▁x", "</", "obj", "box>", "obj>", "><", "▁▁", "a<x1>b"]


def _sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama's: a word boundary is U+2581, and what has no piece is written in single bytes."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*"▁abcdefghijklmnopqrstuvwxyzABCLN0123456789.,<>/é", *PIECES]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    llama = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    add_tokens(llama)
    return llama


SPELLED = "<obj></obj><box></box><x1><y99></s><unk><image><x5 <o </"
TOKENIZERS = (_sentencepiece(), train_tokenizer([f"Clear lungs. No mass < 5 mm. {SPELLED}"] * 3, 300))
MADE: list[tuple[Any, Grammar]] = [(tokenizer, Grammar(tokenizer)) for tokenizer in TOKENIZERS]
tokenizers = st.sampled_from(MADE)


def _allowed(grammar: Grammar, state: ReportState, remaining: int | None = None) -> set[int]:
    row, banned = state.choices(remaining)
    return set(np.flatnonzero(grammar.allowed[row]).tolist()) - set(banned)


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _accepts(grammar: Grammar, ids: Sequence[int]) -> bool:
    """Whether the grammar lets this answer through unchanged, in exactly as many tokens as it has."""
    state = ReportState(grammar)
    for place, token in enumerate(ids):
        if token not in _allowed(grammar, state, len(ids) - place):
            return False
        state.advance(token)
    return state.ended


def _advance(grammar: Grammar, ids: Sequence[int]) -> ReportState:
    """The state after tokens, all of which are allowed."""
    state = ReportState(grammar)
    for token in ids:
        assert token in _allowed(grammar, state)
        state.advance(token)
    return state


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def _generate(
    grammar: Grammar, scores: Sequence[Tensor], pad: int, form: Form = "report"
) -> tuple[list[list[int]], set[int]]:
    """Decode greedily; rows that have ended are padded. Returns the answers, and the rows cut off."""
    responses = {row: OpenResponse(grammar, form, len(scores)) for row in range(len(scores[0]))}
    constraints, ends = Constraints(grammar, max(grammar.ids.values()) + 1), set(grammar.ends)
    if form == "boxes":
        ends.add(grammar.ids[OBJECT_END])
    cut = torch.zeros(len(responses), dtype=torch.bool)
    for step in map(Tensor.clone, scores):
        cut |= constraints(step, responses)[1]
        for response, token in zip(responses.values(), step.argmax(-1).tolist(), strict=True):
            response.ids.append(pad if ends & {*response.ids} else token)
        if all(ends & {*response.ids} for response in responses.values()):
            break
    return [response.ids for response in responses.values()], {*cut.nonzero()[:, 0].tolist()}


@st.composite
def logits(draw: st.DrawFn) -> tuple[Any, Grammar, list[Tensor]]:
    """Random logits of a few rows, some of them leaning towards the format, towards angle brackets or the end."""
    tokenizer, grammar = draw(tokenizers)
    steps, rows, size = draw(st.integers(1, 60)), draw(st.integers(1, 3)), len(grammar.texts)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    lean = torch.zeros(size)
    for token in (OBJECT, OBJECT_END, BOX, BOX_END):
        lean[grammar.ids[token]] = draw(st.integers(-2, 5))
    angled = [i for i, text in enumerate(grammar.texts) if re.search("[<>/]|obj|box", text)]
    lean[angled] = draw(st.integers(0, 5))
    lean[list(grammar.ends)] = draw(st.integers(-3, 3))
    scale = draw(st.sampled_from([0.0, 1.0, 10.0]))
    return tokenizer, grammar, list(torch.randn(steps, rows, size, generator=generator) * scale + lean)


@given(logits())
@settings(max_examples=200)
def test_any_logits_give_a_well_formed_report(built: tuple[Any, Grammar, list[Tensor]]) -> None:
    tokenizer, grammar, scores = built
    answers, _ = _generate(grammar, scores, tokenizer.pad_token_id)
    for answer in answers:
        parsed = parse_report(_decode(tokenizer, answer))
        # The grammar limits repetitions of a sentence but does not forbid them.
        assert {note.kind for note in parsed.irregularities} <= {"repeated_sentence"}
        assert not parsed.is_narrative or not parsed.sentences
        generated = [sentence.text for sentence in cut_repetitions(parsed).sentences]
        assert all(generated.count(text) <= 2 for text in generated)


@given(logits())
@settings(max_examples=150)
def test_any_logits_give_well_formed_boxes(built: tuple[Any, Grammar, list[Tensor]]) -> None:
    tokenizer, grammar, scores = built
    assume(len(scores) >= 6)  # four coordinates, </box> and </obj>
    for answer in _generate(grammar, scores, tokenizer.pad_token_id, "boxes")[0]:
        text = _decode(tokenizer, answer)
        boxes, kinds = read_completion("A mass.", text)
        assert boxes
        assert kinds == ()
        assert text.endswith(OBJECT_END)


@pytest.mark.parametrize("bad", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("built", MADE)
def test_nan_logits_give_a_well_formed_report(built: tuple[Any, Grammar], bad: float) -> None:
    tokenizer, grammar = built
    scores = [torch.full((2, len(grammar.texts)), bad)] * 20
    answers, _ = _generate(grammar, scores, 0)
    assert all(parse_report(_decode(tokenizer, row)).irregularities == [] for row in answers)
    assert all(row[0] in _allowed(grammar, ReportState(grammar)) for row in answers)


words = st.text(st.sampled_from("abcx Cl59.,<>/é-ü"), min_size=1, max_size=30).map(str.strip)
texts = words.filter(lambda text: bool(re.search(r"\w", text)) and not re.search(r"<[^ ]*>", text))
LAST_BIN = Box(x_min=0.995, y_min=0.995, x_max=0.995, y_max=0.995)
box_lists = st.none() | st.lists(decoded_boxes(), min_size=1, max_size=16, unique=True).map(tuple)
reports = st.lists(st.builds(Sentence, text=texts, boxes=box_lists), max_size=4, unique_by=lambda s: s.text)


@given(tokenizers, reports)
@example(MADE[0], [Sentence(text="Mass < 5 mm."), Sentence(text="x</o>", boxes=[LAST_BIN])])
def test_a_well_formed_report_is_unchanged(built: tuple[Any, Grammar], report: list[Sentence]) -> None:
    tokenizer, grammar = built
    assert _accepts(grammar, [*_ids(tokenizer, f" {render_report(report)}"), tokenizer.eos_token_id])


STRETCHES = [BOX_A, BOX_B, "<obj>", "</obj>", "<obj>", "<obj>a", "<box>", "</box>", "<x1>", "<y1>", "<x0>", *"b. "]


@st.composite
def answers(draw: st.DrawFn) -> tuple[Any, Grammar, list[int]]:
    tokenizer, grammar = draw(tokenizers)
    text = "".join(draw(st.lists(st.sampled_from(STRETCHES), max_size=8)))
    return tokenizer, grammar, [*_ids(tokenizer, text), tokenizer.eos_token_id]


@given(answers())
@settings(max_examples=500)
def test_the_grammar_accepts_what_the_parser_finds_well_formed(built: tuple[Any, Grammar, list[int]]) -> None:
    tokenizer, grammar, ids = built
    text = _decode(tokenizer, ids)
    parsed = parse_report(text)
    notes = {note.kind for note in parsed.irregularities} - {"repeated_sentence"}
    regular = not notes and not (parsed.is_narrative and parsed.text) and not re.search(r"<(box|[xy]\d+)>\s", text)
    assert _accepts(grammar, ids) == regular


@pytest.mark.parametrize(("written", "allowed", "forbidden"), CASES["next tokens"])
def test_allowed_next_tokens(written: str, allowed: str, forbidden: str) -> None:
    tokenizer, grammar = MADE[1]
    following = _allowed(grammar, _advance(grammar, _ids(tokenizer, written.replace("BOX", BOX_A))))
    assert set(tokenizer.convert_tokens_to_ids(allowed.split())) <= following
    assert following.isdisjoint(tokenizer.convert_tokens_to_ids(forbidden.split()))


@pytest.mark.parametrize("pieces", ["< o b j >", "</ obj>", "< x 1 2 >", "< <0x3E>"])
def test_text_cannot_spell_format_tokens(pieces: str) -> None:
    tokenizer, grammar = MADE[0]
    *start, last = tokenizer.convert_tokens_to_ids(pieces.split())
    state = _advance(grammar, [grammar.ids[OBJECT], *start])
    assert (last in _allowed(grammar, state)) is pieces.endswith("<0x3E>")  # "<>" is none


def test_a_partial_word_is_completed_at_the_token_limit() -> None:
    tokenizer, grammar = MADE[0]
    state = _advance(grammar, _ids(tokenizer, "<obj>ü"))
    undoing = tokenizer.convert_tokens_to_ids("<0xC3>")
    assert undoing in _allowed(grammar, state, 3)
    assert _allowed(grammar, state, 2) == {grammar.ids[OBJECT_END]}


def test_a_third_repetition_ends_the_report() -> None:
    tokenizer, grammar = MADE[1]
    state = _advance(grammar, _ids(tokenizer, f"<obj>Clear.</obj><obj>Clear.{BOX_A}</obj><obj>Clear.</obj>"))
    assert state.looped
    assert _allowed(grammar, state) == {tokenizer.eos_token_id}


@given(tokenizers, reports, st.integers(0, 60))
def test_all_is_closed_at_the_token_limit(built: tuple[Any, Grammar], report: list[Sentence], limit: int) -> None:
    """A model that would write this report is stopped at any place of it."""
    tokenizer, grammar = built
    target = [*_ids(tokenizer, render_report(report)), tokenizer.eos_token_id]
    scores = []
    for token in target[:limit]:
        scores.append(torch.zeros(1, len(grammar.texts)))
        scores[-1][0, token] = 1
    (generated,), cut_rows = _generate(grammar, scores, 0) if scores else ([[]], set())
    parsed = parse_report(_decode(tokenizer, generated))
    assert {note.kind for note in parsed.irregularities} <= {"repeated_sentence"}
    if scores and generated != target[:limit]:
        assert cut_rows == {0}
    if len(generated) == len(target):
        assert cut_rows == set()


def test_a_complete_response_is_not_marked_as_truncated() -> None:
    """At the limit it would spell one of the format's tokens, which is forbidden; next to that, it ends the object."""
    tokenizer, grammar = MADE[0]
    target = [[OBJECT], ["a"], ["</"], ["obj"], [">", OBJECT_END]]
    scores = [torch.zeros(1, len(grammar.texts)) for _ in target]
    for step, pieces in zip(scores, target, strict=True):
        step[0, tokenizer.convert_tokens_to_ids(pieces)] = torch.arange(len(pieces), 0, -1).float()
    (generated,), cut_rows = _generate(grammar, scores, 0)
    assert tokenizer.convert_ids_to_tokens(generated) == [OBJECT, "a", "</", "obj", OBJECT_END]
    assert cut_rows == set()


def test_rows_are_independent_of_other_rows() -> None:
    tokenizer, grammar = MADE[1]
    size = len(grammar.texts)
    scores = list(torch.randn(40, 3, size, generator=torch.Generator().manual_seed(1)))
    for step in scores:
        step[1, tokenizer.eos_token_id] += 6  # ends before the others
    together, _ = _generate(grammar, scores, tokenizer.pad_token_id)
    for row in range(3):
        row_scores = [step[row : row + 1] for step in scores]
        (alone,), _ = _generate(grammar, row_scores, 0)
        assert together[row][: len(alone)] == alone
        assert set(together[row][len(alone) :]) <= {tokenizer.pad_token_id}
