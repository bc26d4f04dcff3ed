# One image for API, scheduler and (on CPU nodes, for trying things out) worker.
# GPU nodes usually run the worker from a virtual environment: see README, "For real".
FROM python:3.12-slim
# A new volume takes over whom its folder in the image belongs to.
RUN useradd --create-home --uid 10001 trainyard && install -d -o trainyard -m 700 /data /node
WORKDIR /opt/trainyard
COPY constraints.txt pyproject.toml README.md ./
COPY client client
COPY strategies strategies
COPY core core
COPY api api
COPY scheduler scheduler
COPY worker worker
COPY dashboard dashboard
COPY standalone standalone
COPY migrations migrations
ARG EXTRAS="[tracing]"
RUN pip install --no-cache-dir -c constraints.txt ./client ".${EXTRAS}"
USER trainyard
ENTRYPOINT ["trainyard"]
