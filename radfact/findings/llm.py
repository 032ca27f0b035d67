"""Findings read by a language model, with a JSON schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from radfact.findings.records import Extraction, Finding, Status, Tier, report_sentences
from radfact.llm import ChatClient, ChatRequest, PromptPrefix
from radfact.llm.plan import RequestPlan, plan_requests
from radfact.llm.response_text import parse_json
from radfact.metrics.llm.llm_metric import own_prompt
from radfact.reader.facts import Place, parse_sentence
from radfact.reader.ontology import Ontology, phrase_lemmas
from radfact.reader.ontology_file import default_ontology, load_ontology
from radfact.records import NO_CONTEXT, PatientContext, Report, Sentence, Text

_SIDES = {"left": ("left",), "right": ("right",), "both": ("left", "right"), None: (None,)}


class _Claim(BaseModel):
    """One entry of a response; the prompt explains the fields."""

    model_config = ConfigDict(extra="forbid")

    sentence: NonNegativeInt
    finding: Text
    status: Status
    side: Literal["left", "right", "both"] | None
    zone: Literal["upper", "mid", "lower", "apex", "perihilar", "retrocardiac", "peripheral"] | None
    degree: Literal["minimal", "small", "moderate", "large"] | None
    size_mm: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    change: Literal["new", "increased", "decreased", "unchanged", "resolved"] | None
    position: Literal["good_position", "malpositioned"] | None
    character: list[Text]
    tier: Tier


class _Response(BaseModel):
    model_config = ConfigDict(extra="forbid")

    findings: list[_Claim]


class LLMFindingExtractor:
    """An extractor that queries a language model once per report, with our own prompt.

    Names that the ontology knows, in any of its wordings, become its findings; other findings match only by name. The
    model assigns the tiers, with the age, indication and comparison of the patient at hand.
    """

    name = "model"

    def __init__(self, client: ChatClient, *, ontology: Path | str | None = None) -> None:
        """Take the client of the model and the ontology.

        Args:
            client: of the model; responses are cached as those of other requests.
            ontology: a YAML file; by default the packaged ontology.

        Raises:
            InputError: the ontology file is wrong, with its field.
        """
        self.client = client
        self.ontology: Ontology = default_ontology() if ontology is None else load_ontology(ontology)
        self._names = ", ".join(self.ontology.terms[concept] for concept in self.ontology.findings)

    def extract(self, reports: Sequence[Report], contexts: Sequence[PatientContext]) -> list[Extraction]:
        """Return the findings of each report, in order. See `FindingExtractor`.

        Raises:
            RunError: the server refuses the key or the model, cannot be reached, or refuses every request.
        """
        requests = self._requests(reports, contexts)
        responses = dict(zip(requests, self.client.complete_all(list(requests.values())), strict=True))
        return [responses.get(place, ()) for place in range(len(reports))]

    def plan(self, reports: Sequence[Report], contexts: Sequence[PatientContext]) -> RequestPlan:
        """Count the requests that a call would send. See `extract`."""
        return plan_requests(self.client, list(self._requests(reports, contexts).values()))[0]

    def _requests(
        self, reports: Sequence[Report], contexts: Sequence[PatientContext]
    ) -> dict[int, ChatRequest[tuple[Finding, ...]]]:
        """Return the requests by the places of the reports; a report without sentences needs none."""
        sentences = [report_sentences(report) for report in reports]
        return {place: self._request(listed, contexts[place]) for place, listed in enumerate(sentences) if listed}

    def describe(self) -> dict[str, Any]:
        """Return the model, the prompt and the ontology."""
        return {
            "name": self.name,
            "model": self.client.identity,
            "prompt_sha256": self._prompt(NO_CONTEXT).sha256,
            "ontology_version": self.ontology.version,
            "ontology_sha256": self.ontology.sha256,
        }

    def usage(self) -> dict[str, int]:
        """Return the cost so far."""
        return self.client.usage_counter.as_dict()

    def _request(self, sentences: Sequence[Sentence], context: PatientContext) -> ChatRequest[tuple[Finding, ...]]:
        age = None if context.age is None else f"{context.age:g} years"
        known = {"age": age, "indication": context.indication, "comparison": context.comparison}
        patient = "; ".join(f"{name}: {value}" for name, value in known.items() if value is not None)
        numbered = [f"{index}: {sentence.text}" for index, sentence in enumerate(sentences)]
        text = "\n".join([f"Patient: {patient or 'unknown'}", "Report:", *numbered])
        parse, schema = partial(self._parse, sentences), _Response.model_json_schema()
        return ChatRequest((("user", text),), parse, self._prompt(context), schema, schema_required=False)

    def _prompt(self, context: PatientContext) -> PromptPrefix:
        return own_prompt("findings_llm", examination=context.examination, names=self._names)

    def _parse(self, sentences: Sequence[Sentence], text: str) -> tuple[Finding, ...]:
        claims = parse_json(text, _Response).findings
        if not claims:
            raise ValueError("expected at least one finding, present or absent, found none")
        for claim in claims:
            if claim.sentence >= len(sentences):
                raise ValueError(f"sentence: expected 0 to {len(sentences) - 1}, found {claim.sentence}")
        return tuple(self._to_finding(claim, sentences[claim.sentence]) for claim in claims)

    def _to_finding(self, claim: _Claim, sentence: Sentence) -> Finding:
        ontology = self.ontology
        zone = claim.zone if claim.zone in ontology.zone_wholes else None
        places: tuple[Place, ...] = tuple((side, zone) for side in _SIDES[claim.side] if side or zone)
        change = ontology.implications.get(claim.change or "", frozenset())
        return Finding(
            concept=self._concept(claim.finding),
            status="absent" if claim.change == "resolved" else claim.status,
            places=places,
            degree=tuple(sorted(ontology.severity_levels.get(claim.degree or "", ()))),
            sizes=() if claim.size_mm is None else (claim.size_mm,),
            change=tuple(sorted(change)),
            character=tuple(text.lower() for text in claim.character),
            position=() if claim.position is None else (claim.position,),
            sentence=claim.sentence,
            text=sentence.text,
            boxes=sentence.boxes,
            masks=sentence.masks,
            tier=claim.tier if claim.status != "absent" else None,
        )

    def _concept(self, name: str) -> str:
        """Return the finding of the ontology with a name in any wording; another name in lower case."""
        named = name.strip().lower().replace(" ", "_")
        if named in self.ontology.findings:
            return named
        if (concept := self.ontology.phrases.get(phrase_lemmas(name), {}).get("finding")) is not None:
            return concept
        facts = parse_sentence(name, self.ontology).facts
        concepts = {fact.concept for fact in facts if fact.concept in self.ontology.findings}
        return concepts.pop() if len(concepts) == 1 else " ".join(name.lower().split())
