#!/usr/bin/env bash
# completion_test.sh PROGRAM: what bash and zsh complete, each with the script that it is given.
set -u
dtensor=$PWD/$1
bad=0
complain() {
  echo "$@"
  bad=1
}
cd "$TEST_TMPDIR" || exit 1
touch results.safetensors

# cases FUNCTION: FUNCTION WANTED WORD..., where the cursor is behind the last word.
cases() {
  "$1" "redistribute regions" re
  "$1" "plan" pl
  "$1" "--version" --v
  "$1" "" nothing
  "$1" "--shape" plan --sh
  "$1" "--max-extra-bytes" plan --mesh dp=2 --max
  "$1" "--kv-heads" ring --kv
  "$1" "--config --cp-pattern" model --mesh tp=2 --c
  "$1" "latency" plan --objective l
  "$1" "adamw muon sgd none" explain --optimizer ""
  "$1" "zigzag" model --cp-pattern z
  "$1" "ulysses+zigzag" explain --cp-pattern ulysses+z
  "$1" "results.safetensors" ring --run --in res
  "$1" "" plan --mesh ""
  "$1" "--help bash zsh" completion ""
}

"$dtensor" completion bash >bash_script || complain "there is no script for bash"
source ./bash_script || complain "bash cannot read its script"
[[ $(complete -p dtensor) == "complete -F _dtensor dtensor" ]] || complain "nothing completes dtensor"
in_bash() {
  local wanted=$1
  shift
  COMP_WORDS=(dtensor "$@") COMP_CWORD=$# COMPREPLY=()
  _dtensor
  [[ ${COMPREPLY[*]-} == "$wanted" ]] ||
    complain "bash completes '$*' to '${COMPREPLY[*]-}', not '$wanted'"
}
cases in_bash
# There --flag=value is three words.
in_bash "latency" plan --objective = l
in_bash "total busiest latency" plan --objective =
in_bash "results.safetensors" ring --in = res

if command -v zsh >/dev/null; then
  "$dtensor" completion zsh >zsh_script || complain "there is no script for zsh"
  [[ $(head -1 zsh_script) == "#compdef dtensor" ]] || complain "zsh does not know what it is for"
  # Completion answers to the line editor alone; here its commands print what they are told.
  cat >run_zsh <<'END'
compdef() {}
compset() { cur=${cur#*=} }
compadd() { shift; for word in "$@"; do [[ $word == "$cur"* ]] && print -r -- $word; done }
_files() { print -rl -- $cur*(N) }
source ./zsh_script
words=(dtensor "$@") CURRENT=$(($# + 1))
_dtensor
END
  in_zsh() {
    local wanted=$1 answer
    shift
    answer=$(zsh -f run_zsh "$@" 2>&1 | paste -sd' ')
    [[ $answer == "$wanted" ]] || complain "zsh completes '$*' to '$answer', not '$wanted'"
  }
  cases in_zsh
  in_zsh "latency" plan --objective=l
  in_zsh "results.safetensors" ring --in=res
else
  echo "skipped: there is no zsh (apt-get install zsh); its script was not tried"
  cat >"${XML_OUTPUT_FILE:-/dev/null}" <<'END'
<testsuites><testsuite name="completion"><testcase name="bash" status="run" result="completed"/>
<testcase name="zsh" status="notrun" result="skipped"/></testsuite></testsuites>
END
fi
exit $bad
