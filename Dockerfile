# syntax=docker/dockerfile:1
# Two images from one source: `api` without torch, and `worker` with it.
#
#   docker build --target api --tag stoker-api .
#   docker build --target worker --tag stoker-worker .
#
# pip's own settings (a mirror, an index with CPU builds of torch) come in as a secret, so that they
# do not stay in the image:  --secret id=pip.conf,src=$HOME/.config/pip/pip.conf
# Without a mirror, torch comes with CUDA: right for a GPU, large for a host without one.

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_CACHE_DIR=/var/cache/pip \
    PYTHONDONTWRITEBYTECODE=1 \
    STOKER_HOME=/var/lib/stoker \
    STOKER_DATA_ROOT=/data
RUN groupadd --gid 10001 stoker \
    && useradd --uid 10001 --gid stoker --create-home stoker \
    && install --directory --owner=stoker --group=stoker /var/lib/stoker /data
WORKDIR /usr/src/stoker
COPY pyproject.toml README.md LICENSE ./
COPY stoker stoker
COPY app app
COPY worker worker
COPY migrations migrations

FROM base AS api
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    pip install ".[postgres]"
WORKDIR /var/lib/stoker
USER stoker
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('STOKER_PORT', '8000')}/healthz\", timeout=4)"]
CMD ["stoker", "api"]

FROM base AS worker
# For runs that compile their steps; Python's headers are in the base image.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    pip install ".[worker,samples,filters,scripts,postgres]"
WORKDIR /var/lib/stoker
USER stoker
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('STOKER_EXPORTER_PORT', '8001')}/metrics\", timeout=4)"]
CMD ["stoker", "worker"]
