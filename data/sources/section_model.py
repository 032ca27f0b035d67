"""Sections of reports by a language model, for reports without known headings (USMix in MAIRA-2, appendix B.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from maira.data.archive import prose
from radfact.errors import Failure
from radfact.io.jsonl import read_text
from radfact.llm import ChatClient, PromptPrefix, structured_request
from radfact.llm.response_text import bodies, read_data

INSTRUCTION = read_text(Path(__file__).with_suffix(".txt")).rstrip()
PARAMETERS = {"temperature": 0, "max_tokens": 2048}


class _Sections(BaseModel):
    model_config = ConfigDict(extra="forbid")

    findings: str | None
    impression: str | None
    indication: str | None
    technique: str | None
    comparison: str | None


def extract_sections(reports: Sequence[str], client: ChatClient) -> list[dict[str, str] | Failure]:
    """Return the sections that a report has, in its own words, for each report."""
    prefix = PromptPrefix([("system", INSTRUCTION)])
    requests = [
        structured_request(
            (("user", report),),
            _Sections,
            partial(_check_words, report=report),
            partial(_read_text, report=report),
            prefix=prefix,
        )
        for report in reports
    ]
    return client.complete_all(requests)


def _read_text(text: str, report: str) -> dict[str, str]:
    data = next((data for body in bodies(text) if isinstance(data := read_data(body), dict)), None)
    if data is None or not all(isinstance(value, str | None) for value in data.values()):
        raise ValueError(f"expected an object of {', '.join(_Sections.model_fields)}, each a text or null")
    return _check_words(_Sections(**{name: data.get(name) for name in _Sections.model_fields}), report)


def _check_words(response: _Sections, report: str) -> dict[str, str]:
    sections = {name: text for name, value in response if (text := prose(value))}
    for name, text in sections.items():
        if _words(text) not in _words(report):
            raise ValueError(f"{name}: expected the words of the report in their order, found others: '{text:.80}'")
    return sections


def _words(text: str) -> str:
    return " ".join(["", *re.findall(r"\w+", text.lower()), ""])
