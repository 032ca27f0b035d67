# Three images: radfact (evaluation, without PyTorch), review (the review app) and gpu (training, drafting and vLLM).
#   make images
#   docker build --target radfact --tag maira-radfact:radfact .
# docs/containers.md shows how to run them.
FROM python:3.11-slim-bookworm AS base
ARG VERSION=unknown
LABEL org.opencontainers.image.title="maira-radfact" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.source="https://github.com/maira-radfact/maira-radfact" \
    org.opencontainers.image.documentation="https://maira-radfact.github.io/maira-radfact/containers.html"
# The images run as any user, also as one without a name in the image: --user "$(id -u):$(id -g)".
RUN install --directory --mode 1777 /home/maira /data /review
ENV HOME=/home/maira USER=maira PATH="/opt/venv/bin:$PATH" PYTHONUNBUFFERED=1
WORKDIR /data

FROM base AS tools
WORKDIR /build
COPY constraints.txt constraints-gpu.txt pyproject.toml ./
RUN pip install --no-cache-dir --constraint constraints.txt uv
ENV VIRTUAL_ENV=/opt/venv UV_COMPILE_BYTECODE=1
RUN uv venv /opt/venv

FROM tools AS wheel
COPY LICENSE README.md ./
COPY radfact radfact
COPY encoders encoders
COPY data data
COPY maira maira
RUN uv build --wheel --build-constraint constraints.txt --out-dir /wheels

# The dependencies come first: a change of the source keeps their layer.
FROM tools AS radfact-environment
RUN uv pip install --constraint constraints.txt --requirements pyproject.toml
COPY --from=wheel /wheels /wheels
RUN uv pip install --no-deps /wheels/*.whl

FROM tools AS review-environment
RUN uv pip install --constraint constraints.txt --requirements pyproject.toml --extra review
COPY --from=wheel /wheels /wheels
RUN uv pip install --no-deps /wheels/*.whl

FROM tools AS gpu-environment
RUN uv pip install --constraint constraints-gpu.txt --requirements pyproject.toml \
    --extra model --extra metrics --extra qlora --extra ray --extra states8bit --extra vllm --extra wandb
COPY --from=wheel /wheels /wheels
RUN uv pip install --no-deps /wheels/*.whl

# The wheels of torch and vLLM bring CUDA's libraries, and the NVIDIA runtime of the host brings the driver. A CUDA base
# image would add the same libraries again. Triton and FlashInfer compile kernels, InfiniBand needs the libraries of
# verbs, and the Kubernetes job of training pkill.
FROM base AS gpu
LABEL org.opencontainers.image.description="Training, drafting and scoring on NVIDIA GPUs, with vLLM"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ ibverbs-providers libibverbs1 procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=gpu-environment /opt/venv /opt/venv
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
CMD ["maira", "doctor"]

FROM base AS review
LABEL org.opencontainers.image.description="The review app: radiologists correct drafts in the browser"
COPY --from=review-environment /opt/venv /opt/venv
# https if the review has a certificate.
ENV REVIEW_SCHEME=http
USER 10001:10001
VOLUME /review
EXPOSE 8471
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, ssl, urllib.request as web; web.urlopen(os.environ['REVIEW_SCHEME'] + '://127.0.0.1:8471/health', timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["maira", "review"]
CMD ["drafts.jsonl", "--manifest", "manifest.jsonl", "--db", "/review/review.sqlite", \
    "--token-file", "/run/secrets/review-token", "--host", "0.0.0.0", "--no-browser"]

# Last, so that it is the default target.
FROM base AS radfact
LABEL org.opencontainers.image.description="Evaluation of radiology reports, without PyTorch"
COPY --from=radfact-environment /opt/venv /opt/venv
USER 10001:10001
ENTRYPOINT ["radfact"]
CMD ["--help"]
