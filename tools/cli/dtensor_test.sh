#!/usr/bin/env bash
# The program as a user meets it: exit statuses, JSON keys, and refusals in one line.
set -u
dtensor=$1 models=$2 dtrun=$3
bad=0

complain() {
  echo "$@"
  bad=1
}

# refuses WORDS ARG...: status 2, nothing on stdout, one line on stderr that has WORDS.
refuses() {
  local words=$1 out status
  shift
  out=$("$dtensor" "$@" 2>"$TEST_TMPDIR/err")
  status=$?
  if ((status != 2)) || [[ -n $out || $(<"$TEST_TMPDIR/err") != *"$words"* ]] ||
    [[ $(wc -l <"$TEST_TMPDIR/err") != 1 ]]; then
    complain "expected status 2 and one line with '$words' from: $*
got status $status, '$out' and: $(<"$TEST_TMPDIR/err")"
  fi
}

# refuses_json FLAG WORDS ARG...: status 2, one JSON object on stdout with the flag and WORDS, and the
# same message on stderr.
refuses_json() {
  local flag=$1 words=$2 out status
  shift 2
  out=$("$dtensor" "$@" --json 2>"$TEST_TMPDIR/err")
  status=$?
  if ((status != 2)) || [[ $out != '{"error":{"code":"'*'"}}' || $out != *"\"flag\":\"$flag\""* ||
    $out != *"$words"* || $(<"$TEST_TMPDIR/err") != *"$words"* ]]; then
    complain "expected status 2 and JSON with '$flag' and '$words' from: $* --json
got status $status, '$out' and: $(<"$TEST_TMPDIR/err")"
  fi
}

# has "KEY..." ARG...: status 0, and JSON with these keys.
has() {
  local keys=$1 out key
  shift
  out=$("$dtensor" "$@" --json) || complain "status $? from: $*"
  for key in $keys; do
    grep -q "\"$key\":" <<<"$out" || complain "no $key from: $*"
  done
}

# prints WORDS ARG...: status 0, and WORDS somewhere on stdout.
prints() {
  local words=$1 out
  shift
  out=$("$dtensor" "$@") || complain "status $? from: $*"
  [[ $out == *"$words"* ]] || complain "no '$words' from: $*, but: $out"
}

move=(--mesh dp=2,tp=2 --shape 8,6 --from "P(sum),S(0)" --to "S(0),S(0)")
small=(--mesh a=2 --shape 4)
ring=(ring --mesh cp=4 --batch 1 --heads 8 --kv-heads 2 --seq 256 --head-dim 64 --dtype bf16)

explain=(explain --model "$models/llama_7b.json" --batch 8 --seq 4096 --dtype bf16)

has "total_bytes max_bytes_per_rank bound_total_bytes bound_max_bytes_per_rank peak_bytes_per_rank \
  rounds kind axes bytes digest" plan "${move[@]}"
has "ok counted_total_bytes counted_max_bytes_per_rank seconds stream_limit_ratio" \
  redistribute "${move[@]}"
has "ranks coordinate region runs elements" regions --mesh a=2 --shape 4,4 --layout "[a] []"
has "latency_us gb_per_second" links
has "steps work bytes_sent links forward_bytes_per_rank backward_bytes_per_rank balance \
  peak_bytes_per_rank" "${ring[@]}" --pattern zigzag --mask causal
prints '"ok": true' redistribute "${move[@]}" --dtype bf16 --objective busiest --rounds 2 --json
prints "0 0 1 1" regions "${small[@]}" --layout "S(0)" --picture
prints "all-gather" plan --mesh '["a"=2]' --shape 4,4 --from "[] [a]" --to "R"
prints "exchange(across)" plan --from-mesh a=2 --to-mesh b=4@2..5 --shape 8 --from "S(0)" --to R
prints "every element is right" redistribute --from-mesh a=2 --to-mesh b=2@2..3 --shape 8,8 \
  --from "S(0)" --to "S(1)"
