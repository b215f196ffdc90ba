#!/usr/bin/env bash
# Runs every test and closes with one line that counts them, those skipped for lack of something included.
# A test that skips itself prints "skipped: why". Arguments go to cargo test.
set -uo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

log=$(mktemp)
trap 'rm -f "$log"' EXIT
start=$SECONDS
cargo test --workspace --locked --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" |
    grep --line-buffered -E '^(test .*(FAILED|ignored)|error|warning: unused|     Running|   Doc-tests|test result|failures:|---- )|panicked|skipped:|replay with|states recovered'
status=${PIPESTATUS[0]}

read -r passed failed ignored < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p+0, f+0, i+0 }' "$log")
skips=$(grep -c 'skipped:' "$log")
if ((failed || status)); then
    sed -n '/^failures:$/,/^test result/p' "$log" | head -400
fi
((skips)) && { echo "Skipped for lack of something on this machine:"; grep -o 'skipped:.*' "$log" | sort | uniq -c; }
echo "all tests took $((SECONDS - start)) s"
echo "$passed passed, $failed failed, $((ignored + skips)) skipped"
exit "$status"
