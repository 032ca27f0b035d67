"""llama.cpp's HTTP server with one model, as a process: prints its address, and ends with its standard input."""

from __future__ import annotations

import sys

import xllamacpp

ANSWERS_AT_ONCE = 4
TOKENS = 4096  # of one conversation, prompt and answer
MODEL = "smollm2"


def main(model: str) -> None:
    """Serve the GGUF file `model` on a free loopback port until standard input ends."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.model_alias = model, {MODEL}
    parameters.hostnames, parameters.port = ["127.0.0.1"], 0
    parameters.n_ctx, parameters.n_parallel = ANSWERS_AT_ONCE * TOKENS, ANSWERS_AT_ONCE
    # Two threads on cores that others use can be many times slower than one.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