prints "[] f32" plan --mesh a=2 --shape "" --from "P(sum)" --to R
prints "[] f32" plan --mesh a=2 --shape scalar --from R --to R
prints "100000 ranks" plan --mesh dp=100,tp=1000 --shape 4096,4096 --from "P(sum),S(0)" \
  --to "S(0),S(1)"
prints "balance    100.0%" "${ring[@]}" --pattern zigzag --mask causal
prints "balance    100.0%" ring --mesh node=2,cp=3 --pattern double_ring --seq 240 --mask causal
prints "kv 3  partial" "${ring[@]}" --pattern striped --mask window:5
prints "verdict    all within the limits" "${ring[@]}" --pattern zigzag --mask causal --run
has "ok tensors error error_on_one_rank ratio limit counted_bytes planned_bytes" "${ring[@]}" --run
has "memory parameters gradients optimizer activations peak peak_module memory_otherwise forward \
  backward update exposed_seconds traffic modules saved_bytes rests used simulated_ranks" \
  "${explain[@]}" --mesh dp=2,tp=4
prints "model.layers.0..31.mlp.down_proj x32" "${explain[@]}" --mesh tp=8
prints 'recomputing "model.layers.*"' "${explain[@]}" --mesh tp=8 --recompute 'model.layers.*'
prints "16384 ranks" explain --model "$models/llama_405b.json" --mesh dp=2048,tp=8 --plan fsdp+tp+sp \
  --batch 2048 --seq 8192 --dtype bf16
prints "memory.optimizer" "${explain[@]}" --mesh dp=8 --plan dp --compare zero1
prints "rounds" plan "${move[@]}" --max-extra-bytes 1.5kB
prints "[dp] [] -> [] []" plan --mesh dp=2 --shape 8,6 --from "(Shard(dim=0),)" --to "[Replicate()]"
prints "Usage" --help
prints "Usage" help
[[ $("$dtensor" help ring) == "$("$dtensor" ring --help)" ]] || complain "help ring must be ring --help"
refuses "did you mean ring?" help rnig
prints "--objective" plan --help

"$dtensor" links >"$TEST_TMPDIR/links" || complain "links failed"
prints "total" plan "${move[@]}" --links "$TEST_TMPDIR/links"
echo "link a 12" >"$TEST_TMPDIR/bad_links"

