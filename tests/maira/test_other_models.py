"""Drafts of other models than MAIRA-2: of a server with the OpenAI protocol, and of checkpoints of transformers."""

import base64
import functools
import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from chat_server import SECRET, ChatServer, completion
from draft_files import read_rows, without_time
from error_checks import raises_code
from PIL import Image
from releases import write_release
from tiny_weights import TEXTS

from maira.data.manifest import read_failures, write_manifest
from maira.data.study import Study
from maira.generate import engine as engines
from maira.generate.drafts import generate_drafts
from maira.generate.features import read_image
from maira.grounding.evaluation import complete_boxes, ground_phrases
from maira.grounding.phrases import Phrase
from maira.model import prompts
from maira.model.task_examples import make_example
from maira.model.tokens import IMAGE
from maira.train.components import train_tokenizer
from radfact.errors import ErrorCode, RunError
from radfact.records import Box, Sentence

CASES = yaml.safe_load(Path(__file__).with_name("other_models.yaml").read_text("utf-8"))
CLEAR = (200, {}, "<obj>Clear.</obj>")
MakeStudy = Callable[..., Study]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def draft(study: Study, server: ChatServer, out: Path, task: Any = "grounded") -> tuple[int, Any]:
    engine = engines.EngineOptions(engine="server", model="m", base_url=server.base_url, image_check="off")
    return generate_drafts([study], None, out, engines.GenerationOptions(task=task), engine)


def test_a_server_sees_the_prompt_and_whole_images(make_study: MakeStudy, serve: Any, tmp_path: Path) -> None:
    study = make_study("lateral", "prior_frontal", indication="Cough.")
    levels = np.random.default_rng(0).integers(100, 200, (3, 100, 200))
    for path, pixels in zip((study.frontal, study.lateral, study.prior_frontal), levels, strict=True):
        Image.fromarray(pixels.astype(np.uint16)).save(str(path))
    server, tasks = serve(lambda *_: CLEAR), ("findings", "grounded")
    assert [draft(study, server, tmp_path / f"{task}.jsonl", task) for task in tasks] == [(1, [])] * 2
    for body, task in zip(server.requests, tasks, strict=True):
        example = make_example(study, task, whole_images=True)  # type: ignore[arg-type]
        system, user = body["messages"]
        assert (system["role"], system["content"]) == ("system", example.messages[0]["content"][0]["text"])
        assert "".join(item.get("text", IMAGE) for item in user["content"]) == example.text
        assert example.text.endswith(prompts.TEXTS["box format"]) is (task == "grounded")
        urls = [item["image_url"]["url"] for item in user["content"] if item["type"] == "image_url"]
        for url, pixels in zip(urls, levels, strict=True):
            sent = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))
            low, high = pixels.min(), pixels.max()
            np.testing.assert_allclose(sent, (pixels - low) / (high - low) * 255, atol=0.51)
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 300 if task == "findings" else 450)
    assert {head["authorization"] for head in server.headers} == {f"Bearer {SECRET}"}
    assert SECRET not in (tmp_path / "grounded.run.json").read_text()


@pytest.mark.parametrize(("task", "case"), [(task, case) for task in ("findings", "grounded") for case in CASES[task]])
def test_the_report_is_found_in_a_response(
    make_study: MakeStudy, serve: Any, tmp_path: Path, task: Any, case: list[Any]
) -> None:
    sent, expected, *kinds = case
    fields = {"content": sent} if isinstance(sent, str) else dict(sent)
    reply = completion("", fields.pop("finish_reason", "stop"))
    reply["choices"][0]["message"] |= fields
    run = functools.partial(draft, make_study(), serve(lambda *_: reply), tmp_path / "drafts.jsonl", task)
    if isinstance(expected, dict):
        with raises_code(ErrorCode.RUN_FAILED, match=re.escape(expected["reason"])):
            run()
        return
    run()
    (row,) = read_rows(tmp_path / "drafts.jsonl")
    report = row["report"]
    if task == "grounded":
        # The image is twice as wide as high: boxes refer to all of it.
        report = [s | {"boxes": s["boxes"] and [[*box.values()] for box in s["boxes"]]} for s in report]
        expected = [s | {"boxes": s["boxes"] and [pytest.approx(box) for box in s["boxes"]]} for s in expected]
    assert (report, row["model"]) == (expected, "m")
    assert {note["kind"] for note in row["irregularities"]} == {*kinds}
    assert not isinstance(fields["content"], str) or row["raw"] == fields["content"]


