"""Greedy generation with vLLM: images encoded here, the language model in vLLM's own processes, as many as it takes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import GenerationConfig

from maira.generate.engine import FailedRequest, GenerationRequest, Response, limit_to_window
from maira.generate.options import EngineOptions
from maira.generate.plain_llama import plain_llama
from maira.generate.prompt_embedder import PromptEmbedder
from maira.model.checkpoint import fingerprint
from maira.model.tokens import OBJECT_END
from radfact.errors import InputError, RunError
from radfact.llm.vllm import LINES_ABOVE, engine_arguments, require_vllm, start_engine

WINDOW_BYTES = 2 << 30
"""Of embedded prompts that vLLM has not answered yet, here and once more in its process. A prompt of three images is
36 MB in half precision, so that 59 of them are there for the 24 or so that an 80 GB GPU answers at a time."""

_TYPES = {"half": "float16", "float": "float32", **{name: name for name in ("float16", "bfloat16", "float32")}}
_FIELD = "engine_args"
T = TypeVar("T")


class VLLMEngine:
    """A checkpoint that answers by vLLM's continuous batching.

    Encoder and adapter run in this process, on the first GPU or on the CPU; vLLM reads the language model from a plain
    Llama folder that is made once (`maira.generate.plain_llama`) and takes embedded prompts.

    Args:
        checkpoint: folder with the model and its processor.
        options: `batch_size`, `free`, `language_model` and `engine_args` are used; `device` can only be what vLLM was
            built for.

    Raises:
        InputError: vLLM is not installed, does not take the arguments or runs on another device, or the folder is no
            checkpoint of ours.
        RunError: vLLM cannot start.
    """

    def __init__(self, checkpoint: Path, options: EngineOptions) -> None:
        require_vllm("--engine vllm")
        # vLLM's second model runner has another interface for processors of logits.
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        from vllm.platforms import current_platform

        device = "cuda" if current_platform.is_cuda_alike() else "cpu"
        if options.device not in (None, device):
            raise InputError(
                f"vLLM runs on {device} as it is installed here, not on {options.device}; CUDA_VISIBLE_DEVICES chooses "
                "among GPUs",
                field="device",
            )
        self.name = f"{checkpoint.resolve().name}@{fingerprint(checkpoint)}"
        self.options = options
        arguments = _arguments(options, "float32" if device == "cpu" else "bfloat16")
        dtype: torch.dtype = getattr(torch, arguments["dtype"])
        folder = plain_llama(checkpoint, dtype, options.language_model)
        self._ends = frozenset(GenerationConfig.from_pretrained(folder).eos_token_id)
        self._embedder = PromptEmbedder(checkpoint)
        self._tokenizer = self._embedder.processor.tokenizer
        self._requests = 0
        self._shares = _Shares()
        self._loop = asyncio.new_event_loop()
        # A thread of its own, since the caller's may have a loop already, as notebooks do.
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engine: Any = None
        try:
            # vLLM first: it counts what is free on the GPU, and may start its processes as copies of this one.
            self._engine = self._wait(_started(str(folder), arguments))
            with _beside_vllm():
                self._embedder.to(device, dtype)
        except BaseException:
            self.close()
            raise
        self._longest: int = self._engine.model_config.max_model_len

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, Response | FailedRequest]]:
        """Each request's answer as it comes, the longest prompts asked first.

        Raises:
            RunError: vLLM's engine died.
        """
        came: SimpleQueue[tuple[int, Response | FailedRequest] | BaseException] = SimpleQueue()
        asking = asyncio.run_coroutine_threadsafe(self._ask_all(requests, came.put), self._loop)

        def stopped(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                came.put(error)

        asking.add_done_callback(stopped)
        try:
            for _ in requests:
                one = came.get()
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            asking.cancel()

    def close(self) -> None:
        """End vLLM and its processes."""
        if self._engine is not None:
            self._wait(_called(lambda: self._engine.shutdown(timeout=5)))
            self._engine = None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _wait(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def _ask_all(
        self, requests: Sequence[GenerationRequest], put: Callable[[tuple[int, Response | FailedRequest]], None]
    ) -> None:
        """Embed prompts ahead of vLLM, as far as the window goes, and ask them."""
        window = _Window(WINDOW_BYTES)

        async def ask(index: int, prompt: Tensor) -> None:
            try:
                put((index, await self._ask(requests[index], prompt)))
            finally:
                await window.give(prompt.nbytes)

        order = _order(requests)
        prompts = self._embedder.prompts([requests[index].example for index in order], self._longest)
        try:
            async with asyncio.TaskGroup() as group:
                for index in order:
                    with _beside_vllm():
                        prompt = await asyncio.to_thread(next, prompts)
                    if isinstance(prompt, FailedRequest):
                        put((index, prompt))
                        continue
                    await window.take(prompt.nbytes)
                    group.create_task(ask(index, prompt))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask(self, request: GenerationRequest, prompt: Tensor) -> Response | FailedRequest:
        from vllm.v1.engine.exceptions import EngineDeadError

        request = limit_to_window(request, len(prompt), self._longest)
        self._requests += 1
        began = self._shares.start()
        try:
            asked = self._engine.generate(
                {"prompt_embeds": prompt}, self._parameters(request), f"maira-{self._requests}"
            )
            # Only the finished output comes, not its parts on the way.
            (output,) = [output async for output in asked]
        except EngineDeadError:
            raise RunError(f"vLLM's engine died; {LINES_ABOVE}") from None
        except Exception as error:
            return FailedRequest(f"vLLM: {' '.join(str(error).split()) or type(error).__name__}")
        finally:
            seconds = self._shares.stop(began)
        return self._read(output.outputs[0], request, seconds)

    def _parameters(self, request: GenerationRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from maira.generate.vllm_grammar import FORM

        return SamplingParams(
            temperature=0,
            max_tokens=request.max_new_tokens,
            stop_token_ids=sorted(self._ends_of(request)),
            # The score of each token, by which the processor says that the limit decided.
            logprobs=None if self.options.free else 0,
            detokenize=False,
            extra_args={FORM: None if self.options.free else request.form},
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _ends_of(self, request: GenerationRequest) -> frozenset[int]:
        if request.form != "boxes":
            return self._ends
        return self._ends | {self._tokenizer.convert_tokens_to_ids(OBJECT_END)}

    def _read(self, said: Any, request: GenerationRequest, seconds: float) -> Response:
        from maira.generate.vllm_grammar import CUT

        ids = list(said.token_ids)
        scores = [place[token].logprob for token, place in zip(ids, said.logprobs or (), strict=False)]
        cut_off = self._ends_of(request).isdisjoint(ids) or any(score >= CUT for score in scores)
        return Response(str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip(), cut_off, seconds)


@contextmanager
def _beside_vllm() -> Iterator[None]:
    """For what runs on the GPU that vLLM takes its share of."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise RunError(
            "vLLM leaves no memory for the image encoder on the GPU; a lower gpu_memory_utilization among the engine "
            "arguments does"
        ) from None