refuses "there is no command \"shwo\"; did you mean show?; take show, verify or export" checkpoint shwo x
refuses "no command is given; take show, verify or export" checkpoint
refuses "there is no flag --jsn" checkpoint --jsn
out=$("$dtensor" checkpoint show /nonexistent --json 2>/dev/null)
[[ $out == '{"error":'*'"command":"dtensor checkpoint show"'* ]] || complain "no JSON of a checkpoint that is not there: $out"
refuses "take plan, redistribute, regions, links, ring, explain, model, checkpoint, completion or help"
refuses 'there is no command "pan"' pan --mesh a=2
refuses "--mesh is required" plan --shape 4 --from R --to R
refuses "--to is required" redistribute "${small[@]}" --from R
refuses "--colour" plan "${move[@]}" --colour=red
refuses "dtensor regions --help" regions "${small[@]}" --layout R --from R
refuses '--max-extra-bytes: "many" is no number of bytes; write' plan "${move[@]}" --max-extra-bytes many
refuses '--rounds: "1e3" is no whole number' redistribute "${move[@]}" --rounds 1e3
refuses '--rounds: "99999999999999999999" is no whole number from -2^63' redistribute "${move[@]}" --rounds 99999999999999999999
refuses '--heads: "0x8" is no whole number' "${ring[@]}" --heads=0x8
refuses "did you mean --shape?" plan --mesh a=2 --shap 4 --from R --to R
refuses "did you mean --kv-heads?" ring --mesh cp=2 --seq 64 --kvheads 2
refuses 'did you mean plan?' plam "${move[@]}"
refuses '"tp=8" belongs to no flag; lists have commas and no spaces' plan --mesh dp=4 tp=8 --shape 4 --from R --to R
refuses "--to: a value is missing" plan "${small[@]}" --from R --to
refuses "--to: it is given more than once" plan "${small[@]}" --from R --to R --to R
refuses "--links: " plan "${move[@]}" --links /dev/zero
refuses "--links: " plan "${move[@]}" --links "$TEST_TMPDIR"
refuses "--max-extra-bytes" plan "${move[@]}" --max-extra-bytes 1
refuses "--mesh: " plan --mesh dp:2 --shape 4 --from R --to R
refuses "--to-mesh: " plan "${move[@]}" --to-mesh b:2
refuses "--shape: " plan --mesh a=2 --shape 4,-4 --from R --to R
refuses '--dtype: there is no "f33"; did you mean f32?; take f32, f64' plan "${move[@]}" --dtype f33
refuses '--max-extra-bytes: "1GiBs" has a unit that is none; write' plan "${move[@]}" --max-extra-bytes 1GiBs
refuses '--max-extra-bytes: "-1" is negative' plan "${move[@]}" --max-extra-bytes -1
refuses "--from: " plan "${small[@]}" --from "S(0,spiral)" --to R
refuses "--to: " plan "${small[@]}" --from R --to "R,R"
refuses "no dimension 1" plan "${small[@]}" --from R --to "S(1)"
refuses '--objective: there is no "ltency"; did you mean latency?' plan "${move[@]}" --objective ltency
refuses 'did you mean tp?' plan --mesh dp=2,tp=2 --shape 8,6 --from "[tpp] []" --to R,R
refuses "--links: " plan "${move[@]}" --links /nowhere
refuses "line 1" plan "${move[@]}" --links "$TEST_TMPDIR/bad_links"
refuses "cannot become P(max)" plan "${small[@]}" --from "P(sum)" --to "P(max)"
refuses "64 or fewer" redistribute --mesh a=65 --shape 4 --from R --to R
refuses "are free" redistribute --mesh a=2 --shape 1000000000000 --from "S(0)" --to R
refuses "--rounds" redistribute "${move[@]}" --rounds 0
refuses "--layout: " regions "${small[@]}" --layout $'R\nR'
refuses_json --picture "give one of them" regions "${small[@]}" --layout R --picture
refuses "--svg: the file has no name" regions "${small[@]}" --layout R --svg ""
refuses "--svg: cannot write" regions "${small[@]}" --layout R --svg /nowhere/a.svg
refuses "take 2 to 64" links --ranks 1
refuses "--seq is required" ring --mesh cp=2
refuses "--mesh: " ring --mesh cp:2 --seq 64
refuses "cp" ring --mesh cp=2,cp=2 --pattern double_ring --seq 64
refuses "two axes, outer and inner" "${ring[@]}" --pattern double_ring
refuses "one axis, as in cp=8" ring --mesh a=2,b=2 --pattern zigzag --seq 64
refuses "--pattern: " "${ring[@]}" --pattern spiral
refuses "take a divisor of --heads" ring --mesh cp=2 --heads 8 --kv-heads 3 --seq 64
refuses "--kv-heads" ring --mesh cp=2 --kv-heads -1 --seq 64
refuses "--mask: mask prefix:257" "${ring[@]}" --mask prefix:257
refuses "--mask: " "${ring[@]}" --mask window
refuses "did you mean causal?" "${ring[@]}" --mask causl
refuses "did you mean window?" "${ring[@]}" --mask windw:8
refuses "take f32, f64, bf16 or f16" ring --mesh cp=2 --seq 64 --dtype i32
refuses "--in: files are" "${ring[@]}" --in results
refuses "--out: files are" "${ring[@]}" --out results
refuses "--in: there is no file" "${ring[@]}" --run --in /nowhere/tensors
refuses "--out: cannot write" "${ring[@]}" --run --out /nowhere/results
refuses "64 or fewer" ring --mesh cp=65 --seq 65 --run

