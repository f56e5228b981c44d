#!/usr/bin/env bash
# setup_test.sh SETUP: where tools/setup puts the demo's text, and what it accepts there.
set -u
setup=$PWD/$1
unset XDG_CACHE_HOME
export HOME=$TEST_TMPDIR/home
mkdir -p "$HOME"
bad=0
complain() { echo "$@"; bad=1; }

text=$("$setup" --text-path) || complain "setup failed"
[[ $text == "$HOME/.cache/dtensor/kjv.txt" && -s $text ]] || complain "the text is in '$text'"
[[ $(stat -c %a "$(dirname "$text")") == 700 ]] || complain "others may look into $(dirname "$text")"
sum=$(sha256sum <"$text")

# Of the right size, and yet another text.
sed -i '1s/beginning/BEGINNING/' "$text"
[[ $(sha256sum <"$text") != "$sum" ]] || complain "the text was not changed"
"$setup" --quiet 2>/dev/null || complain "setup failed on a text that is wrong"
[[ $(sha256sum <"$text") == "$sum" ]] || complain "a text of the right size was taken for the right one"

# A folder that others can write is ours alone afterwards.
chmod 777 "$(dirname "$text")"
rm "$text"
"$setup" --quiet 2>/dev/null || complain "setup failed on an open folder"
[[ $(stat -c %a "$(dirname "$text")") == 755 ]] || complain "others may still write into $(dirname "$text")"

# Without HOME it is the home folder of the user, never /tmp.
mkdir "$TEST_TMPDIR/bin"
printf '#!/bin/sh\necho "u:x:0:0::%s:/bin/sh"\n' "$HOME" >"$TEST_TMPDIR/bin/getent"
chmod +x "$TEST_TMPDIR/bin/getent"
for home in "" unset; do
  path=$(if [[ $home == unset ]]; then unset HOME; else HOME=""; fi; PATH=$TEST_TMPDIR/bin:$PATH "$setup" --text-path)
  [[ $path == "$text" ]] || complain "without HOME the text is in '$path'"
done
exit $bad
