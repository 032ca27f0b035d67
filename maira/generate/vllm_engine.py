"""Generation with vLLM: images are encoded in this process, the language model runs in vLLM's processes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from math import nan
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import GenerationConfig

from maira.generate.engine import NON_FINITE, EngineOptions, FailedRequest, GenerationRequest, Response
from maira.generate.vllm_parts import PromptEmbedder, export_plain_llama
from maira.model.checkpoint import checkpoint_name
from maira.model.tokens import OBJECT_END
from radfact.errors import ErrorCode, InputError, RunError
from radfact.llm.vllm import ENGINE_ERROR_HINT, engine_arguments, require_vllm, start_engine

WINDOW_BYTES = 2 << 30
"""Embedded prompts in flight, held in this process and once more in vLLM's. A prompt of three images takes 36 MB in
half precision, so that 59 prompts wait for the 24 or so that an 80 GB GPU processes together."""

_TYPES = {"half": "float16", "float": "float32", **{name: name for name in ("float16", "bfloat16", "float32")}}
_FIELD = "engine_args"
_COLOCATED = {"load_format": "dummy", "worker_extension_cls": "maira.generate.vllm_worker.SharedWeightLoader"}
COLOCATED_ARGUMENTS = frozenset({*_COLOCATED, "enable_sleep_mode", "max_model_len", "distributed_executor_backend"})
"""Engine arguments that cannot be changed for an engine in a training process."""
_LAUNCHER_PREFIXES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
T = TypeVar("T")


class VLLMEngine:
    """An engine that runs vLLM's continuous batching of embedded prompts; encoder and adapter run in this process."""

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        require_vllm("--engine vllm")
        device = platform_device(options.device, field="device")
        arguments = all_arguments(options, "float32" if device == "cpu" else "bfloat16", _FIELD)
        dtype: torch.dtype = getattr(torch, arguments["dtype"])
        folder = export_plain_llama(checkpoint, dtype, options.language_model)
        embedder = PromptEmbedder.from_checkpoint(checkpoint, options.image_check)
        self.name = checkpoint_name(checkpoint)
        # vLLM starts first: it measures the free memory of the GPU, and may fork its processes.
        with self._start(options, folder, embedder, arguments, _FIELD):
            embedder.to(device, dtype)

    @classmethod
    def from_folder(
        cls, folder: Path, embedder: PromptEmbedder, options: EngineOptions, dtype: torch.dtype, *, field: str
    ) -> VLLMEngine:
        """Create an engine on the GPU of a training process, asleep until `load_weights`; the folder has no weights."""
        from vllm.platforms import current_platform

        arguments = all_arguments(options, str(dtype).removeprefix("torch."), field)
        arguments |= {**_COLOCATED, "enable_sleep_mode": current_platform.is_sleep_mode_available()}
        engine = cls.__new__(cls)
        engine.name = "model"
        with _single_process_environment(options.device), engine._start(options, folder, embedder, arguments, field):
            engine.sleep()
        return engine

    @contextmanager
    def _start(
        self, options: EngineOptions, folder: Path, embedder: PromptEmbedder, arguments: dict[str, Any], field: str
    ) -> Iterator[None]:
        """Start vLLM, and end it again if the block fails."""
        self.options, self._embedder, self._tokenizer = options, embedder, embedder.processor.tokenizer
        self._ends = frozenset(GenerationConfig.from_pretrained(folder).eos_token_id)
        self._request_count = 0
        self._has_sleep_mode = arguments.get("enable_sleep_mode", False)
        self._loop = asyncio.new_event_loop()
        # In its own thread: the caller's may run an event loop already, as in notebooks.
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engine: Any = None
        try:
            self._engine = self._run(_start(str(folder), arguments, field))
            with _sharing_gpu():
                yield
        except BaseException:
            self.close()
            raise
        self._longest: int = self._engine.model_config.max_model_len

    def load_weights(self, parts: Iterable[tuple[Tensor, bytes]]) -> None:
        """Wake up the engine, load weights of `rollout_engine.share_weights`, and clear the prefix cache."""
        if self._has_sleep_mode:
            self._load(self._engine.wake_up(["weights"]))
        for number, (memory, content) in enumerate(parts):
            self._load(self._engine.collective_rpc("load_shared_weights", args=(content, number)))
            del memory  # before that of the next part is taken
        self._load(self._engine.collective_rpc("end_shared_weights"))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        if self._has_sleep_mode:
            self._load(self._engine.wake_up(["kv_cache"]))
        self._load(self._engine.reset_prefix_cache())

    def sleep(self) -> None:
        """Free the memory of weights and caches until `load_weights`, if the platform has sleep mode."""
        if self._has_sleep_mode:
            self._run(self._engine.sleep(level=2))

    def _load(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self._run(coroutine)
        except Exception as error:
            raise RunError(f"vLLM cannot load the weights ({error}); {ENGINE_ERROR_HINT}") from None

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Yield the index and the response of every request as it finishes, with the seconds since the one before."""
        results: SimpleQueue[tuple[int, Response | FailedRequest] | None] = SimpleQueue()
        running = asyncio.run_coroutine_threadsafe(self._generate_all(requests, results.put), self._loop)
        running.add_done_callback(lambda _: results.put(None))
        last = time.perf_counter()
        try:
            for index, response in iter(results.get, None):
                if isinstance(response, Response):
                    response, last = replace(response, seconds=time.perf_counter() - last), time.perf_counter()
                yield index, response
            running.result()
        finally:
            running.cancel()

    def close(self) -> None:
        if self._engine is not None:
            self._run(self._shut_down())
            self._engine = None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut_down(self) -> None:
        self._engine.shutdown(timeout=5)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _generate_all(
        self, requests: Sequence[GenerationRequest], put: Callable[[tuple[int, Response | FailedRequest]], None]
    ) -> None:
        """Embed prompts ahead of vLLM within `WINDOW_BYTES`, and generate their responses."""
        order = sorted(range(len(requests)), key=lambda index: requests[index].length_key, reverse=True)
        prompts = self._embedder.embed([requests[index] for index in order], self._longest)
        running: dict[asyncio.Task[None], int] = {}

        async def generate(index: int, request: GenerationRequest, prompt: Tensor) -> None:
            put((index, await self._generate_one(request, prompt)))

        try:
            async with asyncio.TaskGroup() as group:
                for index in order:
                    with _sharing_gpu():
                        embedded = await asyncio.to_thread(next, prompts)
                    if isinstance(embedded, FailedRequest):
                        put((index, embedded))
                        continue
                    request, prompt = embedded
                    while running and sum(running.values()) + prompt.nbytes > WINDOW_BYTES:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    task = group.create_task(generate(index, request, prompt))
                    running[task] = prompt.nbytes
                    task.add_done_callback(running.pop)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _generate_one(self, request: GenerationRequest, prompt: Tensor) -> Response | FailedRequest:
        from vllm.v1.engine.exceptions import EngineDeadError

        self._request_count += 1
        name = f"maira-{self._request_count}"
        try:
            outputs = self._engine.generate({"prompt_embeds": prompt}, self._parameters(request), name)
            (output,) = [output async for output in outputs]  # FINAL_ONLY: no partial outputs
        except EngineDeadError:
            raise RunError(f"vLLM's engine died; {ENGINE_ERROR_HINT}") from None
        except Exception as error:
            return FailedRequest(f"vLLM: {' '.join(str(error).split()) or type(error).__name__}")
        return self._read_output(output.outputs[0], request)

    def _parameters(self, request: GenerationRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from maira.generate.vllm_worker import FORM, SAMPLING

        sampling = None if request.sampling is None else [request.sampling.temperature, request.sampling.seed]
        return SamplingParams(
            temperature=0,  # the logits processor samples
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(self._ends_of(request)),
            # The processor marks tokens by their score: those that the limit decided, and the end of a broken response.
            # For all other sampled tokens, the score is the log-probability.
            logprobs=0,
            detokenize=False,
            extra_args={FORM: None if self.options.free else request.form, SAMPLING: sampling},
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _ends_of(self, request: GenerationRequest) -> frozenset[int]:
        return self._ends.union([self._tokenizer.convert_tokens_to_ids(OBJECT_END)] if request.form == "boxes" else [])

    def _read_output(self, output: Any, request: GenerationRequest) -> Response | FailedRequest:
        from maira.generate.vllm_worker import BROKEN, CUT

        ids = list(output.token_ids)
        scores = [logprobs[token].logprob for token, logprobs in zip(ids, output.logprobs or (), strict=False)]
        if any(score >= BROKEN for score in scores):
            return FailedRequest(NON_FINITE)
        cut_off = self._ends_of(request).isdisjoint(ids) or any(score >= CUT for score in scores)
        log_probs = [nan if score >= CUT else score for score in scores] if request.sampling is not None else []
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip()
        return Response(text, cut_off, 0.0, tuple(ids), tuple(log_probs))


@contextmanager
def _sharing_gpu() -> Iterator[None]:
    """Explain an error of memory on the GPU that vLLM uses too."""
    try:
        yield
    except torch.OutOfMemoryError:
        message = "vLLM leaves no memory for the image encoder; lower the engine argument gpu_memory_utilization"
        raise RunError(message, code=ErrorCode.OUT_OF_MEMORY) from None


@contextmanager
def _single_process_environment(device: str | None) -> Iterator[None]:
    """Hide GPUs other than `device` and the launcher's environment variables, so that vLLM joins no process group."""
    # The training process has threads, so forking is not safe.
    own = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if (gpu := torch.device(device or "cpu")).type != "cpu":
        visible = os.environ.get(_VISIBLE)
        own[_VISIBLE] = visible.split(",")[gpu.index or 0].strip() if visible else str(gpu.index or 0)
    saved = {name: os.environ.pop(name) for name in [*os.environ] if name in own or name.startswith(_LAUNCHER_PREFIXES)}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
        os.environ.update(saved)


def platform_device(device: str | None, *, field: str) -> str:
    """Return the device type that vLLM is installed for, which must be `device` if it is not None."""
    # vLLM's second model runner has another interface for logits processors.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    from vllm.platforms import current_platform

    known = "cuda" if current_platform.is_cuda_alike() else "cpu"
    if device not in (None, known):
        message = f"expected {known}, for which vLLM is installed, found {device}; choose a GPU by CUDA_VISIBLE_DEVICES"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field=field)
    return known


