#!/usr/bin/env bash
# Installs the system packages that the given purpose needs and lacks: run, test or bench.
set -euo pipefail

declare -A package=(
    [e2fsck]=e2fsprogs [mke2fs]=e2fsprogs [debugfs]=e2fsprogs [fusermount3]=fuse3 [cc]=gcc [git]=git
    [fio]=fio [sqlite3]=sqlite3 [rsync]=rsync [setfattr]=attr [setfacl]=acl [fuse2fs]=fuse2fs
    [python3]=python3
)
case "${1:?run, test or bench}" in
    run) tools="cc e2fsck fusermount3" ;;
    test) tools="cc mke2fs e2fsck debugfs fusermount3 git fio sqlite3 rsync setfattr setfacl" ;;
    bench) tools="cc mke2fs e2fsck fusermount3 fio fuse2fs python3" ;;
    *) echo "setup: unknown purpose $1" >&2; exit 64 ;;
esac

PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin
missing=()
for tool in $tools; do
    command -v "$tool" >/dev/null || missing+=("${package[$tool]}")
done
if ((${#missing[@]})); then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    sudo=
    [[ $EUID -eq 0 ]] || sudo="sudo -n"
    if command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }; then
        echo "setup: installing ${missing[*]}"
        $sudo apt-get update -qq
        DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "setup: please install: ${missing[*]} (going on without; what needs them is skipped and says so)" >&2
    fi
fi
if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing: install Rust 1.95 or newer from https://rustup.rs" >&2
    exit 69
fi
