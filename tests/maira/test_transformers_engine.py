"""The engine of transformers: the same responses whatever the batch, the cache and the memory; images seen once."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises_code
from long_values import DATA
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from maira.data.images import load_gray
from maira.data.study import Study
from maira.generate import engine as module
from maira.generate import transformers_engine
from maira.generate.engine import EngineOptions, FailedRequest, GenerationRequest, Response, Sampling, report_request
from maira.generate.features import ImageFeatures
from maira.generate.transformers_engine import Prompt, TransformersEngine, largest_batch_size
from maira.generate.vllm_parts import PromptEmbedder
from maira.grounding.evaluation import completion_items
from maira.model.config import MairaConfig
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task
from maira.model.task_examples import make_example
from radfact.errors import ErrorCode

Requests = list[GenerationRequest]
Texts = list[tuple[str, bool]]
Responses = dict[int, Response | FailedRequest]
Start = Callable[..., TransformersEngine]


@pytest.fixture(scope="module")
def start(checkpoint: Path) -> Start:
    """Return a function that starts an engine with options."""
    return lambda **options: TransformersEngine(checkpoint, EngineOptions(**options))


@pytest.fixture(scope="module")
def requests(studies: list[Study]) -> Requests:
    """Prompts of one to three images, of which some belong to several studies, in two forms and limits."""
    selected = [
        studies[0],
        studies[1].model_copy(update={"lateral": studies[0].frontal}),
        studies[2].model_copy(update={"lateral": studies[0].frontal, "prior_frontal": studies[1].frontal}),
        studies[3].model_copy(update={"prior_frontal": studies[2].frontal, "prior_report": "No mass. " * 3}),
        studies[4],
    ]
    grounded = [report_request(make_example(study, "grounded"), 14) for study in selected]
    return [*grounded, *(report_request(make_example(study, "findings"), 9) for study in selected[:3])]


@pytest.fixture(scope="module")
def expected(start: Start, requests: Requests) -> Texts:
    """The responses of the engine to one request at a time."""
    return _texts(_run(start(batch_size=1), requests))


def _run(engine: TransformersEngine, requests: Requests) -> Responses:
    responses = list(engine.generate(requests))
    assert sorted(index for index, _ in responses) == list(range(len(requests)))
    return dict(responses)


def _texts(responses: Responses) -> Texts:
    every = [responses[index] for index in range(len(responses))]
    return [(response.text, response.cut_off) for response in every if isinstance(response, Response)]


def _parrot(engine: TransformersEngine, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine's model want to write a text again and again."""
    ids = engine.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    step, place = engine._step, itertools.count()

    def parrot(*inputs: Any) -> torch.Tensor:
        logits = torch.zeros_like(step(*inputs))
        logits[..., ids[next(place) % len(ids)]] = 1
        return logits

    monkeypatch.setattr(engine, "_step", parrot)


