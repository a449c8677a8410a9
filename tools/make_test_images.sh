#!/usr/bin/env bash
# Makes the images accsd-test-busybox, accsd-test-python and accsd-test-judge out of what this machine has: a static busybox,
# Debian's Python 3.11 with its libraries, and g++ beside it. For the tests of the compose runner, where no registry can be reached.
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

with_compiler() {
    # what the packages of the compiler have, and the libraries that it is linked with
    dpkg-query -W -f '${Package}\n' 'g++' 'g++-1*' 'gcc-1*' 'cpp-1*' 'libgcc-*-dev' 'libstdc++-*-dev' libc6-dev linux-libc-dev 'binutils*' \
        libbinutils 2>/dev/null | grep -v -e -base | while read -r package; do dpkg -L "$package" 2>/dev/null || true; done |
        grep -v -e /share/ -e /lto1$ -e /lto-wrapper$ -e /gdb/ -e '/libasan' -e '/liblsan' -e '/libtsan' -e '/libubsan' -e '/libgprof' -e '/gold$' |
        while read -r path; do [ -d "$path" ] && [ ! -L "$path" ] || echo "$path"; done | sort -u |
        tar -C / --no-recursion -c -T - 2>/dev/null | tar -C "$1" -x --keep-directory-symlink
    for binary in /usr/bin/x86_64-linux-gnu-{ld.bfd,as} "$(g++ -print-prog-name=cc1plus)" "$(g++ -print-prog-name=collect2)"; do ldd "$binary" 2>/dev/null || true; done |
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
if command -v g++ >/dev/null && wanted accsd-test-judge; then
    with_busybox "$root/judge"
    with_python "$root/judge"
    with_compiler "$root/judge"
    tar -C "$root/judge" -c . | docker import --change 'CMD ["sh"]' - accsd-test-judge
fi