refuses "--model is required" explain --mesh tp=2 --batch 1 --seq 8
refuses "--seq is required" explain --model "$models/llama_7b.json" --mesh tp=2 --batch 1
refuses "--model: " explain --model /nowhere/config.json --mesh tp=2 --batch 1 --seq 8
refuses "--model: $TEST_TMPDIR/bad_links: " explain --model "$TEST_TMPDIR/bad_links" --mesh tp=2 --batch 1 --seq 8
refuses "--mesh: " "${explain[@]}" --mesh tp:2
refuses "--plan: " "${explain[@]}" --mesh tp=2 --plan pt
refuses "--plan: " "${explain[@]}" --mesh tp=2 --plan /nowhere/plan
refuses "--plan: " "${explain[@]}" --mesh tp=3 --plan tp
refuses "--mesh: " "${explain[@]}" --mesh tp=3
refuses "--links: " "${explain[@]}" --mesh tp=2 --links /nowhere
refuses '--optimizer: there is no "lamb"; take adamw, muon, sgd or none' "${explain[@]}" --mesh tp=2 --optimizer lamb
refuses "--lora-rank: Value 0 not in range 1 to 1048576" "${explain[@]}" --mesh tp=2 --lora-rank 0
refuses "--lora-layers requires --lora-rank" "${explain[@]}" --mesh tp=2 --lora-layers q_proj
refuses "there is no linear layer 'qproj'; there are" "${explain[@]}" --mesh tp=2 --lora-rank 2 --lora-layers qproj
refuses '--cp-pattern: there is no "zigzg"; did you mean zigzag?' "${explain[@]}" --mesh cp=2 --cp-pattern zigzg
refuses '--recompute "layers": matches no module' "${explain[@]}" --mesh tp=2 --recompute layers
refuses "leave --compare out" "${explain[@]}" --mesh tp=2 --svg a.svg --compare tp

gpt2=(explain --model "$models/gpt2.json" --mesh dp=2,tp=2 --batch 8)
prints "plan       dp+tp+sp" "${gpt2[@]}" --seq 512
refuses "--model: transformer.wpe: " "${gpt2[@]}" --seq 2048
echo '{"model_type": "bert", "num_hidden_layers": 2}' >"$TEST_TMPDIR/bert.json"
prints "encoder.layer.0..1.attention.self.query" explain --model "$TEST_TMPDIR/bert.json" --mesh tp=2 --batch 1 --seq 8

model=(model --config "$models/llama_7b.json" --dtype bf16)
has "memory received_bytes modules path parameters shape dtype rests used edges in out batch seq" \
  "${model[@]}" --mesh dp=2,tp=4
prints "model.layers.0..31.mlp.down_proj x32: receives (tp)" "${model[@]}" --mesh tp=8
prints "weight [4096, 11008] bf16 as R,S(1), 21.5 MiB" "${model[@]}" --mesh dp=2,tp=4
prints "16384 ranks" model --config "$models/llama_405b.json" --mesh dp=2048,tp=8 --plan fsdp+tp+sp \
  --dtype bf16 --memory 80GiB
