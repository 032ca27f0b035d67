#!/usr/bin/env bash
# Score reports with a 70B judge that vLLM serves on this node with tensor parallelism; submitted again, it resumes:
#   sbatch deploy/slurm/judge.sh MODEL score pairs.json --out results
#   sbatch deploy/slurm/judge.sh MODEL evaluate pairs.csv --metrics radfact,green --out results
# MODEL is a folder or a name of the Hugging Face cache, such as meta-llama/Meta-Llama-3-70B-Instruct. The other arguments
# are those of radfact. 70B weights in bfloat16 take 140 GB: four GPUs with 80 GB leave room for the key-value cache.
# Add your cluster's --partition and --account. VLLM_ARGS adds options of vLLM, VLLM names its command.
#SBATCH --job-name=radfact-judge
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=256G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

model=$1
shift
port="${PORT:-8000}"
# Other users of the node can reach the port, so the server requires a key.
OPENAI_API_KEY=$(python -c 'import secrets; print(secrets.token_urlsafe())')
export OPENAI_API_KEY VLLM_API_KEY="$OPENAI_API_KEY"

# shellcheck disable=SC2086  # VLLM_ARGS is a list of options.
"${VLLM:-vllm}" serve "$model" --served-model-name judge --host 127.0.0.1 --port "$port" \
    --tensor-parallel-size "${SLURM_GPUS_ON_NODE:-1}" --max-model-len 8192 ${VLLM_ARGS:-} &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
trap 'exit 143' TERM

until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/health"; do
    kill -0 "$server" 2>/dev/null || { echo "vLLM ended before it was ready; its messages are above" >&2; exit 1; }
    sleep 1
done

status=0
radfact "$@" --judge openai:judge --base-url "http://127.0.0.1:$port/v1" --concurrency 64 &
run=$!
trap 'kill -TERM "$run"' TERM
wait "$run" || status=$?
exit "$status"
