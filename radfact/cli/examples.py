"""Examples in the help, by the words of the command; "" is radfact itself."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "radfact score pairs.json --judge offline --out results",
        "radfact score --candidates drafts.jsonl --references manifest.jsonl --judge openai:MODEL --out results",
        "radfact evaluate pairs.json --metrics all --judge offline --out results",
        "radfact compare results/base results/tuned",
        "radfact meta agreement ratings.csv --better lower --metrics rouge_l",
        "radfact view results",
        "radfact doctor",
    ),
    "score": (
        "radfact score pairs.json --judge offline",
        "radfact score pairs.csv --judge openai:MODEL --price 0.5,1.5,EUR --dry-run",
        "radfact score --candidates drafts.jsonl --references manifest.jsonl --judge openai:MODEL --limit 20",
        "radfact score --config llama.yaml --compat exact",
    ),
    "evaluate": (
        "radfact evaluate pairs.csv --metrics rouge_l,bleu_4,radfact --judge offline --out results/a",
        "radfact evaluate pairs.csv --metrics all --judge openai:MODEL --weights WEIGHTS",
        "radfact evaluate pairs.csv --metrics fineradscore --judge openai:MODEL"
        " --metric-arg fineradscore.examples=none",
    ),
    "compare": ("radfact compare results/base results/tuned results/other --out results/comparison",),
    "green-summary": ("radfact green-summary results/model",),
    "view": ("radfact view results", "radfact view results/base results/tuned --port 8500"),
    "judge-check": (
        "radfact judge-check --judge offline",
        "radfact judge-check examples.json --judge openai:MODEL --batch report --out check.json",
        "radfact judge-check --comparisons --judge openai:MODEL",
    ),
    "split": (
        "radfact split pairs.csv --judge offline --out sentences.json",
        "radfact split drafts.jsonl --judge openai:MODEL --out sentences.jsonl",
    ),
    "metrics": ("radfact metrics", "radfact metrics --judge openai:MODEL --weights WEIGHTS"),
    "weights": ("radfact weights list", "radfact weights fetch wordnet chexbert", "radfact weights verify"),
    "weights list": ("radfact weights list --json",),
    "weights fetch": ("radfact weights fetch meteor", "RADFACT_WEIGHTS=WEIGHTS radfact weights fetch radcliq"),
    "weights verify": ("radfact weights verify", "radfact weights verify chexbert"),
    "page": ("radfact page results", "radfact page results --manifest manifest.jsonl --note 'Drafts of June.'"),
    "export": (
        "radfact export results",
        "radfact export results --out radfact_scores.json",
        "radfact export results --format rexrank --out predictions.json",
    ),
    "doctor": ("radfact doctor", "radfact doctor --weights WEIGHTS --json"),
    "meta": (
        "radfact meta agreement ratings.csv --better lower --metrics rouge_l",
        "radfact meta inject reports.csv --out injected.jsonl",
        "radfact meta detect injected.jsonl --metrics rouge_l --out detection",
        "radfact meta rexamine reports.csv --styler openai:MODEL --metrics rouge_l --out rexamine",
    ),
    "meta agreement": (
        "radfact meta agreement ratings.csv --better lower --metrics rouge_l,bleu",
        "radfact meta agreement preferences.csv --layout preferences --metrics green --ask --judge openai:MODEL",
        "radfact meta agreement rexval/ --layout rexval --metrics green --judge openai:MODEL --out results/rexval",
    ),
    "meta corrections": (
        "radfact meta corrections refisco-v1.csv --judge openai:MODEL",
        "radfact meta corrections refisco-v0.csv --layout refisco-v0 --setting shuffled --judge openai:MODEL",
        "radfact meta corrections rexval/ --layout rexval --judge openai:MODEL",
    ),
    "meta inject": (
        "radfact meta inject reports.csv --out injected.jsonl",
        "radfact meta inject reports.csv --by openai:MODEL --types a,b",
    ),
    "meta detect": (
        "radfact meta detect injected.jsonl --metrics rouge_l,bleu_2",
        "radfact meta detect injected.jsonl --metrics green,vert --judge openai:MODEL --out results/detection",
    ),
    "meta rexamine": (
        "radfact meta rexamine reports.csv --styler openai:MODEL --metrics rouge_l,bleu_2",
        "radfact meta rexamine reports.csv --judge openai:MODEL --errors-by openai:MODEL --metrics all",
    ),
    "meta examples": (
        "radfact meta examples --out examples",
        "radfact meta agreement examples/plain.csv --better lower --metrics rouge_l",
    ),
    "meta pairs": ("radfact meta pairs rexval --layout rexval --out pairs.csv",),
    "meta ensemble fit": (
        "radfact meta ensemble fit rate_test.csv --layout rate-eval --judges gpt=results/gpt"
        " --judges opus=results/opus --features vert --out ensemble.json",
    ),
    "meta ensemble apply": (
        "radfact meta ensemble apply ensemble.json --judges gpt=new/gpt --judges opus=new/opus --out new/ensemble",
    ),
    "meta ensemble": (
        "radfact meta ensemble fit rate_test.csv --layout rate-eval --judges a=results/a"
        " --judges b=results/b --out ensemble.json",
        "radfact meta ensemble apply ensemble.json --judges a=new/a --judges b=new/b --out new/ensemble",
    ),
}
