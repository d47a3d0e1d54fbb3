# What the first processes of test devices mount, each in namespaces of its own.

# Lets the kernel start arm64 programs with the emulator $1.
register_arm64() {
    # A binfmt_misc of this user namespace only: the machine's own stays as it is.
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    # F: it is found in every root folder. P: programs get the name that they were started by, which
    # tells BusyBox what to be.
    printf '%s' ":etdeploy-aarch64:M::$magic:$mask:$1:PF" >/proc/sys/fs/binfmt_misc/register
}

# Gives the root folder $1 /proc, /dev and what programs read of the processors.
mount_kernel() {
    mount -t proc proc "$1/proc"
    mkdir -p "$1/sys/devices/system/cpu"
    mount --bind /sys/devices/system/cpu "$1/sys/devices/system/cpu"
    mount -t tmpfs -o mode=755,size=1m tmpfs "$1/dev"
    for name in null zero full random urandom tty; do
        : >"$1/dev/$name"
        mount --bind "/dev/$name" "$1/dev/$name"
    done
}
