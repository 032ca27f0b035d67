"""A judge that `maira judge-train` has trained, served by vLLM like any other."""

from __future__ import annotations

from pathlib import Path

from real_servers import VLLM_ENGINE, VLLM_ENVIRONMENT, radfact
from tiny_judge import ask_folder, train_tiny_judge

from radfact.errors import ExitCode
from radfact.io.jsonl import read_json
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt

# vLLM's attention on the CPU takes heads of 32 and more.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}


def test_a_trained_judge_answers_in_vllm_as_in_transformers(vllm_python: Path, tmp_path: Path) -> None:
    folder, held_out = train_tiny_judge(tmp_path, **HEADS)
    engine = VLLM_ENGINE | {"max_model_len": "1024", "max_tokens": "60"}
    options = [word for name, value in engine.items() for word in ("--judge-arg", f"{name}={value}")]
    done = radfact(
        *("judge-check", held_out, "--judge", f"vllm:{folder}", *options),
        *("--few-shots", "none", "--out", tmp_path / "found.json"),
        command=(str(vllm_python.with_name("radfact")),),
        environment=VLLM_ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    assert done.returncode == ExitCode.SUCCESS, done.stderr
    expected = check_judge(
        LLMJudge("tiny", ask_folder(folder), judge_prompt(Path("none"))), load_labeled_queries(held_out)
    )
    found = read_json(tmp_path / "found.json")
    assert found["accuracy"] > 0.7
    assert {name: found[name] for name in ("failures", "confusion", "evidence_f1")} == {
        "failures": expected.failures,
        "confusion": expected.confusion,
        "evidence_f1": expected.evidence_f1,
    }