@pytest.mark.parametrize("free", [False, True])
def test_non_finite_logits_fail_their_request_alone(
    start: Start, requests: Requests, monkeypatch: pytest.MonkeyPatch, free: bool
) -> None:
    requests = [request for request in requests if len(request.example.images) == 1][-3:]
    expected = _run(start(batch_size=3, free=free), requests)
    engine = start(batch_size=3, free=free)
    project, image = engine.model.project, requests[1].example.images[0]
    (pixels,) = engine.processor.image_processor([image])["pixel_values"][:, :1]
    poisoned = engine.model.encode_patches(pixels[None])[0]

    def project_with_nan(patches: torch.Tensor) -> torch.Tensor:
        tokens: torch.Tensor = project(patches)
        tokens[(patches - poisoned).abs().amax((1, 2)) < 1e-4] = torch.nan
        return tokens

    monkeypatch.setattr(engine.model, "project", project_with_nan)
    responses = _run(engine, requests)
    broken = [index for index, request in enumerate(requests) if request.example.images[0] == image]
    assert {responses[index] for index in broken} == {FailedRequest(module.NON_FINITE)}
    kept = [index for index in expected if index not in broken]
    assert kept
    assert [responses[index].text for index in kept] == [expected[index].text for index in kept]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "prefilled"), [({}, 16_384), ({"batch_size": 3}, 50), ({"batch_size": 2, "cache": "static"}, 16_384)]
)
def test_responses_do_not_depend_on_batch_cache_and_groups_of_prompts(
    start: Start, requests: Requests, expected: Texts, monkeypatch: pytest.MonkeyPatch, options: Any, prefilled: int
) -> None:
    monkeypatch.setattr(transformers_engine, "_PREFILL_TOKENS", prefilled)
    engine = start(**options)
    for _ in range(1 + engine._is_static):
        assert _texts(_run(engine, requests)) == expected


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_equal_prompts_are_computed_once_with_equal_probabilities(start: Start, requests: Requests, cache: str) -> None:
    sampled = [replace(requests[n], sampling=Sampling(1.0, seed)) for seed, n in enumerate((0, 3, 0, 0))]

    def run(batch_size: int) -> tuple[list[Any], list[torch.Tensor], int]:
        engine, log_probs, prompts = start(cache=cache, batch_size=batch_size), [torch.empty(0)] * 4, 0
        choose, decode = engine._constraints, engine.model.decode

        def choose_and_note(scores: torch.Tensor, rows: Any) -> Any:
            flags = choose(scores, rows)
            for row, response in rows.items():  # only the sampled token keeps a score, its log-probability
                seed = response.sampling.seed
                log_probs[seed] = torch.cat([log_probs[seed], scores[row].amax(keepdim=True)])
            return flags

        def decode_and_count(embeddings: torch.Tensor, **inputs: Any) -> Any:
            nonlocal prompts
            prompts += len(embeddings) if embeddings.shape[1] > 1 else 0
            return decode(embeddings, **inputs)

        engine._constraints, engine.model.decode = choose_and_note, decode_and_count  # type: ignore[assignment]
        responses = _run(engine, sampled)
        return [responses[index] for index in range(4)], log_probs, prompts

    (together, shared, few), (alone, separate, many) = run(4), run(1)
    assert [response.ids for response in together] == [response.ids for response in alone]
    torch.testing.assert_close(shared, separate, atol=1e-5, rtol=0)
    assert (few, many) == (2, 4)


@pytest.mark.parametrize(
    ("cache", "numbers", "is_masked"), [("dynamic", (0, 0), False), ("dynamic", (0, 3), True), ("static", (0, 3), True)]
)
def test_prompts_and_responses_of_equal_length_need_no_mask(
    start: Start, requests: Requests, monkeypatch: pytest.MonkeyPatch, cache: str, numbers: Any, is_masked: bool
) -> None:
    """FlashAttention takes no mask, and attends to all keys, also to those of a static cache that are not filled."""
    attend, calls = F.scaled_dot_product_attention, set()

    def attend_and_note(query: torch.Tensor, key: torch.Tensor, *inputs: Any, **options: Any) -> torch.Tensor:
        is_prompt = query.shape[2] > 1
        calls.add((is_prompt, is_prompt and key.shape == query.shape, options.get("attn_mask") is not None))
        return attend(query, key, *inputs, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend_and_note)
    _run(start(cache=cache), [requests[number] for number in numbers])
    assert calls == {(True, True, False), (False, False, is_masked)}