def test_a_killed_run_resumes_with_the_same_model_and_a_refused_study_fails_alone(
    studies: list[Study], serve: Any, run_maira: Any, tmp_path: Path
) -> None:
    Image.new("L", (64, 64)).save(tmp_path / "black.png")
    black = studies[0].model_copy(update={"frontal": tmp_path / "black.png", "sample_id": "black"})
    write_manifest(tmp_path / "set.jsonl", [*studies, black])
    message = "This model's maximum context length is 100 tokens."
    replies = {3: (401, {}, f"bad key {SECRET}"), 4: (400, {}, message)}
    server = serve(lambda _, number: replies.get(number, CLEAR))
    command = ["generate", "--engine", "server", "--model", "m", "--base-url", server.base_url, "--concurrency", "1"]
    command += ["--manifest", "set.jsonl", "--out", "drafts.jsonl"]
    code, _, error = run_maira(*command)
    assert (code, error.count("the key was refused"), "Traceback" in error, SECRET in error) == (1, 1, False, False)
    assert len(read_rows(tmp_path / "drafts.jsonl.partial")) == 2
    code, output, _ = run_maira(*command)
    assert (code, "4 of 6 studies drafted" in output, len(server.requests)) == (3, True, 6)
    reasons = sorted(failure.reason for failure in read_failures(tmp_path / "failures.jsonl"))
    assert reasons[1] == f"HTTP 400 ({message})"
    assert "black.png: expected a chest radiograph" in reasons[0]
    for name, value in {"model": "n", "base_url": "http://127.0.0.1:9", "engine_args": "top_p=0.5"}.items():
        flag = f"--{name.replace('_', '-').removesuffix('s')}"
        code, _, error = run_maira(*command, flag, value)
        assert (code, f"another {name}" in error, len(server.requests)) == (2, True, 6)


@pytest.mark.parametrize(("reply", "part"), CASES["stopped"])
def test_what_no_study_can_change_stops_the_run(
    make_study: MakeStudy, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Any, part: str
) -> None:
    monkeypatch.setattr("radfact.llm.client.FIRST_CONNECTION_SECONDS", 0.0)
    server = serve(lambda *_: CLEAR if reply is None else (reply[0], {}, reply[1]))
    if reply is None:
        server.base_url = "http://127.0.0.1:9/v1"
    with pytest.raises(RunError, match=part) as caught:
        draft(make_study(), server, tmp_path / "drafts.jsonl")
    assert caught.value.code is (ErrorCode.SERVER_UNAVAILABLE if reply is None else ErrorCode.RUN_FAILED)
    assert not {"judge", "splitter", "cached"} & {*str(caught.value).replace("-", " ").split()}


def test_phrases_are_located_on_whole_images(make_study: MakeStudy, serve: Any, tmp_path: Path) -> None:
    reference = Box(x_min=0, y_min=0, x_max=0.5, y_max=1)  # half of it is outside MAIRA-2's crop
    server = serve(lambda *_: (200, {}, "<obj>Nodule.<box><x0><y0><x49><y99></box></obj>"))
    engine = engines.EngineOptions(engine="server", model="m", base_url=server.base_url, image_check="off")
    phrase = Phrase("s1", 0, Sentence(text="Nodule.", boxes=(reference,)))
    run = ground_phrases([make_study()], [phrase], None, tmp_path / "located.jsonl", engine=engine)
    assert (run.compared, run.clipped, float(run.scores["mean_iou"].point or 0) > 0.96) == (1, 0, True)
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, match="only checkpoints of MAIRA-2"):
        complete_boxes([make_study()], None, tmp_path / "boxes.jsonl", engine=engine)


def _qwen(tokenizer: Any) -> tuple[Any, Any]:
    """A Qwen2-VL, which sees images of any size."""
    names = ("vision_start", "image_pad", "vision_end", "video_pad")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    start, image, end, video = (tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names)
    ids = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    images = transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=56 * 112)
    template = prompts.TEMPLATE.replace(IMAGE, "<|vision_start|><|image_pad|><|vision_end|>")
    parts = images, tokenizer, transformers.Qwen2VLVideoProcessor()
    model = transformers.Qwen2VLForConditionalGeneration(transformers.Qwen2VLConfig(**CASES["qwen"], **ids))
    return model, transformers.Qwen2VLProcessor(*parts, chat_template=template)


def _llava(tokenizer: Any) -> tuple[Any, Any]:
    """A LLaVA, which sees squares."""
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    settings = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1, "patch_size": 16}
    config = transformers.LlavaConfig(**CASES["llava"], image_token_index=tokenizer.convert_tokens_to_ids(IMAGE))
    processor = transformers.LlavaProcessor(images, tokenizer, chat_template=prompts.TEMPLATE, **settings)
    return transformers.LlavaForConditionalGeneration(config), processor


