#!/usr/bin/env bash
# The program of docs/tracing.md prints the tables that it says, but for the times. PROGRAM DOC
set -uo pipefail
# Times as T, and columns as they come.
plain() { sed -E 's/[0-9]+(\.[0-9]+)? (us|ms|s)\b/T/g; s/ +/ /g'; }
diff <("$1" | plain) <(sed -n '/^```text$/,/^```$/{/^```/d;p}' "$2" | plain)
