"""Lay out a report as running text, without headings, list marks and line wraps, and segment it into sentences."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from radfact.languages import normalize_characters
from radfact.reader.missing_stops import CAPITAL, LINE, RUNNING_TEXT, begins_sentence, find_missing_stops
from radfact.reader.ontology_file import default_ontology
from radfact.reader.tokens import MAX_CHARACTERS, tokenize
from radfact.reader.vocabulary import ABBREVIATIONS, REMARK_HEADING, pattern, word_set

_BREAKS = pattern("breaks")
_MARKUP = pattern("markup", re.IGNORECASE | re.MULTILINE)
_ITALICS = pattern("italics")
_MARKER = pattern("marker", re.MULTILINE)
_FIRST_LABELS = frozenset("1aAiI")
_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii", "xiii", "xiv", "xv")
_BULLET = pattern("bullet")
_LABEL = pattern("label", re.IGNORECASE | re.MULTILINE)
_TABLE_ROW = pattern("table_row", re.MULTILINE)
_STEM = pattern("stem")
_SECTIONS = word_set("sections")
_SECTION_WORDS = _SECTIONS | word_set("section_words")
_HEADING = pattern("heading", re.NOFLAG)
_INLINE_HEADING = pattern("inline_heading")
_BEFORE_A_NUMBER = frozenset({"no", "nos", "fig", "ca"})
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]]*(?=\s+\S)|(?<=[a-z]{3})\.(?=[A-Z][a-z])")
_MARK = re.compile(r"[.;:!?](?=\s|$)|^\W*(?:[-*•]|\d+[.)])\s", re.MULTILINE)
_MAX_ABBREVIATION = 2 * max(map(len, ABBREVIATIONS))


class Block(NamedTuple):
    """Running text of a report without its heading, and whether it had one."""

    text: str
    has_heading: bool


def lay_out(text: str) -> list[Block]:
    """Return paragraphs, list items and sections as running text; a line break within a statement ends none of them."""
    # No search or slice grows with the text: the output of a model in a loop must take linear time.
    text = _TABLE_ROW.sub(lambda row: row[1].replace("|", ": "), normalize_characters(html.unescape(text)))
    text = _BREAKS.sub("\n", _LABEL.sub(r"\1:", text))
    text = _mark_items(_ITALICS.sub(r"\1", _MARKUP.sub(" ", text)))
    lines = [" ".join(line.split()) for line in _INLINE_HEADING.sub(_break_before_heading, text).split("\n")]
    are_separated = any(first and second for first, second in pairwise(lines))  # unlike text with double spacing
    is_wrapped = _is_wrapped(lines)
    is_cased = re.match(r"\W*[A-Z]", text) is not None and re.search(r"[a-z]", text) is not None
    blocks: list[list[str]] = []
    headed: list[bool] = []
    is_separate, has_heading, stem = True, False, ""
    for index, line in enumerate(lines):
        is_item = (bullet := _BULLET.match(line)) is not None
        stem = stem if is_item or not line else ""
        if not is_item and _STEM.match(line) and any(map(_BULLET.match, lines[index + 1 : index + 2])):
            stem, line = f"{line.rstrip(':')} ", ""  # "no evidence of:" before a list
        content = stem * is_item + _without_heading(line[bullet.end() :] if bullet else line)
        has_heading |= (content != line and not is_item) or REMARK_HEADING.match(content) is not None
        if content:
            is_separate = is_separate or is_item or has_heading
            follows_label = blocks and blocks[-1][-1].endswith(":") and not has_heading
            if follows_label or (not is_separate and _continues(blocks[-1], content, is_wrapped, is_cased)):
                blocks[-1].append(content)
            else:
                blocks.append([content])
                headed.append(has_heading)
            has_heading = False
        is_separate = not blocks or (are_separated and not content)
    return [Block(" ".join(parts), flag) for parts, flag in zip(blocks, headed, strict=True)]


def running_text(text: str) -> str:
    """Return a report with a line for each paragraph, list item and section."""
    return "\n".join(block.text for block in lay_out(text))


def _mark_items(text: str) -> str:
    """Begin a line with "- " at each mark of a list: "1) X 2) Y", "a. X", "II. X"."""
    matches = list(_MARKER.finditer(text))
    labels = {match[1] for match in matches}
    pieces: list[str] = []
    begin = 0
    expected = set[str]()
    for match in matches:
        label, before = match[1], text[max(0, match.start() - 40) : match.start()]
        is_line = not before.rstrip(" \t") or before.rstrip(" \t")[-1] == "\n"
        follows_stop = before.rstrip()[-1:] in (*".:;!?", "")
        is_first = label in _FIRST_LABELS and not labels.isdisjoint(_successors(label))
        if label in expected or ((is_line or follows_stop) and (is_first or label.isdigit())):
            pieces.append(text[begin : match.start()].rstrip(" \t"))
            begin, expected = match.end(), _successors(label)
    return "\n- ".join([*pieces, text[begin:]])


def _successors(label: str) -> set[str]:
    """Return the labels that may follow: "2" after "1", "J" or "II" after "I"."""
    if label.isdigit():
        return {str(int(label) + 1)}
    following = {chr(ord(label) + 1)} if len(label) == 1 else set()
    if label.lower() in _ROMAN[:-1]:
        following.add(_ROMAN[_ROMAN.index(label.lower()) + 1])
    return {other.upper() for other in following} if label.isupper() else following


def _is_section(heading: str) -> bool:
    words = re.split(r"[ /&-]+", heading.lower().strip())
    return _SECTION_WORDS.issuperset(words) and not _SECTIONS.isdisjoint(words)


def _without_heading(line: str) -> str:
    while (match := _HEADING.match(line)) and _is_section(match[1]) and (":" in match[0] or line[0].isupper()):
        line = line[match.end() :]
    return line


def _break_before_heading(match: re.Match[str]) -> str:
    heading = match[1]
    is_heading = _is_section(heading) or REMARK_HEADING.fullmatch(f"{heading}:") is not None
    before = match.string[max(0, match.start() - 40) : match.start()].rpartition("\n")[2].strip()
    if REMARK_HEADING.fullmatch(f"{before} {heading}:"):
        return match[0]  # "CLINICAL HISTORY:"
    follows_stop = match.string[match.start() - 1] in ".!?;"
    return "\n" if is_heading and (follows_stop or heading.isupper()) else match[0]


def _continues(parts: list[str], line: str, is_wrapped: bool, is_cased: bool) -> bool:
    if parts[-1][-1] in ".!?,:;":
        return parts[-1][-1] != ";"  # a stop ends the sentence, not the paragraph
    ontology = default_ontology()
    text = " ".join(parts[-20:])[-400:]
    tokens = tokenize(f"{text} {line[:400]}", ontology)
    first = next((i for i, token in enumerate(tokens) if token.end > len(text)), len(tokens))
    if first == len(tokens) or tokens[first].begin < len(text):
        return True  # a phrase of the lexicon goes on
    begin = max((i + 1 for i in range(first) if tokens[i].ends_clause), default=0)
    is_capital = is_cased and line[:1].isupper() and (line[1:2].islower() or line[1:2] == " ")
    if is_capital and text[-1] == "_":
        return False  # a de-identified word
    is_running = is_wrapped or (is_cased and line[0].islower())
    evidence = CAPITAL if is_capital else RUNNING_TEXT if is_running else LINE
    tokens = [*tokenize(text, ontology), *tokenize(line[:400], ontology)]
    return not begins_sentence(tokens, begin, first, evidence, ontology)


def _is_wrapped(lines: list[str]) -> bool:
    width = max(map(len, lines))
    breaks = [(first, second.split(" ", 1)[0]) for first, second in pairwise(lines) if first and second]
    full = sum(len(first) + 1 + len(word) > width for first, word in breaks)
    return width >= 30 and len(breaks) > 1 and full > 0.5 * len(breaks)


def segment_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a report section as written, without headings, list marks and final punctuation."""
    blocks = lay_out(text)
    for index, block in enumerate(blocks):
        is_remark = REMARK_HEADING.match(block.text) is not None
        if is_remark and any(following.has_heading for following in blocks[index + 1 : index + 2]):
            yield block.text.strip(" .;,")
            continue
        start = 0
        for match in _SENTENCE_END.finditer(block.text):
            before = block.text[max(start, match.start() - _MAX_ABBREVIATION) : match.start()]
            if _is_abbreviation(before, match[0], block.text[match.end() : match.end() + 9].lstrip()):
                continue
            yield from _split_missing_stops(block.text[start : match.end()])
            start = match.end()
        yield from _split_missing_stops(block.text[start:])


