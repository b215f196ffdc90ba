#!/usr/bin/env bash
# Onggi, Linux ext4 over a loop device and fuse2fs side by side. Argument: the onggi binary.
set -euo pipefail
[[ $EUID -eq 0 ]] || { echo "bench: needs root, for loop mounts and cold caches" >&2; exit 77; }
exec python3 "$(dirname "$0")/bench.py" "$@"