prints "batch 2, seq 1024" model --config "$models/gpt2.json" --mesh dp=2,tp=2
prints "embeddings.token_type_embeddings" model --config "$TEST_TMPDIR/bert.json" --mesh dp=2,tp=2
echo '{"", PrepareInput("dp", token_type_ids S(0))}' >"$TEST_TMPDIR/bert.plan"
prints "    in  token_type_ids S(0) on dp" model --config "$TEST_TMPDIR/bert.json" --mesh dp=2 --plan "$TEST_TMPDIR/bert.plan"
prints "batch 2, seq 1024" model --config <(cat "$models/gpt2.json") --mesh dp=2,tp=2
refuses "--config is required" model --mesh tp=2
refuses "--config: " model --config /nowhere/config.json --mesh tp=2
refuses "--mesh: " "${model[@]}" --mesh tp:2
refuses "did you mean tp?" "${model[@]}" --mesh tp=2 --plan ttp
refuses "dimension 0 of model.layers.0.self_attn.q_proj.weight, 4096 (32 units of 128), cannot be split evenly by \"tp\" of size 3; choose" \
  "${model[@]}" --mesh tp=3
refuses "--batch: 0 is out of range" "${model[@]}" --mesh tp=2 --batch 0
out=$("$dtensor" "${model[@]}" --mesh tp=8 --memory 8GiB)
(($? == 1)) && [[ $out == *"TOO LARGE  "*" of 8.00 GiB" ]] ||
  complain "a model that does not fit must end with status 1, and say so: $out"

cp "$models/gpt2.json" "$TEST_TMPDIR/"$'gpt\xff.json'
has "model" model --config "$TEST_TMPDIR/"$'gpt\xff.json' --mesh tp=2
refuses_json --mesh "the mesh" plan --mesh dp:2 --shape 4 --from R --to R
refuses_json --to "is required" plan "${small[@]}" --from R
refuses_json --from 'no dimension 1' plan "${small[@]}" --from "S(1)" --to R
[[ $("$dtensor" plan "${move[@]}" --links /nowhere --json 2>/dev/null) == '{"error":{"code":"NOT_FOUND","command":"dtensor plan","flag":"--links"'* ]] ||
  complain "a file that is missing is NOT_FOUND"
refuses_json --dtype 'did you mean f32?' plan "${move[@]}" --dtype f33
refuses_json --config "cannot read" model --config /nowhere/config.json --mesh tp=2

results=$TEST_TMPDIR/results.safetensors
prints "within the limits" "${ring[@]}" --run --out "$results"
for tensor in o lse dq dk dv; do
  head -c 1000 "$results" | grep -aq "\"$tensor\":" || complain "no $tensor in what --out wrote"
done
refuses "has no tensor 'q'; it has" ring --mesh cp=4 --run --in "$results"

# A safetensors file with q, k, v and do, of 8 positions and 4 elements: text taken as bf16, all
# close to 12. Scores are large and close together, so f32 loses what tells keys apart.
tensors() {
  local header="" name begin=0
  for name in q k v do; do
    header+=",\"$name\":{\"dtype\":\"BF16\",\"shape\":[1,1,8,4],\"data_offsets\":[$begin,$((begin + 64))]}"
    begin=$((begin + 64))
  done
  header="{${header#,}}"
  printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))"
  head -c 6 /dev/zero
  printf %s "$header"
  awk 'BEGIN { for (i = 0; i < 128; ++i) { x = (x * 75 + 74) % 65537; printf "%cA", 64 + x % 4 } }'
}
tensors >"$TEST_TMPDIR/tensors"
out=$("$dtensor" ring --mesh cp=2 --in "$TEST_TMPDIR/tensors" --dtype f32 --run)
(($? == 1)) || complain "errors beyond their limits must end with status 1: $out"
[[ $out == *"verdict    WRONG: the error of "* ]] || complain "no verdict that names what is wrong: $out"
prints "within the limits" ring --mesh cp=2 --in "$TEST_TMPDIR/tensors" --run

prints "dtensor 0." --version
prints '"head_dim": 8' ring --mesh cp=2 --seq 64 --heads 4 --kv_heads 2 --head_dim=8 --json  # underscores do as well
[[ $("$dtensor" ring --help) == *--kv-heads* ]] || complain "--help must spell flags with hyphens"

