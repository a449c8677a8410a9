#!/usr/bin/env bash
# Makes the image accsd-test-systemd: a Debian 12 that boots systemd as PID 1, with Python for accsd. For the acceptance test
# of the units, where no registry can be reached. Does nothing where the image is there (remove it to make it anew).
set -euo pipefail

image=${ACC_TEST_SYSTEMD_IMAGE:-accsd-test-systemd}
if docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image is there"
    exit 0
fi

root=$(mktemp --suffix=.tar)
trap 'rm -f "$root"' EXIT
# What nobody needs in a container stays out: documentation, translations, and the units that wait for hardware or a console.
mmdebstrap --quiet --variant=minbase --include=systemd-sysv,dbus,python3 \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='for unit in getty.target console-getty.service systemd-logind.service systemd-networkd.service \
        systemd-udevd.service systemd-firstboot.service; do ln -sf /dev/null "$1/etc/systemd/system/$unit"; done' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
    bookworm "$root"
# systemd hands a unit its credentials by a mount that must show up in its own namespace; a container's root does not share.
docker import --change 'ENV container=docker' \
    --change 'CMD ["/bin/sh", "-c", "mount --make-rshared / && exec /lib/systemd/systemd"]' "$root" "$image"
