"""vLLM in this process: a model folder answers without a server, on as many GPUs as tensor parallelism is given."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radfact.errors import InputError, RunError
from radfact.fingerprint import weights_digest
from radfact.llm.cache import canonical_json
from radfact.llm.call_errors import CallError
from radfact.llm.protocol import CachedResponse, PromptPrefix

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

# What vLLM reports about itself stays here: reports are patients' data, and standard output is the command's.
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_ENGINE_DEFAULTS: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True}
_OURS = frozenset({"model", "output_kind", "structured_outputs"})
_TEMPLATE = "chat_template_kwargs"

_engines: dict[bytes, _Shared] = {}
_requests = count()

_READ_WHOLE = frozenset({".json", ".jinja", ".model", ".txt"})
_WEIGHTS = frozenset({".safetensors", ".bin", ".gguf", ".pt"})
LINES_ABOVE = "the last line above that begins with '(EngineCore' and names an error says why"
"""Where to look for what happened in vLLM's own process, which only prints it."""


@dataclass(slots=True)
class _Shared:
    """An engine and how many backends use it, or why it could not start."""

    engine: AsyncLLM | None = None
    fault: Exception | None = None
    users: int = 0


class VLLMBackend:
    """A backend that runs vLLM's asynchronous engine, whose continuous batching sees every question in flight.

    The engine starts with the first question, so that a run whose answers are all on disk loads no model. Backends of
    the same model and engine arguments share one: judge and splitter do not load the weights twice.
    """

    def __init__(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Take a model and its parameters, each going to what knows it by name.

        Args:
            model: a folder in the layout of Hugging Face, or ORGANISATION/NAME of a model that vLLM finds by itself.
            parameters: fields of vLLM's SamplingParams (`temperature`, `max_tokens`, `seed`, ...), of its engine
                arguments (`tensor_parallel_size`, `dtype`, `max_model_len`, `gpu_memory_utilization`, ...), and
                `chat_template_kwargs` (a mapping).

        Raises:
            InputError: vLLM is not installed, no such folder, or a parameter that neither takes.
        """
        require_vllm("vllm:PATH", field="judge")
        if not Path(model).expanduser().is_dir() and (model.count("/") != 1 or model[0] in "./~"):
            raise InputError(f"no such model folder: {model}", field="judge")
        self.model = str(Path(model).expanduser())
        sampling, engine = _known_names()
        self._template = parameters.get(_TEMPLATE) or {}
        if not isinstance(self._template, Mapping):
            raise InputError("expected a mapping, as in {enable_thinking: false}", field=f"judge_args.{_TEMPLATE}")
        self._sampling: dict[str, Any] = {}
        self._engine_args = dict(_ENGINE_DEFAULTS)
        for name, value in parameters.items():
            if name in _OURS or (name not in sampling and name not in engine and name != _TEMPLATE):
                raise InputError("vLLM has no such sampling parameter or engine argument", field=f"judge_args.{name}")
            if name in sampling:
                self._sampling[name] = value
            elif name in engine:
                self._engine_args[name] = value
        try:
            self._parameters(None)
        except Exception as error:
            raise InputError(
                f"vLLM does not take the sampling parameters ({_line(error)})", field="judge_args"
            ) from None
        self._key = canonical_json([self.model, self._engine_args])
        self._shared: _Shared | None = None

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[tuple[str, str]], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """One answer; equal beginnings are computed once by vLLM's prefix caching.

        Raises:
            CallError: the question does not fit the model, or the engine died.
            InputError, RunError: the engine cannot start.
        """
        engine = self._started()
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = self._prompt(engine, [*prefix.messages, *messages])
        request = f"radfact-{next(_requests)}"
        try:
            outputs = [output async for output in engine.generate(prompt, self._parameters(schema), request)]
        except EngineDeadError:
            raise CallError("stopped", "vLLM's engine died; its own messages say why") from None
        except Exception as error:
            raise CallError("refused", f"vLLM: {type(error).__name__}", server_message=str(error)) from None
        # Only the finished output comes, not its parts on the way.
        (output,) = outputs
        answer = output.outputs[0]
        tokens_in, tokens_out = len(output.prompt_token_ids or ()), len(answer.token_ids)
        return CachedResponse(answer.text, tokens_in, tokens_out, cut=answer.finish_reason == "length")

    async def close(self) -> None:
        """End the engine and its processes, if nobody else uses it."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del _engines[self._key]
            if shared.engine is not None:
                # Every answer is there or given up; there is nothing to wait for.
                shared.engine.shutdown(timeout=0)

    def _started(self) -> AsyncLLM:
        """The engine; what kept it from starting is not tried again."""
        if self._shared is None:
            self._shared = _engines.setdefault(self._key, _Shared())
            self._shared.users += 1
        shared = self._shared
        if shared.engine is None and shared.fault is None:
            try:
                shared.engine = self._start()
            except Exception as error:
                shared.fault = error
        if shared.engine is None:
            raise shared.fault or RunError(f"{self.model}: vLLM did not start")
        return shared.engine

    def _start(self) -> AsyncLLM:
        return start_engine(self.model, self._engine_args, field="judge_args")

    def _parameters(self, schema: Mapping[str, Any] | None) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structured = None if schema is None else StructuredOutputsParams(json=dict(schema))
        return SamplingParams(**self._sampling, output_kind=RequestOutputKind.FINAL_ONLY, structured_outputs=structured)

    def _prompt(self, engine: AsyncLLM, messages: Sequence[tuple[str, str]]) -> Any:
        """The conversation as token ids, laid out by the model's own chat template."""
        tokenizer: Any = engine.get_tokenizer()
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            tokens = tokenizer.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template
            )
        except Exception as error:
            raise CallError(
                "stopped", f"the model's chat template does not take the conversation ({_line(error)})"
            ) from None
        return {"prompt_token_ids": tokens}


