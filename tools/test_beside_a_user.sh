#!/usr/bin/env bash
# A part of `make test` as on a new user's machine: no docker, compose, pgbouncer or browser in PATH, no engine, and an
# `accsd up` of the user's running in the state folder that the environment names. Skips are allowed; failures are not.
set -euo pipefail
cd "$(dirname "$0")/.."

# What looks for a database or a state folder, what starts daemons in each way there is, and what needs the programs that
# are absent. All others find their surroundings as these do (tests/support/apart.py).
tests=(
    tests/unit/test_apart.py
    tests/cli/test_cli_{config,doctor}.py
    tests/db/test_{cli_db,pgbouncer}.py
    tests/machine/test_container_postgres.py
    tests/acceptance/test_{compose_config,newcomers_mistakes,start}.py
    tests/acceptance/test_documents.py::test_the_quickstart{,_with_compose}
)

user=$(mktemp -d)
up=
cleanup() {
    [ -z "$up" ] || { kill "$up" 2>/dev/null && wait "$up"; } || true
    rm -rf "$user"
}
trap cleanup EXIT

# Absent programs stand beside needed ones in /usr/bin, so PATH becomes one folder of links to all others.
mkdir "$user/bin"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}" /usr/sbin /sbin; do
    ln -s "$folder"/* "$user/bin/" 2>/dev/null || true  # a name that is there already stays
done
rm -f "$user"/bin/{docker*,podman*,pgbouncer,*chrom*,firefox*,\*}
unset "${!ACC_@}" "${!PG@}"
export PATH=$user/bin DOCKER_HOST=unix://$user/no-engine.sock
export HOME=$user XDG_STATE_HOME=$user/state STATE_DIRECTORY=$user/state/accsd  # the second is obeyed, as root the third

.venv/bin/accsd up >"$user/up.log" 2>&1 </dev/null &
up=$!
for _ in $(seq 120); do .venv/bin/accsd jobs >/dev/null 2>&1 && break || sleep 0.5; done
.venv/bin/accsd jobs >/dev/null || { cat "$user/up.log"; exit 1; }

PGHOST=nowhere.invalid ACC_NODE_LABELS='{"of": "the user"}' make test PYTEST_ARGS="-q ${tests[*]}"
.venv/bin/accsd jobs >/dev/null  # and the tests did nothing to it
kill "$up"
wait "$up"
up=
