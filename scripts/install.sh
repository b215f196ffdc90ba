#!/usr/bin/env bash
# Installs the binary, its mount helper, man pages and shell completions under PREFIX (/usr/local).
# Argument: the onggi binary.
set -euo pipefail
onggi=$(realpath "${1:?the onggi binary}")
[[ -x $onggi ]] || { echo "install: $onggi is not there: run make run, or cargo build --release, first" >&2; exit 66; }
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
install -Dm755 "$onggi" "$root$prefix/bin/onggi"
# mount -t fuse.onggi finds it here.
install -d "$root/sbin"
ln -sf "$prefix/bin/onggi" "$root/sbin/mount.fuse.onggi"
install -d "$root$prefix/share/man/man1"
"$onggi" man "$root$prefix/share/man/man1"
for shell in bash zsh fish; do
    case $shell in
        bash) file=$prefix/share/bash-completion/completions/onggi ;;
        zsh) file=$prefix/share/zsh/site-functions/_onggi ;;
        fish) file=$prefix/share/fish/vendor_completions.d/onggi.fish ;;
    esac
    install -d "$root$(dirname "$file")"
    "$onggi" completions "$shell" >"$root$file"
done
echo "installed under $root$prefix"
