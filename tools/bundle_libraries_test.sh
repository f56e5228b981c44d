#!/usr/bin/env bash
# bundle_libraries_test.sh BUNDLE_LIBRARIES PROGRAM: every library comes with its licence.
set -u
bundle=$1 program=$2 folder=$TEST_TMPDIR/bundle
bad=0
complain() { echo "$@"; bad=1; }

"$bundle" "$program" "$folder" || complain "status $?"
shopt -s nullglob
libraries=("$folder"/lib/*) licences=("$folder"/licences/*/copyright)
((${#libraries[@]} > 3)) || complain "only ${#libraries[@]} libraries"
((${#licences[@]} > 0)) || complain "no licences"
owners=$(dpkg-query -S "${libraries[@]/#*\///usr/lib/x86_64-linux-gnu/}" "${libraries[@]/#*\///lib/x86_64-linux-gnu/}" 2>/dev/null)
for library in "${libraries[@]}"; do
  name=${library##*/}
  package=$(grep -m 1 "/$name\$" <<<"$owners" | cut -d: -f1)
  [[ -s $folder/licences/$package/copyright ]] || complain "$name of $package has no licence"
done
[[ ! -e $folder/lib/libc.so.6 ]] || complain "the C library is the other machine's"
# Debian's files name some licences by a path that other machines lack.
for common in $(grep -ohE '/usr/share/common-licenses/[A-Za-z]+-[0-9.]*[0-9]' "${licences[@]}" | sort -u); do
  [[ -s $folder/licences/common/${common##*/} ]] || complain "$common is named, and not there"
done

mkdir "$TEST_TMPDIR/bin"
printf '#!/bin/sh\nexit 1\n' >"$TEST_TMPDIR/bin/dpkg-query"
chmod +x "$TEST_TMPDIR/bin/dpkg-query"
out=$(PATH=$TEST_TMPDIR/bin:$PATH "$bundle" "$program" "$TEST_TMPDIR/other" 2>&1) &&
  complain "a library without a licence was copied"
[[ $out == *"no licence, is known for"* ]] || complain "no reason: $out"
exit $bad