def lacks_sentence_marks(text: str) -> bool:
    """Return whether a text has several sentences, but neither punctuation nor list marks that separate them."""
    return _MARK.search(text.rstrip(" .\n")) is None and len(list(segment_sentences(text))) > 1


def _is_abbreviation(before: str, mark: str, after: str) -> bool:
    """Return whether a mark ends no sentence: that of an abbreviation, or a "?" before what is asked."""
    if mark[0] == "?" and (not before.strip() or before[-1].isspace()):
        return before.rstrip()[-1:] in (*",;:(", "") or after[:1].islower()
    if mark != ".":
        return False
    word = before.rsplit(None, 1)[-1].strip("(\"'") if before.strip() else ""
    if word.lower() in _BEFORE_A_NUMBER:
        return after[:1].isdigit()  # "No." ends a sentence unless a number follows.
    if word.lower() in ("a.m", "p.m", "lt", "rt"):
        # A capital letter begins a sentence; several are an abbreviation, as in "Rt. IJ line".
        return not after[:1].isupper() or (word.lower() in ("lt", "rt") and after[:2].isupper())
    return word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper() and after[:1].isupper())


@lru_cache(maxsize=1 << 15)
def _split_missing_stops(sentence: str) -> list[str]:
    sentence = " ".join(sentence.split())
    tokens = tokenize(sentence, default_ontology()) if len(sentence) <= MAX_CHARACTERS else []
    begins = [0, *(tokens[i].begin for i in find_missing_stops(tokens, sentence, default_ontology())), len(sentence)]
    parts = [sentence[begin:end].strip(" .;,") for begin, end in pairwise(begins)]
    return [part for part in parts if any(c.isalnum() for c in part)]
