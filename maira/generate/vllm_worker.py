"""What runs in vLLM's process: the logits processor, which can return scores of tokens only, and a weight loader."""

from __future__ import annotations

import inspect
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from maira.generate.constraints import Constraints, OpenResponse
from maira.generate.engine import Sampling
from maira.model.grammar import Grammar
from maira.model.tokens import IMAGE

FORM = "maira_form"
"""Extra argument of the sampling parameters with the form of the response; None for an unconstrained one."""
SAMPLING = "maira_sampling"
"""Extra argument with the fields of `Sampling`: vLLM's own sampling would change the marks `CUT` and `BROKEN`."""
CUT = 1e9
"""Score of a token that was chosen because the limit forbids a more likely one; larger than any logit of a model."""
BROKEN = 2.0**40
"""Score of the end token that ends a response whose logits are NaN or infinite; exact in single precision."""
_DEVICE = [*inspect.signature(rebuild_cuda_tensor).parameters].index("storage_device")


class MairaLogitsProcessor(LogitsProcessor):
    """Constrains the logits of running requests; the model is a folder of `maira.generate.vllm_parts`."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ARG002
        folder = Path(vllm_config.model_config.model)
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._grammar = Grammar(self.tokenizer, GenerationConfig.from_pretrained(folder).eos_token_id)
        self._constraints = Constraints(self._grammar, self.tokenizer.convert_tokens_to_ids(IMAGE))
        self._responses: dict[int, OpenResponse] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: the most likely token may be forbidden."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that enter, leave or move within the batch."""
        process_dict_updates(self._responses, batch_update, self._begin)

    def _begin(self, params: Any, _: list[int] | None, ids: list[int]) -> OpenResponse:
        extra = params.extra_args or {}
        sampling = None if (values := extra.get(SAMPLING)) is None else Sampling(*values)
        # vLLM's own list of output tokens, which grows.
        return OpenResponse(self._grammar, extra.get(FORM), params.max_tokens, sampling, ids)

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits (requests, vocabulary) of forbidden tokens to -inf, in place, and end broken responses."""
        broken, cut = self._constraints(logits, self._responses)
        # Boolean and list indices, and single values of tensors, would wait for the device at each step.
        best = logits.argmax(-1, keepdim=True)
        logits.scatter_(-1, best, logits.gather(-1, best).masked_fill(cut[:, None], CUT))
        logits.masked_fill_(broken[:, None], -torch.inf)
        logits[:, min(self._grammar.ends)].masked_fill_(broken, BROKEN)
        return logits


class SharedWeightLoader:
    """Extension of vLLM's worker, which inherits from it: loads weights of another process, part by part."""

    def load_shared_weights(self: Any, content: bytes, number: int) -> None:
        if number == 0:
            initialize_layerwise_reload(self.model_runner.get_model())
        (rebuild, arguments), shapes = pickle.loads(content)
        if rebuild is rebuild_cuda_tensor:
            # A GPU may have another number in the other process.
            arguments = (*arguments[:_DEVICE], self.device.index, *arguments[_DEVICE + 1 :])
        memory = rebuild(*arguments)
        parts = memory.split([math.prod(shape) for _, shape in shapes])
        weights = [(name, part.view(shape)) for (name, shape), part in zip(shapes, parts, strict=True)]
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(weights)
        if memory.is_cuda:
            torch.cuda.synchronize()  # the other process may free the memory

    def end_shared_weights(self: Any) -> None:
        """Load layers that are larger than their weights, such as padded embeddings."""
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.model_config)
