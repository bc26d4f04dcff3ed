# Two images: `platform` for API and scheduler, `worker` with what training needs beside it. GPU nodes
# usually run the worker from a virtual environment: see README, "For real".
FROM python:3.12-slim AS platform
# A new volume takes over whom its folder in the image belongs to.
RUN useradd --create-home --uid 10001 trainyard && install -d -o trainyard -m 700 /data /node
WORKDIR /opt/trainyard
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY client client
COPY strategies strategies
COPY core core
COPY api api
COPY scheduler scheduler
COPY simulation simulation
COPY worker worker
COPY dashboard dashboard
COPY standalone standalone
COPY migrations migrations
COPY examples examples
COPY docs docs
RUN pip install --no-cache-dir -c constraints.txt ./client ".[tables,tracing]"
USER trainyard
ENTRYPOINT ["trainyard"]

FROM platform AS worker
USER root
# Compilers: torch.compile, Triton and DeepSpeed build kernels when they are first asked for, against
# the headers of the image's own Python (in /usr/local/include), which Debian's python3-dev has not.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ ninja-build libaio-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -c constraints.txt ./client ".[tables,train,tracing]"
USER trainyard
