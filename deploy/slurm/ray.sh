#!/usr/bin/env bash
# Start a Ray cluster on the nodes of the job, and run one command on it:
#   sbatch --nodes 4 deploy/slurm/ray.sh radfact score pairs.json --judge vllm:PATH --engine ray --workers 16 --out results
#   sbatch --nodes 4 deploy/slurm/ray.sh maira generate --checkpoint DIR --manifest FILE --engine ray --out drafts.jsonl
# All nodes need the model, the images and the output. Add your cluster's --partition and --account.
#SBATCH --job-name=radfact-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export RAY_ADDRESS="${nodes[0]}:${RAY_PORT:-6379}"
# Other users of the nodes can reach Ray's ports and would run code as you, so the cluster requires a token (Ray 2.52 and
# later; older releases have none).
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
resources=(--num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats)

srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    ray start --head --block --node-ip-address "${nodes[0]}" --port "${RAY_ADDRESS##*:}" "${resources[@]}" &
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
until ray status --address "$RAY_ADDRESS" >/dev/null 2>&1; do
    kill -0 "$!" 2>/dev/null || { echo "the Ray head node exited before it was ready; see its messages above" >&2; exit 1; }
    sleep 1
done
for node in "${nodes[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \
        ray start --block --address "$RAY_ADDRESS" --node-ip-address "$node" "${resources[@]}" &
done

"$@" &
command=$!
trap 'kill -TERM "$command"' TERM
status=0
wait "$command" || status=$?
exit "$status"
