"""A small random MAIRA-2 that vLLM can run, and requests to it."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from maira.data.phantoms import write_phantoms
from maira.data.study import Study
from maira.generate.engine import GenerationRequest, Sampling, report_request
from maira.grounding.evaluation import completion_items
from maira.model.task_examples import make_example
from maira.model.tokens import BOX, BOX_END, OBJECT, OBJECT_END

NEW_TOKENS = 40
LONG = "long"
BROKEN = "broken"


def write_checkpoint(folder: Path) -> Any:
    """Write and return a random model with two layers per part, whose reports often have objects and boxes."""
    # Imported here, since the environment of vLLM runs this file without the folder of that one.
    from tiny_weights import make_config, make_model, make_processor

    processor = make_processor()
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5}
    # vLLM's attention on the CPU supports head sizes of at least 32.
    model = make_model(make_config(processor, hidden_size=64, rope_parameters=rope), seed=1)
    head = model.lm_head.weight
    with torch.no_grad():
        head[processor.tokenizer.eos_token_id] *= 0.5
        for token in (OBJECT, OBJECT_END, BOX, BOX_END):
            head[processor.tokenizer.convert_tokens_to_ids(token)] *= 2
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def write_studies(folder: Path) -> None:
    """Write 12 phantom studies with one to three images of 64 pixels."""
    list(write_phantoms(folder, 12, seed=7, size=64, split="test"))


def report_requests(studies: list[Study], temperature: float | None = None) -> dict[str, GenerationRequest]:
    """Return requests for reports by name; with a temperature, each has its own seed."""
    requests = {}
    for seed, (study, task) in enumerate(itertools.product(studies, ("findings", "grounded"))):
        sampling = None if temperature is None else Sampling(temperature, 2**63 + seed)
        request = report_request(make_example(study, task), NEW_TOKENS)
        requests[f"{task} {study.sample_id}"] = replace(request, sampling=sampling)
    return requests


def all_requests(studies: list[Study], broken: Path) -> dict[str, GenerationRequest]:
    """Return requests of every form by name, and one with an unreadable image (`BROKEN`) and a long one (`LONG`).

    Args:
        studies: studies of `write_studies`.
        broken: file that is not an image.
    """
    requests = report_requests(studies)
    for study in studies:
        for number, sentence in enumerate(study.grounded_findings or ()):
            example = make_example(study, "phrase", phrase=sentence)
            requests[f"phrase {study.sample_id} {number}"] = report_request(example, NEW_TOKENS)
        requests |= {f"boxes {item.key}": item.request for item in completion_items(study, NEW_TOKENS)}
    first = report_request(make_example(studies[0], "findings"), NEW_TOKENS)
    requests[BROKEN] = replace(first, example=replace(first.example, images=(broken, *first.example.images[1:])))
    verbose = studies[0].model_copy(update={"indication": "Cough. " * 900})
    requests[LONG] = report_request(make_example(verbose, "findings"), NEW_TOKENS)
    return requests
