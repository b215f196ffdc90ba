#!/usr/bin/env bash
# The main job on real data: make a volume, mount it, copy a tree in, read it back two ways, pull the plug,
# and show that what was fsynced is there. Argument: the onggi binary.
set -euo pipefail
onggi=$(realpath "${1:?the onggi binary}")
PATH=$PATH:/usr/sbin:/sbin
work=$(mktemp -d "${TMPDIR:-/tmp}/onggi-demo.XXXXXX")
image=$work/disk.img
dir=$work/mnt
mkdir "$dir"
tree=${ONGGI_DEMO_TREE:-/usr/include}
[[ -d $tree ]] || tree=/usr/share/doc
server=

leave() {
    [[ -n $server ]] && kill -9 "$server" 2>/dev/null || true
    fusermount3 -uqz "$dir" 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT

bold() { if [[ -t 1 ]]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n== %s\n' "$*"; fi; }
show() { # the command as a person would type it, then its output
    local text="$*"
    text=${text//$onggi/onggi}
    printf '$ %s\n' "${text//$work\//}"
    "$@" | sed "s|$work/||g"
}
say() { printf '  %s\n' "$*"; }
judge() { # both checkers must be content
    show "$onggi" check -n "$image"
    if command -v e2fsck >/dev/null; then
        printf '$ e2fsck -fn %s\n' "${image#"$work"/}"
        e2fsck -fn "$image" 2>/dev/null | tail -n 1
    else
        say "(no e2fsck on this machine to ask for a second opinion)"
    fi
}
count() { (cd "$1" && find . -type f | wc -l); }

bold "1. Make an ext4 volume"
show "$onggi" mkfs -s 1G -L demo "$image"

if [[ ! -w /dev/fuse ]]; then
    bold "/dev/fuse cannot be used here: the same through the library, without a mount"
    show "$onggi" cp -a "$tree" "$image:/"
    show "$onggi" cp -a "$image:/$(basename "$tree")" "$work/back"
    diff -r --no-dereference "$tree" "$work/back" && say "$(count "$work/back") files came back identical"
    judge
    exit 0
fi

bold "2. Mount it and copy $tree into it"
show "$onggi" mount "$image" "$dir"
time_start=$(date +%s.%N)
show cp -a "$tree" "$dir/tree"
say "copied $(count "$dir/tree") files in $(echo "$(date +%s.%N) $time_start" | awk '{printf "%.1f", $1 - $2}') s"
show df -h --output=source,size,used,avail,target "$dir"

bold "3. Read it back through the mount, and with no mount at all"
diff -r --no-dereference "$tree" "$dir/tree" && say "identical through the mount"
show "$onggi" umount "$dir"
show "$onggi" cp -a "$image:/tree" "$work/back"
diff -r --no-dereference "$tree" "$work/back" && say "identical through onggi cp"
judge

bold "4. Mount it on a device with a volatile write cache, fsync a part, and pull the plug"
"$onggi" mount -f -o power-cut=42,commit=1 "$image" "$dir" &
server=$!
for _ in $(seq 100); do mountpoint -q "$dir" && break; sleep 0.05; done
say "(power-cut=42: writes that are not flushed stay in the server's memory, or leak to the image by chance)"
mkdir "$dir/safe" "$dir/unsafe"
kept=0
for file in $(cd "$tree" && find . -type f -size -256k | sort | head -n 200); do
    name=$(echo "$file" | tr / _)
    cp "$tree/$file" "$dir/safe/$name"
    sync "$dir/safe/$name"
    kept=$((kept + 1))
done
sync "$dir/safe"
say "$kept files copied to safe/, each with fsync"
cp -r "$tree" "$dir/unsafe/" 2>/dev/null &
copier=$!
sleep 2.5
kill -9 "$server"
wait "$server" 2>/dev/null || true
server=
say "killed the server with SIGKILL in the middle of copying to unsafe/ without fsync"
fusermount3 -uz "$dir"
wait "$copier" 2>/dev/null || true

bold "5. Mount again: the journal is replayed, and all that was fsynced is there"
show "$onggi" mount "$image" "$dir"
lost=0
for file in $(cd "$tree" && find . -type f -size -256k | sort | head -n 200); do
    cmp -s "$tree/$file" "$dir/safe/$(echo "$file" | tr / _)" || lost=$((lost + 1))
done
say "$((kept - lost)) of $kept fsynced files are there, byte for byte; $lost lost"
diff -r --no-dereference "$tree" "$dir/tree" && say "the tree from before is untouched"
say "$(count "$dir/unsafe" 2>/dev/null || echo 0) files of the copy that was cut off are there as well"
show "$onggi" umount "$dir"
judge
[[ $lost -eq 0 ]]
bold "Done. Nothing that was promised was lost."
