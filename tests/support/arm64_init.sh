# The first process of an arm64 board: mounts what it has, then becomes its sshd.
#
# It runs in namespaces of its own, and its end is the end of all that runs on the board.
set -eu
# Until then no user of this namespace is one of the machine's, root included.
read -r mapped
[ "$mapped" = mapped ]
qemu=$1
root=$2
board=$3
shift 3

. "${0%/*}/mounts.sh"

register_arm64 "$qemu" || {
    echo "binfmt_misc cannot be used in a user namespace here (Linux has it since 6.7)" >&2
    exit 1
}
mount_kernel "$root"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/tmp"
mount --bind "$board/home" "$root/home/pi"
# What the kernel of such a board says, and not this machine's.
mount --bind "$board/cpuinfo" "$root/proc/cpuinfo"
mount --bind "$board/boot_id" "$root/proc/sys/kernel/random/boot_id"
exec "$@"
