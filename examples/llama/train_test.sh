#!/usr/bin/env bash
# The program as a user meets it: what it refuses, in one line with status 2, and what its report holds.
set -u
train=$1
text=$TEST_TMPDIR/text
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >"$text"
: >"$TEST_TMPDIR/empty"
small=(--dim=32 --layers=1 --seq=16 --batch=2 --steps=3 --text="$text")
bad=0

# refuses WORDS ARG...: status 2, one line that has WORDS.
refuses() {
  local words=$1 out status
  shift
  out=$("$train" "$@" 2>&1 >/dev/null)
  status=$?
  if ((status != 2)) || [[ $out != *"$words"* ]] || [[ $(wc -l <<<"$out") != 1 ]]; then
    echo "expected status 2 and one line with '$words' from: $*"
    echo "got status $status: $out"
    bad=1
  fi
}

refuses "the axes are dp, ep, cp, pp and tp" "${small[@]}" --mesh=xp=2
refuses "the model has none" "${small[@]}" --mesh=ep=2
refuses "the model has 1 blocks" "${small[@]}" --mesh=pp=2
refuses "--micro-batches: 3 do not divide" --seq=16 --text="$text" --batch=8 --micro-batches=3
refuses '--schedule: there is no "gpipe"; take 1f1b or zero_bubble' --text="$text" --schedule=gpipe
refuses '--schedule: ["dp"=2] has no axis pp; add one to --mesh' "${small[@]}" --mesh=dp=2 --schedule=zero_bubble
refuses "2 sequences of each of --micro-batches" --seq=16 --text="$text" --batch=8 --micro-batches=4 --mesh=dp=4
refuses "take zigzag, ring" "${small[@]}" --mesh=cp=2 --cp-pattern=spiral
refuses "did you mean zigzag?" "${small[@]}" --mesh=cp=2 --cp-pattern=zigzg
refuses "a group of two axes" "${small[@]}" --mesh=cp=2 --cp-pattern=double_ring
refuses "a multiple of 6" "${small[@]}" --mesh=cp=3
refuses "tp" "${small[@]}" --mesh=tp=2,tp=2
refuses "tp" "${small[@]}" --mesh=tp=0
refuses '--plan: preset "fspdd+tp": there is no "fspdd"; did you mean fsdp?' "${small[@]}" --plan=fspdd+tp
refuses "zero1, zero2, fsdp, hsdp, ep, cp, pp, tp, sp, none" "${small[@]}" --plan=best
refuses "--plan: preset \"tp\": tp wants an axis tp" "${small[@]}" --mesh=dp=2 --plan=tp
refuses '--mesh: preset "tp+sp": 4 key/value heads cannot be split over the 8 ranks of "tp"' "${small[@]}" --mesh=tp=8
refuses "nowhere.plan" "${small[@]}" --plan=nowhere.plan
printf '{"model.layers.*", FullyShard("dp")}\n\n{"", FullyShard("dp", x)}\n' >"$TEST_TMPDIR/bad.plan"
refuses "--plan: $TEST_TMPDIR/bad.plan: plan line 3, " "${small[@]}" --plan="$TEST_TMPDIR/bad.plan"
refuses "cannot be read from column 23 on" "${small[@]}" --plan="$TEST_TMPDIR/bad.plan"
echo '{"model.layer.*", FullyShard("dp")}' >"$TEST_TMPDIR/none.plan"
refuses 'matches no module; the nearest is "model.layers' "${small[@]}" --plan="$TEST_TMPDIR/none.plan"
refuses "--cp-pattern: it is of presets" "${small[@]}" --mesh=cp=2 --plan="$TEST_TMPDIR/none.plan" --cp-pattern=ring
refuses 'recompute "layers": matches no module' "${small[@]}" --recompute=layers
refuses "allow uneven" "${small[@]}" --mesh=tp=3
refuses "tools/setup" --seq=16 --text=/nowhere/text
refuses "is empty" --seq=16 --text="$TEST_TMPDIR/empty"
refuses "--seq" --seq=1000000 --text="$text"
refuses "--help\` lists the flags" "${small[@]}" --colour=red
refuses "did you mean --text?" "${small[@]}" --txt=x
refuses '--lr: "abc" is no finite number' "${small[@]}" --lr=abc
refuses '--lr: "nan" is no finite number' "${small[@]}" --lr=nan
refuses "--lr: -1" "${small[@]}" --lr=-1
refuses '--seed: "-1" is no whole number from 0' "${small[@]}" --seed=-1
refuses "--batch: -1" --seq=16 --text="$text" --batch=-1
refuses "--seq: -5" --text="$text" --seq=-5
refuses "MiB are free" --seq=16 --text="$text" --batch=1000000000
refuses '--batch: "99999999999999999999" is no whole number' --seq=16 --text="$text" --batch=99999999999999999999
refuses '--device: there is no "tpu"; did you mean cpu?' "${small[@]}" --device=tpu
refuses "is a folder" --seq=16 --text="$TEST_TMPDIR"
refuses "is a device" --seq=16 --text=/dev/zero
for length in 1 10 20 35 100; do
  head -c "$length" "$text" >"$TEST_TMPDIR/short"
  refuses "--seq: windows of" --seq=16 --text="$TEST_TMPDIR/short"
