#!/usr/bin/env bash
# Draft the reports of a manifest, one process per GPU; submitted again, it resumes:
#   sbatch --nodes 2 deploy/slurm/generate.sh --checkpoint DIR --manifest FILE --out drafts.jsonl
# All nodes need the checkpoint, the images and the drafts. Add your cluster's --partition and --account.
#SBATCH --job-name=maira-generate
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

# `sed` reads all names: with `head`, a job of many nodes would end by SIGPIPE.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}" OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# Slurm's variables differ per task, so each task expands them.
# shellcheck disable=SC2016
exec srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    exec python -m maira generate "$@"' maira "$@"
