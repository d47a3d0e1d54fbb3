# Runs a program in the root folder with Swift: ROOT FOLDER [PATH FOLDER]... -- ARGV.
#
# In namespaces of its own, so that the mounts end with it. The root folder is shared by all tests
# and stays as it is: what is written goes to a layer in memory, and to FOLDER.
set -eu
root=$1
folder=$2
shift 2

layer=/mnt
mount -t tmpfs tmpfs "$layer"
mkdir "$layer/upper" "$layer/scratch" "$layer/root"
mount -t overlay -o "lowerdir=$root,upperdir=$layer/upper,workdir=$layer/scratch" \
    overlay "$layer/root"
root=$layer/root
mount -t proc proc "$root/proc"
for name in null zero urandom; do
    : >"$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mount --bind "$folder" "$root/work"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$2" "$root$1"
    shift 2
done
shift
exec env -i HOME=/tmp LANG=C.UTF-8 PATH=/usr/libexec/swift/bin:/usr/bin "$(command -v unshare)" \
    --root "$root" --wd /work "$@"