done
refuses "has no axis cp" "${small[@]}" --mesh=dp=2 --cp-pattern=ring
refuses "--mesh: the 3 ranks of dp do not divide the 2 sequences of --batch" "${small[@]}" --mesh=dp=3
refuses "(--mesh, --seq, --allow-uneven)" "${small[@]}" --mesh=cp=3
refuses '--mesh: ' "${small[@]}" --mesh='dp=2 tp=2'
refuses "--report: cannot write" "${small[@]}" --report=/nowhere/report.json
refuses "--report: cannot write" "${small[@]}" --report="$TEST_TMPDIR"
refuses "--dump: cannot write" "${small[@]}" --dump=/nowhere/dump
refuses "--dump: '$TEST_TMPDIR/x' is --report's file; name another one" "${small[@]}" --dump="$TEST_TMPDIR/x" --report="$TEST_TMPDIR/x"
refuses "name another one" "${small[@]}" --trace="$TEST_TMPDIR/../$(basename "$TEST_TMPDIR")/x" --report="$TEST_TMPDIR/x"
refuses "kv_heads must divide heads" "${small[@]}" --kv-heads=3
refuses "--balance: -1 is no factor" "${small[@]}" --balance=-1
refuses "--bias-rate: -1 is no rate" "${small[@]}" --bias-rate=-1
refuses "router_score is set, and there are no experts" "${small[@]}" --sigmoid-router
refuses "--steps" --steps=0 --text="$text"
refuses "f32" "${small[@]}" --dtype=f33

report=$TEST_TMPDIR/report.json
"$train" "${small[@]}" --mesh=dp=2,tp=2 --compare=3 --report="$report" --dump="$TEST_TMPDIR/dump.safetensors" ||
  { echo "the run failed"; bad=1; }
for key in mesh plan dtype steps losses grad_norms heldout_loss tokens_per_second collectives bytes predicted counted \
  peak_bytes_per_rank max_relative_loss_difference; do
  grep -q "\"$key\"" "$report" || { echo "the report lacks $key"; bad=1; }
done
head -c 20000 "$TEST_TMPDIR/dump.safetensors" | grep -aq 'grad.model.layers.0.self_attn.q_proj.weight' ||
  { echo "the dump lacks a gradient"; bad=1; }
"$train" "${small[@]}" --mesh=dp=2,cp=2,tp=2 --compare=3 --report="$report" >/dev/null || { echo "the run with cp failed"; bad=1; }
grep -q '"cp_pattern": "zigzag"' "$report" || { echo "the report lacks cp_pattern"; bad=1; }
"$train" "${small[@]}" '--mesh=a=2,b=2;cp=a*b' --cp-pattern=double_ring >/dev/null || { echo "the double ring failed"; bad=1; }
"$train" "${small[@]}" --mesh=dp=2,tp=2 --dtype=bf16 --compare=3 >/dev/null || { echo "the bf16 run failed"; bad=1; }

