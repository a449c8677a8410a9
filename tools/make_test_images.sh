#!/usr/bin/env bash
# Makes the images accsd-test-busybox and accsd-test-python out of what this machine has: a static busybox, and Debian's
# Python 3.11 with its libraries. For the tests of the compose runner, where no registry can be reached.
# Does nothing where the images are there already; `--again` makes them anew.
set -euo pipefail

[ "${1:-}" = --again ] && again=yes || again=no
wanted() { [ "$again" = yes ] || ! docker image inspect "$1" >/dev/null 2>&1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

with_busybox() {
    mkdir -p "$1"/{bin,etc,tmp,proc,root} && chmod 1777 "$1/tmp"
    cp "$(command -v busybox)" "$1/bin/busybox"
    for applet in $(busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$1/bin/$applet"; done
    printf 'root:x:0:0::/root:/bin/sh\nguest:x:1000:1000::/tmp:/bin/sh\n' >"$1/etc/passwd"
    printf 'root:x:0:\nguest:x:1000:\n' >"$1/etc/group"
}

with_python() {
    mkdir -p "$1"/usr/{bin,lib}
    cp -L /usr/bin/python3.11 "$1/usr/bin/python3.11"
    ln -s python3.11 "$1/usr/bin/python3"
    tar -C /usr/lib --exclude=__pycache__ --exclude='test*' --exclude=config-3.11-\* --exclude=ensurepip -c python3.11 |
        tar -C "$1/usr/lib" -x
    # the closure of shared libraries, at the paths where the loader looks for them
    for binary in /usr/bin/python3.11 /usr/lib/python3.11/lib-dynload/*.so; do ldd "$binary" 2>/dev/null || true; done |
        grep -oE '/[^ ]+\.so[^ ]*' | xargs -r realpath -s | sort -u | while read -r library; do
        mkdir -p "$1$(dirname "$library")" && cp -L "$library" "$1$library"
    done
}

if wanted accsd-test-busybox; then
    with_busybox "$root/busybox"
    tar -C "$root/busybox" -c . | docker import --change 'CMD ["sh"]' - accsd-test-busybox
fi
if wanted accsd-test-python; then
    with_busybox "$root/python"
    with_python "$root/python"
    tar -C "$root/python" -c . | docker import --change 'ENV PYTHONUNBUFFERED=1' --change 'CMD ["python3"]' - accsd-test-python
fi