def require_vllm(what: str, *, field: str | None = None) -> None:
    """Make sure that vLLM is installed, and that it keeps what it knows of its users to itself.

    Args:
        what: needs it, for the error.
        field: for the error.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise InputError(f'{what} needs vLLM: pip install "maira-radfact[vllm]"', field=field)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def start_engine(model: str, arguments: Mapping[str, Any], *, field: str) -> AsyncLLM:
    """vLLM's asynchronous engine with a model.

    Args:
        model: a folder, or ORGANISATION/NAME.
        arguments: of the engine, by vLLM's names.
        field: where the arguments were given, for the error.

    Raises:
        InputError: vLLM does not take the arguments.
        RunError: the engine cannot start.
    """
    from pydantic import ValidationError
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([field, *map(str, first["loc"])])
        raise InputError(f"{model}: {' '.join(first['msg'].split())}", field=place) from None
    except (ValueError, TypeError) as error:
        raise InputError(f"{model}: {_line(error)}", field=field) from None
    except Exception as error:
        raise RunError(f"{model}: vLLM cannot start: {_cause(error)}") from None


def fingerprint(model: str) -> str | None:
    """Hash of a model folder (None for anything else), so that another checkpoint under its path is another model.

    Configuration and tokenizer are read whole, weights as `weights_digest` does.

    Raises:
        InputError: a file cannot be read.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in _READ_WHOLE | _WEIGHTS and path.is_file():
                digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes() if path.suffix in _READ_WHOLE else weights_digest(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=error.filename) from None
    return digest.hexdigest()


def _cause(error: BaseException) -> str:
    """What the first of a chain of errors says; or where to look, if it happened in a process of vLLM's own."""
    said = _line(error)
    if "root cause" in said.lower():
        return f"its process ended; {LINES_ABOVE}"
    while (earlier := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = earlier
    first = _line(error)
    return said if not first or first in said else f"{said} ({first})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def engine_arguments() -> frozenset[str]:
    """Names of the engine arguments that the installed vLLM has."""
    from vllm import AsyncEngineArgs

    return _names(AsyncEngineArgs)


def _known_names() -> tuple[frozenset[str], frozenset[str]]:
    """Names that vLLM's sampling parameters and its engine arguments have, in the version that is installed."""
    from vllm import SamplingParams

    return _names(SamplingParams), engine_arguments()


def _names(known: Any) -> frozenset[str]:
    return frozenset(name for name in inspect.signature(known).parameters if not name.startswith("_"))