# same ARG...: three steps give the losses of one rank.
same() {
  "$train" --dim=32 --layers=2 --seq=16 --batch=4 --steps=3 --text="$text" --compare=3 --report="$report" "$@" >/dev/null 2>&1 ||
    { echo "failed: $*"; bad=1; }
  difference=$(sed -n 's/.*"max_relative_loss_difference": \([^,]*\).*/\1/p' "$report")
  awk -v d="$difference" 'BEGIN { exit !(d != "" && d + 0 <= 1e-5) }' || { echo "differs by '$difference': $*"; bad=1; }
}
for data in "" dp+ zero1+ zero2+ fsdp+ hsdp+; do
  for tensor in none tp tp+sp; do
    same --mesh='a=2,b=2,tp=2;dp=a*b' --plan="$data$tensor"
  done
  same --mesh='a=2,b=2,cp=2,tp=2;dp=a*b' --plan="${data}cp+tp+sp"
done
same --mesh=cp=2 --plan=cp --cp-pattern=ring
same --mesh=pp=2 --micro-batches=4
same --mesh=pp=2,tp=2 --micro-batches=4 --schedule=zero_bubble
same --mesh=dp=2,pp=2,tp=2 --plan=fsdp+pp+tp+sp --micro-batches=2 --recompute='model.layers.*'
same --mesh=dp=2 --micro-batches=2
same --mesh=ep=2,tp=2 --experts=4
same --mesh=ep=2 --experts=4 --balance=0
same --mesh=ep=2,pp=2 --experts=4 --balance=1 --micro-batches=2 --recompute='model.layers.*'
same --mesh=ep=2,pp=2 --experts=4 --sigmoid-router --bias-rate=0.1 --micro-batches=2
same --mesh=dp=2,tp=2 --plan=fsdp+tp+sp --experts=4 --sigmoid-router --balance=0 --micro-batches=2
same --mesh=cp=2,tp=2 --plan=cp+tp
same --mesh=dp=2,tp=2 --plan=fsdp+tp+sp --recompute='model.layers.*'
same --mesh=dp=2,tp=2 --recompute='model.layers.*.self_attn' --recompute='model.layers.*.mlp'
same --mesh=dp=2,tp=2 --plan=fsdp+tp+sp --keep-gathered --recompute='model.layers.*' --recompute-keeps-collectives
cat >"$TEST_TMPDIR/own.plan" <<'END'
{"model.layers.*.self_attn.{q,k,v}_proj", Colwise("inner")}
{"model.layers.*.self_attn.o_proj", Rowwise("inner")}

{"model.layers.*", FullyShard("outer")}
{"", FullyShard("outer")}
END
same --mesh=outer=2,inner=2 --plan="$TEST_TMPDIR/own.plan"
same --mesh=outer=2,inner=2 --plan=<(cat "$TEST_TMPDIR/own.plan")

# ends WORDS ARG...: status 1, and WORDS somewhere on stderr.
ends() {
  local words=$1 status
  shift
  "$train" "${small[@]}" "$@" >"${out:-/dev/null}" 2>"$TEST_TMPDIR/err"
  status=$?
  (($status == 1)) && [[ $(<"$TEST_TMPDIR/err") == *"$words"* ]] ||
    { echo "expected status 1 and '$words', got status $status and: $(tail -n 3 "$TEST_TMPDIR/err")"; bad=1; }
}

# What fails after the training does not take the rest with it.
out=/dev/full ends "cannot write to stdout" --report="$report"
ends "--report: cannot write '/dev/full'" --report=/dev/full
ends "training diverged: after " --lr=1e38 --report="$report"
grep -q 'null' "$report" || { echo "a loss that is no number is null in the report"; bad=1; }
[[ $("$train" --version) == "train "* ]] || { echo "no version"; bad=1; }
"$train" "${small[@]}" --mesh=cp=2 --cp_pattern=striped --kv_heads=8 >/dev/null ||
  { echo "underscores in flags must do as well"; bad=1; }
"$train" --seq=16 --batch=2 --dim=32 --steps=1 --text=<(cat "$text") >/dev/null || { echo "a text from a pipe must do"; bad=1; }
exit $bad
