"""vLLM in this process: run a model folder without a server, with tensor parallelism."""

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

from radfact.errors import ErrorCode, InputError, RunError, option_error
from radfact.fingerprint import weights_digest
from radfact.io.hub import resolve_model
from radfact.llm.cache import canonical_json
from radfact.llm.call_errors import CallError
from radfact.llm.protocol import CachedResponse, PromptPrefix

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

# No telemetry, since reports are patient data; and no logs on standard output, which belongs to the command.
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}
_ENGINE_DEFAULTS: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True}
_RESERVED = frozenset({"model", "output_kind", "structured_outputs"})
_TEMPLATE = "chat_template_kwargs"

_engines: dict[bytes, _Shared] = {}
_requests = count()

_READ_WHOLE = frozenset({".json", ".jinja", ".model", ".txt"})
_WEIGHTS = frozenset({".safetensors", ".bin", ".gguf", ".pt"})
ENGINE_ERROR_HINT = "see the last line above that begins with '(EngineCore' and names an error"


@dataclass(slots=True)
class _Shared:
    """An engine with its number of backends, or the error that kept it from starting, which is not repeated."""

    engine: AsyncLLM | None = None
    error: Exception | None = None
    users: int = 0


class VLLMBackend:
    """A backend with vLLM's engine, which starts with the first call; those with the same arguments share it."""

    def __init__(self, model: str, parameters: Mapping[str, Any]) -> None:
        """Sort the parameters: fields of SamplingParams, engine arguments and `chat_template_kwargs`."""
        require_vllm("vllm:PATH", field="judge")
        folder = resolve_model(Path(model).expanduser(), field="judge")
        if not folder.is_dir():
            raise option_error(f"no such model folder: {model}", "judge", ErrorCode.FILE_NOT_FOUND)
        self.model = str(folder)
        from vllm import SamplingParams

        sampling, engine = _parameter_names(SamplingParams), engine_arguments()
        self._template = parameters.get(_TEMPLATE) or {}
        if not isinstance(self._template, Mapping):
            raise option_error("expected a mapping, as in {enable_thinking: false}", f"judge_args.{_TEMPLATE}")
        self._sampling: dict[str, Any] = {}
        self._engine_args = dict(_ENGINE_DEFAULTS)
        for name, value in parameters.items():
            if name in _RESERVED or name not in {*sampling, *engine, _TEMPLATE}:
                raise option_error("expected a sampling parameter or engine argument of vLLM", f"judge_args.{name}")
            if name != _TEMPLATE:
                (self._sampling if name in sampling else self._engine_args)[name] = value
        try:
            self._parameters(None)
        except Exception as error:
            raise option_error(f"vLLM refuses the sampling parameters ({_one_line(error)})", "judge_args") from None
        self._key = canonical_json([self.model, self._engine_args])
        self._shared: _Shared | None = None

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[tuple[str, str]], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """Return one response; vLLM's prefix caching computes equal beginnings once. See `ChatBackend`."""
        engine = self._started()
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = self._prompt(engine, [*prefix.messages, *messages])
        request = f"radfact-{next(_requests)}"
        try:
            outputs = [output async for output in engine.generate(prompt, self._parameters(schema), request)]
        except EngineDeadError:
            raise CallError("stopped", f"vLLM's engine died; {ENGINE_ERROR_HINT}") from None
        except Exception as error:
            raise CallError("refused", f"vLLM: {type(error).__name__}", server_message=str(error)) from None
        # FINAL_ONLY yields a single output.
        (output,) = outputs
        response = output.outputs[0]
        tokens_in, tokens_out = len(output.prompt_token_ids or ()), len(response.token_ids)
        return CachedResponse(response.text, tokens_in, tokens_out, cut=response.finish_reason == "length")

    async def close(self) -> None:
        """Stop the engine and its processes if no other backend uses it."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del _engines[self._key]
            if shared.engine is not None:
                # All calls have ended; there is nothing to wait for.
                shared.engine.shutdown(timeout=0)

    def _started(self) -> AsyncLLM:
        if self._shared is None:
            self._shared = _engines.setdefault(self._key, _Shared())
            self._shared.users += 1
        shared = self._shared
        if shared.error is not None:
            raise shared.error
        if shared.engine is None:
            try:
                shared.engine = start_engine(self.model, self._engine_args, field="judge_args")
            except Exception as error:
                shared.error = error
                raise
        return shared.engine

    def _parameters(self, schema: Mapping[str, Any] | None) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        structured = None if schema is None else StructuredOutputsParams(json=dict(schema))
        return SamplingParams(**self._sampling, output_kind=RequestOutputKind.FINAL_ONLY, structured_outputs=structured)

    def _prompt(self, engine: AsyncLLM, messages: Sequence[tuple[str, str]]) -> Any:
        """Return the conversation as token ids in the model's own chat template."""
        tokenizer: Any = engine.get_tokenizer()
        conversation = [{"role": role, "content": content} for role, content in messages]
        try:
            tokens = tokenizer.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template
            )
        except Exception as error:
            reason = f"the model's chat template refuses the conversation ({_one_line(error)})"
            raise CallError("stopped", reason) from None
        return {"prompt_token_ids": tokens}


def require_vllm(user: str, *, field: str | None = None) -> None:
    """Check that vLLM, which `user` needs, is installed, and disable its telemetry."""
    if importlib.util.find_spec("vllm") is None:
        message = f'{user} needs vLLM: pip install "maira-radfact[vllm]"'
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field=field)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def start_engine(model: str, arguments: Mapping[str, Any], *, field: str) -> AsyncLLM:
    """Start vLLM's asynchronous engine with a model folder; `field` is that of the arguments in errors."""
    from pydantic import ValidationError
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **arguments))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([field, *map(str, first["loc"])])
        raise option_error(f"{model}: {' '.join(first['msg'].split())}", place) from None
    except (ValueError, TypeError) as error:
        raise option_error(f"{model}: {_one_line(error)}", field) from None
    except Exception as error:
        raise RunError(f"{model}: vLLM cannot start: {_root_cause(error)}") from None


def fingerprint(model: str) -> str:
    """Hash a model folder, weights as in `weights_digest`: another checkpoint at the same path is another model."""
    digest = hashlib.sha256()
    try:
        for path in sorted(Path(model).iterdir()):
            if path.suffix in _READ_WHOLE | _WEIGHTS and path.is_file():
                digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes() if path.suffix in _READ_WHOLE else weights_digest(path))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=error.filename) from None
    return digest.hexdigest()


def _root_cause(error: BaseException) -> str:
    """Return an error with the first of its chain, or a hint if it happened in vLLM's own process."""
    message = _one_line(error)
    if "root cause" in message.lower():
        return f"its process ended; {ENGINE_ERROR_HINT}"
    while (previous := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = previous
    first = _one_line(error)
    return message if not first or first in message else f"{message} ({first})"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def engine_arguments() -> frozenset[str]:
    from vllm import AsyncEngineArgs

    return _parameter_names(AsyncEngineArgs)


def _parameter_names(known: Any) -> frozenset[str]:
    return frozenset(name for name in inspect.signature(known).parameters if not name.startswith("_"))
