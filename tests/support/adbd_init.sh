# The first process of a test device: mounts what a device has, then obeys lines on stdin.
#
# It runs in namespaces of its own. When the other end of stdin is gone, however that came, it ends,
# and with it the kernel ends every process of the device, its mounts and its network.
set -eu
root=$1
size_mib=$2
qemu=$3

if [ -n "$qemu" ]; then
    # A binfmt_misc of this user namespace only: the machine's own stays as it is.
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":etdeploy-aarch64:M::$magic:$mask:$qemu:F" >/proc/sys/fs/binfmt_misc/register
fi
mount -t tmpfs -o mode=755,size="${size_mib}m" tmpfs "$root/data/local/tmp"
mount -t tmpfs -o mode=755,size=1m tmpfs "$root/mnt"
mount -t proc proc "$root/proc"
mkdir -p "$root/sys/devices/system/cpu"
mount --bind /sys/devices/system/cpu "$root/sys/devices/system/cpu"
mount -t tmpfs -o mode=755,size=1m tmpfs "$root/dev"
for name in null zero full random urandom tty; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
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
