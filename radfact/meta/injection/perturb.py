"""Who puts a few errors into standardised reports (paper 002, step 3): rules, or a language model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol

from radfact.errors import Failure
from radfact.meta.datasets.report_table import SiteReport
from radfact.meta.injection.llm_editor import PromptedModel, ask_report
from radfact.meta.injection.records import Injected
from radfact.meta.injection.rules import RuleInjector

MOST_ERRORS = 5


class Perturber(Protocol):
    """Puts a few errors into standardised reports."""

    @property
    def name(self) -> str:
        """As it stands in results."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything that changes what it writes, JSON values."""
        ...

    def perturb(self, sources: Sequence[SiteReport]) -> list[Injected | Failure]:
        """A candidate of every report, or why not."""
        ...


class RulePerturber:
    """One to five errors of any category a report, drawn by seed and id; the labels count them."""

    name = "rules"

    def __init__(self, *, seed: int = 42) -> None:
        """Take the seed."""
        self.seed = seed
        self._injector = RuleInjector(seed=seed)

    def describe(self) -> dict[str, Any]:
        """Its name and seed."""
        return {"rules": self.name, "seed": self.seed}

    def perturb(self, sources: Sequence[SiteReport]) -> list[Injected | Failure]:
        """A candidate of every report; one that has no room for as many gets fewer."""
        found: list[Injected | Failure] = []
        for one in sources:
            count = random.Random(f"{self.seed}/{one.sample_id}/count").randint(1, MOST_ERRORS)
            made = self._injector.mixed(one.sample_id, one.report, count)
            found.append(made.model_copy(update={"site": one.site}))
        return found


class ModelPerturber(PromptedModel):
    """The paper's second prompt, below the report that it speaks of; how many errors there are experts must count."""

    prompt = "perturb"

    def perturb(self, sources: Sequence[SiteReport]) -> list[Injected | Failure]:
        """A candidate of every report.

        Raises:
            RunError: as `ChatClient.complete_all`.
        """
        prompt = self.instructions
        asks = [ask_report((("user", f"{one.report}\n\n{prompt}"),), one.report, changed=True) for one in sources]
        answers = self.client.complete_all(asks)
        return [
            answer
            if isinstance(answer, Failure)
            else Injected(
                sample_id=one.sample_id,
                source_id=one.sample_id,
                reference=one.report,
                candidate=answer,
                by=self.name,
                site=one.site,
            )
            for one, answer in zip(sources, answers, strict=True)
        ]