async def _start(folder: str, arguments: dict[str, Any], field: str) -> Any:
    engine = start_engine(folder, arguments, field=field)
    if getattr(engine.vllm_config, "use_v2_model_runner", False):
        engine.shutdown()
        # It supports no logits processors, and would generate without the grammar.
        message = f"vLLM {version('vllm')} uses its second model runner; remove the engine arguments that need it"
        raise RunError(message, code=ErrorCode.MISSING_REQUIREMENT)
    return engine


def all_arguments(options: EngineOptions, dtype: str, prefix: str) -> dict[str, Any]:
    """Return all engine arguments, with a default type; `prefix` is the field of the user's arguments in errors."""
    fixed = {
        "enable_prompt_embeds": True,
        "skip_tokenizer_init": True,
        "logits_processors": ["maira.generate.vllm_worker:MairaLogitsProcessor"],
        "logprobs_mode": "processed_logits",
        "generation_config": "vllm",
    }
    known = engine_arguments()
    for name in options.engine_args:
        field = f"{prefix}.{name}"
        if name in fixed or name in ("model", "tokenizer"):
            raise InputError("cannot be chosen: this engine sets it", code=ErrorCode.CONFLICTING_OPTIONS, field=field)
        if name not in known:
            raise InputError("vLLM has no such engine argument", code=ErrorCode.UNKNOWN_NAME, field=field)
    arguments = {"disable_log_stats": True, **options.engine_args, **fixed}
    if options.batch_size is not None:
        arguments.setdefault("max_num_seqs", options.batch_size)
    types = {"auto": dtype, **_TYPES}
    if (name := arguments.get("dtype", "auto")) not in types:
        message = f"expected one of {', '.join(types)}, found '{name}'"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field=f"{prefix}.dtype")
    return arguments | {"dtype": types[name]}
