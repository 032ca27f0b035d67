"""Run llama.cpp's HTTP server, and print its address; closing standard input ends it.

With `--port` it runs until it is terminated. Other options of `vllm serve` are ignored.
"""

import argparse
import os
import signal
import sys

import xllamacpp

CONTEXT_WINDOW = 4096  # tokens of a prompt and its response
MODEL = "smollm2"


def main() -> None:
    """Serve a GGUF file on the loopback address."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--served-model-name", default=MODEL)
    options, _ = parser.parse_known_args()
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.model_alias = options.model, {options.served_model_name}
    parameters.hostnames, parameters.port = ["127.0.0.1"], options.port
    parameters.api_keys = [key for key in [os.environ.get("VLLM_API_KEY")] if key]
    # One request at a time: another one in flight would change the rounding of a response.
    parameters.n_ctx, parameters.n_parallel = CONTEXT_WINDOW, 1
    # On busy cores, two threads can be many times slower than one.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    if options.port:
        signal.pause()
    sys.stdin.read()


if __name__ == "__main__":
    main()