async def _started(folder: str, arguments: dict[str, Any]) -> Any:
    engine = start_engine(folder, arguments, field=_FIELD)
    if getattr(engine.vllm_config, "use_v2_model_runner", False):
        engine.shutdown()
        # Answers would come, but no grammar would hold them.
        raise RunError(
            f"vLLM {version('vllm')} insists on its second model runner, which takes no processors of logits; "
            "--engine-arg may ask for what needs it, or another version of vLLM is wanted"
        )
    return engine


async def _called(what: Callable[[], T]) -> T:
    return what()


def _arguments(options: EngineOptions, dtype: str) -> dict[str, Any]:
    """All engine arguments.

    Args:
        options: with the user's.
        dtype: by default.

    Raises:
        InputError: one that vLLM does not have, or that is not the user's to choose.
    """
    ours = {
        "enable_prompt_embeds": True,
        "skip_tokenizer_init": True,
        "logits_processors": ["maira.generate.vllm_grammar:MairaLogitsProcessor"],
        # As the sampler sees them, after the processor.
        "logprobs_mode": "processed_logits",
        "generation_config": "vllm",
    }
    known = engine_arguments()
    for name in options.engine_args:
        if name in ours or name in ("model", "tokenizer"):
            raise InputError("is not to be chosen: prompts are embedded here", field=f"{_FIELD}.{name}")
        if name not in known:
            raise InputError("vLLM has no such engine argument", field=f"{_FIELD}.{name}")
    chosen = {"disable_log_stats": True, **options.engine_args, **ours}
    if options.batch_size is not None:
        chosen.setdefault("max_num_seqs", options.batch_size)
    wanted = chosen.get("dtype", "auto")
    if wanted != "auto" and wanted not in _TYPES:
        raise InputError(f"expected auto or one of {', '.join(_TYPES)}, found '{wanted}'", field=f"{_FIELD}.dtype")
    return chosen | {"dtype": dtype if wanted == "auto" else _TYPES[wanted]}


def _order(requests: Sequence[GenerationRequest]) -> list[int]:
    """Indices of the requests: the longest first, so that none is left alone at the end; equal images together."""

    def place(index: int) -> tuple[int, int, list[str], int]:
        example = requests[index].example
        images = [str(image) for image in example.images]
        return len(images), requests[index].max_new_tokens, images, len(example.prompt)

    return sorted(range(len(requests)), key=place, reverse=True)


class _Window:
    """Bytes of which only so many are out at a time; what is larger than all of them goes alone."""

    def __init__(self, size: int) -> None:
        self._size, self._out = size, 0
        self._changed = asyncio.Condition()

    async def take(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._out or self._out + count <= self._size)
            self._out += count

    async def give(self, count: int) -> None:
        async with self._changed:
            self._out -= count
            self._changed.notify_all()


class _Shares:
    """Time that is shared among whatever runs at each moment, so that all shares together are the time it took."""

    def __init__(self) -> None:
        self._sum, self._running, self._at = 0.0, 0, time.perf_counter()

    def start(self) -> float:
        """Begin a share; gives what `stop` needs."""
        self._tick()
        self._running += 1
        return self._sum

    def stop(self, began: float) -> float:
        """End a share: its seconds."""
        self._tick()
        self._running -= 1
        return self._sum - began

    def _tick(self) -> None:
        now = time.perf_counter()
        if self._running:
            self._sum += (now - self._at) / self._running
        self._at = now
