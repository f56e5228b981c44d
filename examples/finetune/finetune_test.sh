#!/usr/bin/env bash
# finetune_test.sh FINETUNE WRITE_MODEL GENERATE DTENSOR DTRUN: a tiny model of a Hugging Face folder
# is trained, killed at random steps (DTENSOR_SEED), and resumed on the same mesh and on others: it
# has the losses of the run that was not killed, and the model that comes of it writes.
set -uo pipefail
finetune=$PWD/$1 write_model=$PWD/$2 generate=$PWD/$3 dtensor=$PWD/$4 dtrun=$PWD/$5
cd "$TEST_TMPDIR" || exit 1
RANDOM=${DTENSOR_SEED:-17}
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
for i in $(seq 1 2000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >text
"$write_model" base || fail "no model"
run=(--model=base --text=text --seq=16 --batch=4 --warmup=2 --lr=1e-3)
same=(--mesh=dp=2 --plan=fsdp)

losses() { tr -d ' \n' <"$1" | sed 's/.*"losses":\[\([^]]*\)\].*/\1/' | tr ',' '\n'; }
latest() { ls "$1" 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1; }

# killed COMMAND...: resumed, and killed with SIGKILL some 1 to 12 steps later.
killed() {
  local job until victim
  until=$(($(latest run || echo 0) + 1 + RANDOM % 12))
  "$@" "${run[@]}" "${same[@]}" --save=run --save-every=1 --resume --steps=1000000 >out 2>&1 &
  job=$! victim=$!
  for _ in $(seq 1 3000); do
    [[ $(latest run) -ge $until ]] && break
    kill -0 "$job" 2>/dev/null || break
    sleep 0.01
  done
  [[ $1 == "$dtrun" ]] && victim=$(pgrep -P "$job" | sed -n "$((1 + RANDOM % 2))p")
  kill -KILL "${victim:-$job}" || fail "it ended by itself: $(tail -n 3 out)"
  wait "$job" 2>/dev/null
  [[ $(latest run) -ge $until ]] || fail "killed at $(latest run), before $until: $(tail -n 3 out)"
}
killed "$finetune"
killed "$dtrun" -n 2 "$finetune"
begin=$(latest run) steps=$(($(latest run) + 5))

# The run that nobody kills.
"$finetune" "${run[@]}" "${same[@]}" --steps="$steps" --report=whole.json --out=whole >out 2>&1 || fail "whole: $(cat out)"
losses whole.json | tail -n 5 >whole.losses
[[ $(losses whole.json | grep -c .) == "$steps" ]] || fail "$steps losses, got $(losses whole.json)"
losses whole.json | awk 'NR == 1 { first = $1 } END { exit !($1 < first - 0.5) }' || fail "it does not learn: $(losses whole.json)"

# resumes_like TOLERANCE COMMAND...: as the whole run, from where it was killed.
resumes_like() {
  local tolerance=$1
  shift
  rm -rf resumed resumed.json
  cp -r run resumed
  "$@" "${run[@]}" --save=resumed --save-every=1000000 --resume --steps="$steps" --report=resumed.json --out=out.model \
    >out 2>&1 || { fail "$*: $(tail -n 2 out)"; return; }
  grep -q "\"first_step\": $begin," resumed.json || fail "$*: does not begin at $begin"
  losses resumed.json | paste whole.losses - |
    awk -v t="$tolerance" 'NF != 2 || ($1 != $2 && ($1 - $2) ^ 2 > (t * $1) ^ 2) { bad = 1 } END { exit bad || NR != 5 }' ||
    fail "$* resumed: $(losses resumed.json | paste whole.losses -)"
}
for command in "$finetune" "$dtrun -n 2 $finetune"; do
  resumes_like 0 $command "${same[@]}"
  cmp out.model/model.safetensors whole/model.safetensors || fail "$command: other weights"
done
resumes_like 1e-5 "$finetune" --mesh=tp=1
resumes_like 1e-5 "$finetune" --mesh=tp=4                             # 2 heads of keys, each on two ranks
resumes_like 1e-5 "$finetune" --mesh=dp=3 --plan=zero2 --allow-uneven # 4 sequences
resumes_like 1e-5 "$dtrun" -n 4 "$finetune" --mesh=dp=2,tp=2 --plan=fsdp+tp+sp --recompute='model.layers.*'

# What was saved is a model of Hugging Face's, by either way.
cmp whole/tokenizer.json base/tokenizer.json || fail "another tokenizer"
cmp -s whole/model.safetensors base/model.safetensors && fail "nothing was trained"
text() { "$generate" --model "$1" --prompt "in the" --tokens 12 --mesh "$2" 2>out; }
"$dtensor" checkpoint export run exported >/dev/null || fail "export: $?"
cp base/*.json exported
text whole tp=1 >one || fail "generate: $(cat out)"
text whole tp=2 | cmp - one || fail "another text on two ranks: $(cat one)"
grep -q '^in the' one || fail "no text: $(cat one)"
# Not into a grep -q, which leaves at the first line of several.
text exported tp=1 >one && grep -q '^in the' one || fail "no text of the export: $(cat out one)"

# All kinds that have such a tokenizer: trained by a named plan, and the result writes.
for type in mistral qwen2 qwen3; do
  "$write_model" "$type" "$type" || fail "no $type"
  "$finetune" --model="$type" --text=text --seq=16 --batch=4 --mesh=dp=2,tp=2 --plan=fsdp+tp+sp --steps=2 --out="$type.out" \
    >out 2>&1 || fail "$type: $(tail -n 2 out)"
  text "$type.out" tp=2 >one && grep -q '^in the' one || fail "no text of $type: $(cat out one)"
done

# Adapters: two runs, the second with those of the first, on other ranks; the models that come of them write.
lora=(--model=base --text=text --seq=16 --batch=4 --warmup=2 --lr=5e-2)
"$finetune" "${lora[@]}" --steps=12 --mesh=dp=2 --plan=fsdp --lora-rank=4 --lora-alpha=8 --lora-layers=q_proj,down_proj \
  --adapter-out=adapter --out=adapted --report=adapted.json >out 2>&1 || fail "adapters: $(cat out)"
"$finetune" "${lora[@]}" --steps=12 --mesh=tp=2 --adapter=adapter --adapter-out=adapter2 --out=adapted2 --report=adapted2.json >out 2>&1 ||
  fail "adapters once more: $(cat out)"
paste -d' ' <(losses adapted.json | sed -n '1p;$p' | paste -sd' ') <(losses adapted2.json | sed -n '1p;$p' | paste -sd' ') |
  awk '{ exit !($2 < $1 - 0.2 && $3 < $1 - 0.2 && $4 < $2) }' ||
  fail "adapters do not learn: $(losses adapted.json | paste -sd' '), $(losses adapted2.json | paste -sd' ')"
cmp -s adapter/adapter_model.safetensors adapter2/adapter_model.safetensors && fail "the same adapters"
for folder in adapter adapter2; do
  [[ $(ls "$folder" | paste -sd' ') == "adapter_config.json adapter_model.safetensors" ]] || fail "$folder: $(ls "$folder")"
done
for folder in adapted adapted2; do
  [[ $(ls "$folder" | paste -sd' ') == "config.json model.safetensors tokenizer.json" ]] || fail "$folder: $(ls "$folder")"
  text "$folder" tp=2 >one && grep -q '^in the' one || fail "no text of $folder: $(cat out one)"
done
# Resumed, an adapter goes on as if nothing had been.
"$finetune" "${lora[@]}" --mesh=tp=2 --lora-rank=2 --steps=3 --save=lora.run >out 2>&1 || fail "$(cat out)"
"$finetune" "${lora[@]}" --steps=6 --mesh=tp=2 --lora-rank=2 --save=lora.run --resume --adapter-out=resumed.adapter >out 2>&1 || fail "$(cat out)"
"$finetune" "${lora[@]}" --steps=6 --mesh=tp=2 --lora-rank=2 --adapter-out=whole.adapter >out 2>&1 || fail "$(cat out)"
"$dtensor" checkpoint export lora.run lora.exported >out 2>&1
[[ $(<out) == *"has an adapter"* ]] || fail "adapters are exported: $(cat out)"
cmp resumed.adapter/adapter_model.safetensors whole.adapter/adapter_model.safetensors || fail "a resumed adapter is another"

# refuses WORDS ARG...: status 2, and one line.
refuses() {
  local words=$1 status
  shift
  "$finetune" --text=text --batch=4 "$@" >/dev/null 2>out
  status=$?
  [[ $status == 2 && $(<out) == *"$words"* && $(wc -l <out) == 1 ]] ||
    fail "expected status 2 and '$words' of $*, got $status and $(cat out)"
}
refuses "--model: cannot read 'nowhere/config.json'" --seq=16 --model=nowhere
[[ $(<out) != *fetch_smollm2* ]] || fail "another folder is not what fetch_smollm2 makes: $(cat out)"
DTENSOR_SMOLLM2=unfetched refuses "'unfetched/config.json': No such file or directory; examples/generate/fetch_smollm2 makes this folder" --seq=16
DTENSOR_SMOLLM2=unfetched "$generate" >/dev/null 2>out
[[ $? == 2 && $(<out) == *"fetch_smollm2 makes this folder"* ]] || fail "generate: no remedy: $(cat out)"
refuses "has positions for 64" --model=base --seq=65
mkdir small other
cp base/* small && cp base/* other
sed -i 's/"vocab_size": 272/"vocab_size": 200/' small/config.json
sed -i 's/"intermediate_size": 48/"intermediate_size": 40/' other/config.json
refuses "and config.json has a vocab_size of 200" --seq=16 --model=small
refuses "mlp.gate_proj.weight is [48, 32], and the model's is [40, 32]" --seq=16 --model=other
refuses "--out: " --seq=16 --model=base --out=base/config.json/in
refuses "--adapter-out: there are no adapters" --seq=16 --model=base --adapter-out=none
refuses "cannot read 'nowhere/adapter_config.json'" --seq=16 --model=base --adapter=nowhere
refuses "there is no linear layer 'c_attn'; there are" --seq=16 --model=base --lora-rank=2 --lora-layers=c_attn
refuses "--lora-alpha: the run in 'lora.run' was begun with 2, not 5" --seq=16 --model=base --mesh=tp=2 --warmup=2 --save=lora.run \
  --resume --lora-rank=2 --lora-alpha=5
refuses "is --out, too" --seq=16 --model=base --lora-rank=2 --out=both --adapter-out=both
refuses "requires" --seq=16 --model=base --lora-alpha=2
refuses "requires" --seq=16 --model=base --adapter=adapter --lora-layers=q_proj
refuses "excludes" --seq=16 --model=base --adapter=adapter --lora-rank=2
refuses 'preset "tpp"' --seq=16 --model=base --plan=tpp
refuses "--seed: the run in 'run' was begun with 1, not 7" --seq=16 --model=base --save=run --resume --seed=7 "${same[@]}"
((failures == 0)) && echo "killed at $begin of $steps steps; all passed"
exit $((failures > 0))
