"""Run commands in the vLLM environment, each in a fork of this process, which has imported vLLM once.

Reads orders from standard input, one JSON object in a line: the program (`radfact`, or the path of a script), its
arguments, the environment variables to add, the folder for its `stdout` and `stderr`, and the seconds after which it is
ended. Writes the exit code of each; without seconds, the program runs on, and its process ID is written.
"""

import json
import multiprocessing
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import vllm.entrypoints.openai.api_server
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker  # noqa: F401

_FORK = multiprocessing.get_context("fork")


def run(order: dict[str, Any]) -> None:
    """Run the program of an order in this process."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(order["out"], name), os.O_WRONLY), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.alarm(order["seconds"] or 0)
    os.environ |= order["environment"]
    # vLLM for the CPU asks for spawn, by which each of its processes would import vLLM again; for GPUs it forks.
    multiprocessing.get_context = lambda *_: _FORK
    sys.argv = [order["program"], *order["arguments"]]
    if order["program"] == "radfact":
        from radfact.cli.main import main

        main()
    else:
        runpy.run_path(order["program"], run_name="__main__")


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
            sys.exit()
        waits = json.loads(line)["seconds"]
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if waits else child, flush=True)
