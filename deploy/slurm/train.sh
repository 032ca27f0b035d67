#!/usr/bin/env bash
# Train on one or several nodes, and resume after preemption, a failed node or the time limit:
#   sbatch --nodes 2 --gpus-per-node 8 --ntasks-per-node 8 deploy/slurm/train.sh configs/maira2_7b.yaml [KEY=VALUE...]
# Submit it from the folder to which the paths of the config are relative, with the environment activated. All nodes need
# this folder, the data and the config's `out`. Add your cluster's --partition and --account.
#SBATCH --job-name=maira-train
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
# One task per GPU, started by srun without torchrun, so that termination signals reach the training processes directly:
# torchrun kills its processes 30 seconds after SIGTERM, which is too short to save the state of a 7B model.
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# Sent to this script alone, ten minutes before the time limit.
#SBATCH --signal=B:USR1@600
set -euo pipefail

# `sed` reads all names: with `head`, a job of many nodes would end by SIGPIPE.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}" OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# Slurm's variables differ per task, so each task expands them.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    exec python -m maira train "$@"' maira "$@" &
step=$!

signaled=false requeue=false
# srun passes SIGTERM on to its tasks, which save their state and exit.
trap 'signaled=true requeue=true; kill -TERM "$step"' USR1
trap 'signaled=true; kill -TERM "$step"' TERM

status=0
wait "$step" || status=$?
while $signaled; do # A signal ends `wait` before the step has ended.
    signaled=false status=0
    wait "$step" || status=$?
done

# Slurm itself requeues preempted jobs and those of failed nodes.
if $requeue && [ "$status" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
