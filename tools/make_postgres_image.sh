#!/usr/bin/env bash
# Makes the image accsd-test-postgres out of what this machine has: the PostgreSQL of the wheel, the libraries that it
# needs, busybox for a shell. For the container leg of the tests, where no registry can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(.venv/bin/python -c 'from accsd.embedded.binaries import wheel_binaries; print(wheel_binaries())')
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,etc,tmp,data,run} && chmod 1777 "$root/tmp"
# at its own path, because it finds its libraries relative to itself
install=$(dirname "$bin")
mkdir -p "$root$(dirname "$install")" && cp -r "$install" "$root$install"
ln -s "$install" "$root/pg"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in sh ls cat id mkdir chmod; do ln -s busybox "$root/bin/$applet"; done
# the closure of shared libraries, at the paths where the loader looks for them
for binary in "$bin"/{postgres,initdb,psql,pg_ctl} "$install"/lib/*.so*; do ldd "$binary" 2>/dev/null || true; done |
    grep -oE '/[^ ]+\.so[^ ]*' | xargs -r realpath -s | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done
echo 'postgres:x:70:70::/data:/bin/sh' >"$root/etc/passwd"
echo 'postgres:x:70:' >"$root/etc/group"
chown 70:70 "$root/data" "$root/run"
cat >"$root/entrypoint" <<'SH'
#!/bin/sh
# like the official image: POSTGRES_USER, POSTGRES_PASSWORD, on 5432 for everybody with the password
set -eu
if [ ! -e /data/db/PG_VERSION ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    /pg/bin/initdb -D /data/db -U "$POSTGRES_USER" -A scram-sha-256 --pwfile=/tmp/password -E UTF8 --locale=C >/dev/null
    echo 'host all all all scram-sha-256' >>/data/db/pg_hba.conf
fi
exec /pg/bin/postgres -D /data/db -k /run -c listen_addresses='*'
SH
chmod 755 "$root/entrypoint"
tar -C "$root" -c . | docker import --change 'USER postgres' --change 'ENTRYPOINT ["/entrypoint"]' --change 'EXPOSE 5432' - accsd-test-postgres