@pytest.mark.slow
def test_one_graph_serves_batches_of_all_sizes(
    start: Start, requests: Requests, expected: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_, counter = torch.compile, CompileCounter()
    monkeypatch.setattr(
        torch, "compile", lambda step, **options: compile_(step, **options | {"backend": counter, "mode": None})
    )
    monkeypatch.setattr(TransformersEngine, "_compiles", lambda *_: True)
    monkeypatch.setattr(transformers_engine, "_CACHE_STEP", 16)
    monkeypatch.setattr(transformers_engine, "_CACHE_SLACK", 1)
    engine = start(cache="static", batch_size=3)
    shapes = set()
    make_cache = engine._make_cache
    monkeypatch.setattr(engine, "_make_cache", lambda *size: (make_cache(*size), shapes.add(engine._static_shape))[0])
    assert _texts(_run(engine, requests)) == expected
    assert len(shapes) > 1
    assert counter.frame_count == 1


def test_an_unreadable_image_fails_its_own_request_only(
    start: Start, requests: Requests, expected: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(batch_size=4)
    generate, rows = engine._generate, []

    def count(prompts: Sequence[Prompt], images: Any) -> Any:
        rows.append(len(prompts))
        return generate(prompts, images)

    monkeypatch.setattr(engine, "_generate", count)
    example, broken = requests[2].example, tmp_path / "broken.png"
    broken.write_bytes(example.images[0].read_bytes()[:200])
    unreadable = replace(requests[2], example=replace(example, images=(broken, *example.images[1:])))
    responses = _run(engine, [*requests, unreadable])
    fault = responses.pop(len(requests))
    assert isinstance(fault, FailedRequest)
    assert "broken.png: cannot be read as an image" in fault.reason
    assert _texts(responses) == expected
    assert sum(rows) == len(requests)


def test_running_out_of_memory_halves_batches(
    start: Start, requests: Requests, expected: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(batch_size=5)
    language_model, tried = engine.model.model.language_model, []
    forward = language_model.forward

    @functools.wraps(forward)
    def with_memory_for_two_rows(*arguments: Any, **inputs: Any) -> Any:
        tried.append(len(inputs["inputs_embeds"]))
        if tried[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(*arguments, **inputs)

    monkeypatch.setattr(language_model, "forward", with_memory_for_two_rows)
    assert _texts(_run(engine, requests)) == expected
    assert [rows for rows in tried if rows > 2] == [5]


@pytest.mark.slow
def test_a_request_too_large_for_memory_fails_alone(
    start: Start, requests: Requests, expected: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(batch_size=4)
    longest = max(len(engine.processor.encode_example(request.example)) for request in requests)
    prefilled, rows = engine._prefill, []

    def too_long(prompts: Sequence[Prompt], images: Any) -> Any:
        if len(prompts[0].ids) == longest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        rows.append(len(prompts))
        return prefilled(prompts, images)

    monkeypatch.setattr(engine, "_prefill", too_long)
    responses = _run(engine, requests)
    (index,) = (index for index, response in responses.items() if isinstance(response, FailedRequest))
    assert responses.pop(index) == FailedRequest("does not fit in memory, even alone (out of memory)")
    answered = [responses[i] for i in sorted(responses)]
    assert _texts(dict(enumerate(answered))) == expected[:index] + expected[index + 1 :]
    assert max(rows) == 4


@pytest.mark.parametrize(("text", "limit", "free", "cut_off"), DATA["ends of boxes"])
def test_boxes_end_where_the_model_or_the_limit_ends_them(
    studies: Any, start: Start, monkeypatch: pytest.MonkeyPatch, text: str, limit: int, free: bool, cut_off: bool
) -> None:
    request = next(item.request for study in studies for item in completion_items(study, limit))
    engine = start(free=free)
    _parrot(engine, text, monkeypatch)
    assert _texts(_run(engine, [request])) == [("<x10><y20><x30><y40></box></obj>", cut_off)]


@pytest.mark.parametrize(("task", "text", "expected"), DATA["loops"])
def test_loops_are_ended_unless_decoding_is_free(
    studies: list[Study], start: Start, monkeypatch: pytest.MonkeyPatch, task: Task, text: str, expected: str
) -> None:
    requests = [report_request(make_example(study, task), 90) for study in studies[:2]]
    guarded = start()
    _parrot(guarded, text, monkeypatch)
    assert _texts(_run(guarded, requests)) == [(expected, False)] * 2
    free = start(free=True)
    _parrot(free, text, monkeypatch)
    for repeated, cut_off in _texts(_run(free, requests)):
        assert repeated.count("No mass.") > 3
        assert cut_off


@pytest.mark.parametrize(
    ("device", "code"), [("gpu", ErrorCode.INVALID_OPTION), ("cuda:64", ErrorCode.MISSING_REQUIREMENT)]
)
def test_a_device_that_does_not_exist_is_refused(start: Start, device: str, code: ErrorCode) -> None:
    with raises_code(code, field="device"):
        start(device=device)


def test_the_batch_size_follows_accelerator_memory() -> None:
    """By the specification's arithmetic: about 24 of three images in 80 GB, 13.8 of which the model takes."""
    text = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    config = MairaConfig(text_config=text | {"vocab_size": 32207}).text_config
    three_images, one_image = (largest_batch_size(int(66e9), tokens + 150, config, 2) for tokens in (4360, 1600))
    assert 22 <= three_images <= 26
    assert one_image > 2 * three_images
    assert largest_batch_size(0, 4360, config, 2) == 1


class OnePixel(nn.Module):
    """An encoder whose only token is a pixel of the image; it notes how many images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.seen += len(pixels)
        return pixels[:, 0, 16, 16, None, None]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("held", "encoded"), [(1 << 20, 5), (0, None)])
def test_memory_for_encoded_images_is_bounded(
    studies: list[Study], processor: MairaProcessor, size: int, held: int, encoded: int | None
) -> None:
    """The first image is needed again by the last request, the others by their neighbours."""
    a, b, c, d, e = (study.frontal for study in studies)
    shown: list[tuple[Path, ...]] = [(a, b), (b,), (c,), (c, d), (d,), (d, e), (e,), (a,)]
    encoder = OnePixel()
    result: list[list[float]] = []
    with ImageFeatures(encoder, processor.image_processor, shown, cache_bytes=held) as bounded:
        for first in range(0, len(shown), size):
            tokens: Any = bounded.encode(first, min(len(shown), first + size))
            result += [[tokens[image].item() for image in images] for images in shown[first : first + size]]
        assert sum(tokens.nbytes for tokens in bounded._cache.values()) <= held
    pixels = {image: processor.image_processor([load_gray(image)])["pixel_values"] for row in shown for image in row}
    assert result == [[pixels[image][0, 0, 16, 16].item() for image in images] for images in shown]
    assert encoded is None or encoder.seen == encoded


def _engine(model: Any, processor: MairaProcessor, room: int, monkeypatch: pytest.MonkeyPatch) -> TransformersEngine:
    monkeypatch.setattr(model.config.text_config, "max_position_embeddings", room)
    return TransformersEngine.from_model(model, processor, EngineOptions(free=True))


def test_a_prompt_that_fills_the_context_window_is_a_failure_of_its_study_only(
    model: Any, processor: Any, checkpoint: Path, requests: Requests, studies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = requests[5]
    wordy = studies[0].model_copy(update={"indication": "Cough. " * 30})
    long = report_request(make_example(wordy, "findings"), 9)
    length = len(processor.encode_example(long.example))
    answers = dict(_engine(model, processor, length, monkeypatch).generate([long, question]))
    assert isinstance(answers[0], FailedRequest)
    assert answers[0].reason.count(str(length)) == 2
    assert isinstance(answers[1], Response)
    assert list(PromptEmbedder.from_checkpoint(checkpoint).embed([long], length)) == [answers[0]]


@pytest.mark.parametrize("n_left", [1, 4])
def test_a_response_ends_with_the_context_window(
    model: Any, processor: MairaProcessor, requests: Requests, monkeypatch: pytest.MonkeyPatch, n_left: int
) -> None:
    question = requests[5]
    room = len(processor.encode_example(question.example)) + n_left
    short = GenerationRequest(question.example, question.form, n_left)
    ((_, expected),) = _engine(model, processor, 10_000, monkeypatch).generate([short])
    ((_, result),) = _engine(model, processor, room, monkeypatch).generate([question])
    assert isinstance(expected, Response)
    assert isinstance(result, Response)
    assert (result.text, result.cut_off) == (expected.text, expected.cut_off)
    assert question.fit_window(room - n_left, room) == short
