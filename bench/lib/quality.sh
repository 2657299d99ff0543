# How near trainings of another arithmetic come to plain ones; to be sourced from the top folder.
#
# One training of each says nothing: any other rounding makes it another draw of the same lottery, and after the 200
# iterations of the quick start, whose learning rate has then come down to 0, draws differ by up to a percent. So each
# arithmetic trains with several seeds, and the mean over these of its bits per byte against plain ones of the same seed is
# judged by its standard error: it is within a bound when two of these fit between them, beyond it when two do not reach back
# to it, and otherwise more seeds are needed.
# shellcheck shell=bash disable=SC2154 # options are set by read_options

# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
# shellcheck source=bench/lib/quickstart_text.sh
source bench/lib/quickstart_text.sh

iterations=200
seeds=1234,2,3,4
results="" # a file of lines like those on standard output: what it has is not trained again, what is new is appended
program=${MEGATRON_CPP:-}
launch=()        # before the program; of several ranks launch_ranks fills it
plain_options=() # of the first half of train_late

# begin_comparison <argument of the script ...>: reads them, and makes $folder, where the text is.
begin_comparison() {
  read_options iterations seeds results -- "$@"
  build_program
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  prepare_text "$folder"
  results=${results:-$folder/results}
  machine_json | tee -a "$results"
}

# train <name> <plain one> <option ...>: trains with each of the seeds, started by `launch` where that is set. A line of JSON
# each, with the bits per byte of the held-out text.
train() {
  local seed
  for seed in ${seeds//,/ }; do train_once "$seed" "$@"; done
}

# key_of <seed> <name> <plain one>: how the line of such a training begins.
key_of() { echo "\"arithmetic\": \"$2\", \"plain\": \"$3\", \"seed\": $1, \"iterations\": $iterations"; }

# is_known <seed> <name> <plain one>: whether the results have it.
is_known() { grep -qF "$(key_of "$@")" "$results"; }

# train_once <seed> <name> <plain one> <option ...>
train_once() {
  local seed=$1 name=$2 plain=$3 option shown=() line
  ! is_known "$seed" "$name" "$plain" || return 0
  for option in "${@:4}"; do [[ $option == --checkpoint.* ]] || shown+=("$option"); done
  train_only "$seed" "$folder/$name" "${@:4}"
  line="{$(key_of "$seed" "$name" "$plain"), \"bits_per_byte\": $(held_out_bits "$folder/$name" "$folder"), \"options\": \"${shown[*]}\"}"
  echo "$line" | tee -a "$results"
}

# train_only <seed> <folder of the checkpoint> <option ...>: and evaluates nothing.
train_only() {
  local log=$2.log
  rm -rf "${2:?}"
  "${launch[@]}" "$program" pretrain configs/quickstart.toml --training.train_iters="$iterations" --training.seed="$1" \
    --training.eval_iters=0 --training.eval_interval=0 --checkpoint.save_interval=0 --checkpoint.save="$2" \
    --data.train_data_path="$folder/train_text_document" --data.valid_data_path="$folder/valid_text_document" \
    --data.tokenizer_model="$folder/tokenizer.model" "${@:3}" "${options[@]}" >"$log" 2>&1 </dev/null ||
    { cat "$log" >&2 && exit 1; }
}

# train_late <name> <plain one> <keys> <option ...>: the same, with options that change these keys (with commas) from halfway on
# only, after what `plain_options` left there. So what came before has the same bits, and less of the difference is chance.
# The line says <name>_late.
train_late() {
  local seed first half=$((iterations / 2))
  for seed in ${seeds//,/ }; do
    ! is_known "$seed" "$1_late" "$2" || continue
    first=$folder/first_half_$2_$seed
    [ -d "$first" ] || train_only "$seed" "$first" "--training.exit_interval=$half" "${plain_options[@]}"
    train_once "$seed" "$1_late" "$2" "--checkpoint.load=$first" "--checkpoint.allow_changed_keys=$3" "${@:4}"
  done
}

# judge [name ...]: of each arithmetic, how far it is from the plain one, in percent; of these names every seed's has to be the
# same number. Fails unless all others are within half a percent.
# shellcheck disable=SC2120 # many have none of these
judge() {
  sed -n 's/.*"arithmetic": "\([^"]*\)", "plain": "\([^"]*\)", "seed": \([0-9]*\), "iterations": '"$iterations"', "bits_per_byte": \([0-9.]*\).*/\1 \2 \3 \4/p' "$results" |
    awk -v same="$*" '
      { bits[$1, $3] = $4
        if (!($1 in plain)) order[++names] = $1
        plain[$1] = $2; all_seeds[$3] }
      function look_at(name,    seed, further, count, sum, squares) {
        for (seed in all_seeds) {
          if (!((name, seed) in bits) || !((plain[name], seed) in bits)) continue
          further = 100 * (bits[name, seed] / bits[plain[name], seed] - 1)
          ++count; sum += further; squares += further * further
          if (index(" " same " ", " " name " ") && further != 0) different = 1
        }
        n = count; mean = n ? sum / n : 0
        error = n > 1 ? sqrt(squares / n - mean * mean > 0 ? (squares / n - mean * mean) / (n - 1) : 0) : 0
      }
      END {
        for (i = 1; i <= names; ++i) {
          name = order[i]
          if (name == plain[name]) continue
          different = 0
          look_at(name)
          far = mean < 0 ? -mean : mean
          if (index(" " same " ", " " name " ")) verdict = different ? "other bits" : "the same bits"
          else if (n < 2) verdict = "open: several seeds are needed"
          else if (far + 2 * error <= 0.5) verdict = "within 0.5 %"
          else if (far - 2 * error > 0.5) verdict = "beyond 0.5 %"
          else verdict = "open: more seeds are needed"
          printf "%-18s %+.3f %% from %s, standard error %.3f %%, %d seeds: %s\n", name, mean, plain[name], error, n, verdict
          if (verdict != "within 0.5 %" && verdict != "the same bits") bad = 1
        }
        exit bad
      }' >&2
}