# What a buffer holds fails at its end, and what is longer before.
cannot_print() {
  "$dtensor" "$@" >/dev/full 2>"$TEST_TMPDIR/err"
  (($? == 1)) && [[ $(<"$TEST_TMPDIR/err") == *"cannot write to stdout"* ]] ||
    complain "output that cannot be written must end with status 1, and say so: $*"
}
cannot_print plan "${move[@]}"
cannot_print regions --mesh a=1000 --shape 1000 --layout "S(0)"
cannot_print --help
cannot_print plan --help
cannot_print --version

# A file is replaced as a whole: one that cannot be written in full stays.
echo old >"$TEST_TMPDIR/picture.svg"
chmod 640 "$TEST_TMPDIR/picture.svg"
(ulimit -f 1; "$dtensor" regions --mesh a=8 --shape 64,64 --layout "S(0)" --svg "$TEST_TMPDIR/picture.svg") >/dev/null 2>&1
(($? == 0)) && complain "a picture that cannot be written must not end with status 0"
[[ $(<"$TEST_TMPDIR/picture.svg") == old ]] || complain "a picture that could not be written replaced the old one"
"$dtensor" regions "${small[@]}" --layout "S(0)" --svg "$TEST_TMPDIR/picture.svg" >/dev/null ||
  complain "a picture must be written"
[[ $(<"$TEST_TMPDIR/picture.svg") == *"</svg>"* && $(stat -c %a "$TEST_TMPDIR/picture.svg") == 640 ]] ||
  complain "a picture that is replaced must keep its permissions"
"$dtensor" "${ring[@]}" --run --out /dev/full >/dev/null 2>"$TEST_TMPDIR/err"
(($? == 1)) && [[ $(<"$TEST_TMPDIR/err") == *"--out: cannot write '/dev/full'"* ]] ||
  complain "results that cannot be written must end with status 1: $(<"$TEST_TMPDIR/err")"

# on N STATUS WORDS ARG...: N processes end with the status; the first one prints, WORDS among it.
on() {
  local processes=$1 wanted=$2 words=$3 out status
  shift 3
  out=$("$dtrun" -n "$processes" "$dtensor" "$@" 2>&1)
  status=$?
  ((status == wanted)) && [[ $out == *"$words"* ]] && ! grep -qv '^\[0\] ' <<<"$out" ||
    complain "expected status $wanted and '$words' on $processes processes from: $*
got status $status and: $out"
}
on 4 0 "every element is right on every rank" redistribute "${move[@]}"

# Progress is asked for, or for a terminal.
"$dtensor" redistribute "${move[@]}" --rounds 2 >/dev/null 2>"$TEST_TMPDIR/err"
[[ ! -s $TEST_TMPDIR/err ]] || complain "no progress unasked: $(<"$TEST_TMPDIR/err")"
refuses "--progress: a schedule is made at once" "${ring[@]}" --progress
prints '"ok": true' "${ring[@]}" --run --progress --json
on 4 0 "every element is right on every rank" redistribute --from-mesh a=2 --to-mesh a=2@2..3 --shape 7,5 --from "S(0)" --to R
on 2 0 "# measured between 2 ranks, processes" links
on 2 0 "rounds " plan "${move[@]}"
on 2 2 "2 processes were started; start 4" redistribute "${move[@]}"
on 2 2 "--ranks: 3, and 2 processes were started" links --ranks 3
on 3 2 "there is no flag --colour" redistribute --colour red
on 2 0 '"kv_heads": 2' ring --mesh cp=2 --seq 64 --heads 4 --kv_heads 2 --json
[[ $("$dtrun" --ranks=2 --grce 5 true 2>&1) == "dtrun: there is no flag --grce; did you mean --grace?"* ]] ||
  complain "dtrun must say what may be meant: $("$dtrun" --ranks=2 --grce 5 true 2>&1)"
[[ $("$dtrun" --ranks 1 echo --a_b 2>&1) == "[0] --a_b" ]] || complain "dtrun must pass flags on as they are"
exit $bad