@pytest.fixture(scope="module", params=[_qwen, _llava])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights, of which only letters are likely."""
    folder = tmp_path_factory.mktemp("other")
    torch.manual_seed(0)
    model, processor = request.param(train_tokenizer(TEXTS, 300))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.ndim >= 2 else 1)
        model.get_output_embeddings().weight[:70] = model.get_output_embeddings().weight[100:] = 0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _start(folder: Path, **more: Any) -> Any:
    return engines.start_engine(folder, engines.EngineOptions(device="cpu", **more))


def test_another_checkpoint_drafts_like_transformers_itself(other: Path, studies: list[Study], tmp_path: Path) -> None:
    settings = engines.GenerationOptions(task="findings", max_new_tokens=12)
    for size, out in ((1, tmp_path / "1.jsonl"), (3, tmp_path / "3.jsonl")):
        assert generate_drafts(studies, other, out, settings, engines.EngineOptions(batch_size=size)) == (5, [])
    assert without_time(tmp_path / "1.jsonl") == without_time(tmp_path / "3.jsonl")
    engine = _start(other)
    for row, study in zip(read_rows(tmp_path / "1.jsonl"), studies, strict=True):
        example = make_example(study, "findings")
        images = [read_image(path, "off").convert("RGB") for path in example.images]
        prompt = engine.processor.apply_chat_template(list(example.messages), add_generation_prompt=True)
        inputs = engine.processor(text=[prompt], images=images, return_tensors="pt")
        ids = engine.model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        assert row["raw"] == engine.processor.tokenizer.decode(ids, skip_special_tokens=True).strip()


def test_failures_of_another_checkpoint_are_those_of_their_study(
    other: Path, studies: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _start(other, batch_size=6)
    good = engines.report_request(make_example(studies[0], "grounded", whole_images=True), 40)
    control, written = next(iter(engine._control)), "<obj>Nodule.<box><x10><y20><x30><y40></box></obj>"
    long, injected = (
        engines.report_request(make_example(studies[0].model_copy(update={"indication": text}), "grounded"), 40)
        for text in ("Cough. " * 2000, f"Cough {control}")
    )
    missing = replace(good, example=replace(good.example, images=(tmp_path / "none.png",) * len(good.example.images)))
    tokens = iter([*engine.processor.tokenizer(written, add_special_tokens=False)["input_ids"], 2])
    forward = engine.model.forward

    @functools.wraps(forward)
    def write(*args: Any, **inputs: Any) -> Any:
        outputs = forward(*args, **inputs)
        outputs.logits = torch.zeros_like(outputs.logits)
        outputs.logits[..., next(tokens)] = 1
        return outputs

    monkeypatch.setattr(engine.model, "forward", write)
    response, *failed = (item for _, item in sorted(engine.generate([good, long, injected, missing])))
    assert (response.text, response.cut_off) == (written, False)
    parts = "share a context window of 2048", f"control token {control}", "no such file"
    assert [part in failure.reason for part, failure in zip(parts, failed, strict=True)] == [True] * 3
    monkeypatch.setattr(engine.model, "forward", forward)
    engine.model.get_output_embeddings().weight.data[5] = torch.nan
    assert dict(engine.generate([good])) == {0: engines.FailedRequest(engines.NON_FINITE)}


def test_samples_of_another_checkpoint_depend_on_their_seed_only(other: Path, studies: list[Study]) -> None:
    requests = [engines.report_request(make_example(study, "findings", whole_images=True), 9) for study in studies[:3]]
    sampled = [replace(request, sampling=engines.Sampling(1.0, seed)) for seed, request in enumerate(requests)]
    alone, together, greedy = (
        {index: response.ids for index, response in _start(other, batch_size=size).generate(drawn)}
        for size, drawn in ((1, sampled), (3, sampled), (3, requests))
    )
    assert alone == together != greedy


@pytest.mark.parametrize(("change", "code", "part"), CASES["broken"])
def test_another_broken_checkpoint_is_a_one_line_error(
    other: Path, tmp_path: Path, change: dict[str, str | None], code: str, part: str
) -> None:
    folder = write_release(Path(shutil.copytree(other, tmp_path / "copy")), {"files": change})
    with raises_code(ErrorCode(code), match=part):
        _start(folder)
    with raises_code(ErrorCode.CONFLICTING_OPTIONS, field="engine"):
        engines.start_engine(folder, engines.EngineOptions(engine="vllm"))


def test_a_template_without_a_system_message_shows_its_text(other: Path, studies: list[Study], tmp_path: Path) -> None:
    template = Path(shutil.copytree(other, tmp_path / "copy")) / "chat_template.jinja"
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template.write_text(refusal + template.read_text())
    request = engines.report_request(make_example(studies[0], "findings", whole_images=True), 9)
    (message,) = _start(template.parent)._conversation(request)
    assert message["content"][0]["text"].startswith("You are an expert radiology assistant")
