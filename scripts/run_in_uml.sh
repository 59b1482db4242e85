#!/usr/bin/env bash
# Run a command under a Linux kernel whose control groups are of version 2, and limit memory.
#   scripts/run_in_uml.sh [--memory SIZE] COMMAND...      (SIZE of the whole machine, by default 2G)
# The kernel is User Mode Linux, a process. The command runs there as root and nearly as fast as here, on one processor, with the
# files of this machine, which it cannot change. /var/tmp is a disk that is removed afterwards, and TMPDIR. Only EDGEKV_* of the
# environment is passed on. There is no pressure stall information.
set -euo pipefail

memory=2G
if [ "${1:-}" = --memory ]; then memory=$2 && shift 2; fi
[ $# -gt 0 ] || { sed -n 2,6p "$0" >&2; exit 2; }
missing=()
[ -x "$(command -v linux.uml)" ] || missing+=(user-mode-linux)
[ -x "$(command -v mke2fs)" ] || missing+=(e2fsprogs)
[ -x /bin/busybox ] || missing+=(busybox)
[ ${#missing[@]} -eq 0 ] || { echo "what it needs is not installed: apt-get install ${missing[*]}" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
truncate -s 8G "$folder/disk"
mke2fs -q -t ext4 "$folder/disk"
{
    echo '#!/bin/bash'
    printf 'export %q\n' "HOME=$HOME" "PATH=$PATH" LC_ALL=C.UTF-8 TMPDIR=/var/tmp
    for name in "${!EDGEKV_@}"; do printf 'export %q\n' "$name=${!name}"; done
    cat <<'END'
mount -t proc proc /proc && mount -t sysfs sys /sys
mount -t ext4 /dev/ubda /var/tmp
mount -t cgroup2 groups /sys/fs/cgroup && echo +memory >/sys/fs/cgroup/cgroup.subtree_control
/bin/busybox ip link set lo up
END
    printf 'cd %q\n' "$PWD"
    printf '%q ' "$@"
    printf '\necho $? >/var/tmp/status\numount -l /var/tmp; sync; /bin/busybox poweroff -f\n'
} >"$folder/init"
chmod +x "$folder/init"
linux.uml mem="$memory" root=/dev/root rootfstype=hostfs rootflags=/ ro init="$folder/init" quiet \
    con=null con0=null,fd:1 ubda="$folder/disk" </dev/null
exit "$(debugfs -R "cat status" "$folder/disk" 2>/dev/null)"
