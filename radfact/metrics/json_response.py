"""Reports as models write them: without the words around them, and not what only looks like a report."""

from __future__ import annotations

import math
import re

from radfact.llm.response_text import after_thought

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
_OF_CHANGES = (
    r"(?:explanations?|rationale|notes?|(?:(?:list|summary) of )?(?:the )?"
    r"(?:changes|changed lines|perturbations|modifications|errors)(?: made| introduced)?)"
)
_AFTERWORD = re.compile(
    rf"(?:(?:^|(?<=[.!]))[ \t]*\(?(?:\[{_OF_CHANGES}\]|(?:please )?let me know\b|(?:I )?hope (?:this|that|it) \w+|"
    rf"(?:please )?feel free to\b)|^[ \t]*\(?(?:(?!notes?:){_OF_CHANGES}\s*:|"
    r"notes?:\s+(?:I\b|th[ei]se?\b|the (?:above|following|changes|errors|report)\b)|"
    r"I(?:['’]ve| have)? (?:changed|perturbed|modified|altered|introduced|rephrased|reworded)\b)).*\Z",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_RULE = re.compile(r"^[ \t]*[-=]{3,}[ \t]*$", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9]{2,}")
_NO_CONTENT = re.compile(
    r"the|and|are|was|were|is|of|in|on|at|to|for|with|without|no|not|or|an|as|by|be|has|have|this|that|there|from|"
    r"findings|impression|report|radiology|evidence|patient"
)


def read_written(text: str, source: str, *, alike: bool = True) -> str:
    """The report that an answer is, less thinking aloud, marks of Markdown, and the words to the asker around it.

    Args:
        text: the answer.
        source: what was to be rewritten.
        alike: whether it must have words of the source, as all but a single line in other words has.

    Raises:
        ValueError: it is no report: nothing, a refusal, too short, or of something else.
    """
    plain = _RULE.sub("", re.sub(r"[*`#]", "", after_thought(text))).strip()
    report = _AFTERWORD.sub("", _PREFACE.sub("", plain, count=1)).strip().strip('"“”').strip()
    if not report:
        raise ValueError("expected a report, and nothing else")
    if _REFUSAL.search(report) and not _REFUSAL.search(source):
        raise ValueError("it refuses; expected a report, and nothing else")
    if alike:
        _must_be_of(report, source)
    return report


def _must_be_of(report: str, source: str) -> None:
    """Refuse what is too short to be a report, or has too few words of its source."""
    wanted, found = _WORD.findall(source.lower()), _WORD.findall(report.lower())
    if len(found) < min(3, len(wanted)):
        raise ValueError("expected a whole report; it has only a word or two")
    # Words are compared by how they begin, so that an effusion and effusions are one.
    stems = {word[:5] for word in wanted if not _NO_CONTENT.fullmatch(word)}
    shared = stems & {word[:5] for word in found}
    if len(shared) < min(math.ceil(len(stems) / 10), len(stems)):
        raise ValueError("it has nothing of the report that was given; rewrite that one")
