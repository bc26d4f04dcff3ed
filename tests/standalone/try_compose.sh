#!/usr/bin/env bash
# Tries docker-compose.yml on a machine that has a container engine: two APIs and two schedulers become
# healthy, one first-start link makes the administrator, a worker trains examples/gpt-ddp.yaml to its
# end. Everything that it starts, volumes included, is a project of its own and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
export POSTGRES_PASSWORD=$(openssl rand -hex 24) REDIS_PASSWORD=$(openssl rand -hex 24)
export TRAINYARD_PUBLIC_URL=http://127.0.0.1:8471 REDIS_LISTEN=127.0.0.1:16379
export XDG_CONFIG_HOME=$work
compose() { docker compose --project-name trainyard-try --profile worker "$@"; }
trap 'compose down --volumes --remove-orphans; rm -rf "$work"' EXIT

compose build
compose up -d --wait --scale api=2 --scale scheduler=2 --scale worker=0
links=$(compose logs --no-log-prefix api | grep -o 'http://[^ ]*first-start[^ ]*' | sort -u)
[ "$(wc -l <<<"$links")" = 1 ] || { echo "expected one first-start link, got: $links" >&2; exit 1; }
inside() { compose exec -T api trainyard "$@"; }
printf 'ada\na long password 1\na long password 1\n' | inside login --link "$links"
ENROL_TOKEN=$(inside admin enrol try-01 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])')
export ENROL_TOKEN
compose up -d --wait --scale api=2 --scale scheduler=2 worker
inside submit examples/gpt-ddp.yaml --follow
echo "The compose file works: two APIs, two schedulers, one link, a job trained to its end."
