# The first process of a test device: mounts what a device has, then obeys lines on stdin.
#
# It runs in namespaces of its own. When the other end of stdin is gone, however that came, it ends,
# and with it the kernel ends every process of the device, its mounts and its network.
set -eu
root=$1
size_mib=$2
qemu=$3

. "${0%/*}/mounts.sh"

[ -z "$qemu" ] || register_arm64 "$qemu"
mount -t tmpfs -o mode=755,size="${size_mib}m" tmpfs "$root/data/local/tmp"
mount -t tmpfs -o mode=755,size=1m tmpfs "$root/mnt"
mount_kernel "$root"
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=666,mode=600 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ip link set lo up

# Like the device qemu: qemu 7.2 computes some 8-bit convolutions wrongly with SVE.
start_adbd() {
    env -i PATH=/system/bin QEMU_CPU=max,sve=off "$(command -v chroot)" "$root" \
        /apex/adbd/ld.so --library-path /apex/adbd/lib /apex/adbd/adbd >&2 &
    adbd=$!
}

kill_adbd() {
    kill -9 "$adbd"
    wait "$adbd" || true
}

echo ready
while read -r line; do
    eval "$line"
    echo "done"
done
