"""A judge trained by `maira judge-train` in vLLM."""

from pathlib import Path

from real_servers import VLLM_ENGINE, RunVLLM, judge_arguments
from tiny_judge import ask_folder, train_tiny_judge

from radfact.errors import ExitCode
from radfact.io.jsonl import read_json
from radfact.judges.check import check_judge, load_labeled_queries
from radfact.judges.llm_judge import LLMJudge, judge_prompt

# vLLM's attention on the CPU supports head sizes of at least 32.
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}


def test_a_trained_judge_scores_the_same_in_vllm_and_transformers(run_vllm: RunVLLM, tmp_path: Path) -> None:
    folder, held_out = train_tiny_judge(tmp_path, **HEADS)
    engine = judge_arguments(VLLM_ENGINE | {"max_model_len": "1024", "max_tokens": "60"})
    process = run_vllm(
        "radfact",
        *("judge-check", held_out, "--judge", f"vllm:{folder}", *engine),
        *("--few-shots", "none", "--out", tmp_path / "check.json"),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    assert process.returncode == ExitCode.SUCCESS, process.stderr
    expected = check_judge(
        LLMJudge("tiny", ask_folder(folder), judge_prompt(Path("none"))), load_labeled_queries(held_out)
    )
    check = read_json(tmp_path / "check.json")
    assert check["accuracy"] > 0.7
    assert {name: check[name] for name in ("failures", "confusion", "evidence_f1")} == {
        "failures": expected.failures,
        "confusion": expected.confusion,
        "evidence_f1": expected.evidence_f1,
    }
