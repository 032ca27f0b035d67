"""Parser of a rewritten report: what surrounds it is removed, and what is not a report is refused."""

from __future__ import annotations

import math
import re

from radfact.llm.response_text import strip_reasoning

_REFUSAL = re.compile(
    r"\b(?:I(?:['’]m| am) (?:very |so |truly )?sorry|I apologi[sz]e|my apologies|as an AI\b|"
    r"I(?:['’]m| am) (?:unable|not able|not allowed)|I (?:can(?:['’]t|not)|must decline)\W*$|"
    r"I (?:can(?:['’]t|not| not)|could not|won['’]t|will not|must decline)(?: \w+){0,2}? "
    r"(?:assist|help|comply|fulfil\w*|provide|create|generate|do|complete|write|rewrite|format|modify|perturb|produce|"
    r"process|standardi[sz]e|rephrase|introduce|continue)\b|"
    r"(?:please|could you|you (?:have not|haven['’]t|did not|didn['’]t)) (?:provided?|shared?|pasted?|sen[dt]) "
    r"(?:me |us )?(?:the|your|an?|any)\b)",
    re.IGNORECASE,
)
_PREFACE = re.compile(
    r"\A\s*(?:(?:sure|certainly|of course|okay|ok|absolutely|yes|understood)\b[^\n:]{0,40}?(?:[!.,:]\s*|\n\s*))?"
    r"(?:I(?:['’](?:d|ll)| would| will| can)\b[^\n.:!]{0,80}[.!:]\s*)?"
    r"(?:(?:here(?:['’]s| is| are)|below (?:is|are)|the following is)\b[^\n:.]{0,90}:\s*|"
    r"(?:the )?(?:\w+ ){0,2}(?:report|version|paraphrase)(?: is| is as follows)?:\s*\n\s*)?",
    re.IGNORECASE,
)
_CHANGES = (
    r"(?:explanations?|rationale|notes?|(?:(?:list|summary) of )?(?:the )?"
    r"(?:changes|changed lines|perturbations|modifications|errors)(?: made| introduced)?)"
)
_AFTERWORD = re.compile(
    rf"(?:(?:^|(?<=[.!]))[ \t]*\(?(?:\[{_CHANGES}\]|(?:please )?let me know\b|(?:I )?hope (?:this|that|it) \w+|"
    rf"(?:please )?feel free to\b)|^[ \t]*\(?(?:(?!notes?:){_CHANGES}\s*:|"
    r"notes?:\s+(?:I\b|th[ei]se?\b|the (?:above|following|changes|errors|report)\b)|"
    r"I(?:['’]ve| have)? (?:changed|perturbed|modified|altered|introduced|rephrased|reworded)\b)).*\Z",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_RULE = re.compile(r"^[ \t]*[-=]{3,}[ \t]*$", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9]{2,}")
_STOP_WORD = re.compile(
    r"the|and|are|was|were|is|of|in|on|at|to|for|with|without|no|not|or|an|as|by|be|has|have|this|that|there|from|"
    r"findings|impression|report|radiology|evidence|patient"
)
_STEM = 5
"""Words with the same first letters are counted as the same, such as "effusion" and "effusions"."""


def parse_report(text: str, source: str, *, requires_overlap: bool = True) -> str:
    """Parse a response that is a rewritten report, without reasoning text, Markdown and remarks to the user."""
    plain = _RULE.sub("", re.sub(r"[*`#]", "", strip_reasoning(text))).strip()
    report = _AFTERWORD.sub("", _PREFACE.sub("", plain, count=1)).strip().strip('"“”').strip()
    if not report:
        raise ValueError("expected a report, and nothing else")
    if _REFUSAL.search(report) and not _REFUSAL.search(source):
        raise ValueError("it refuses; expected a report, and nothing else")
    if not requires_overlap:
        return report
    source_words, report_words = _WORD.findall(source.lower()), _WORD.findall(report.lower())
    if len(report_words) < min(3, len(source_words)):
        raise ValueError("expected a whole report; it has only a word or two")
    source_stems = {word[:_STEM] for word in source_words if not _STOP_WORD.fullmatch(word)}
    shared = source_stems & {word[:_STEM] for word in report_words}
    if len(shared) < min(math.ceil(len(source_stems) / 10), len(source_stems)):
        raise ValueError("it has nothing of the report that was given; rewrite that one")
    return report
