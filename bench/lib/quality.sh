# Compares the quality of runs with different arithmetic with that of a baseline ("plain"); to be sourced from the
# root of the sources.
#
# A single run of each is not sufficient: any change of rounding is a different random sample, and after the 200
# iterations of the quick start samples differ by up to one percent. Therefore each arithmetic is trained with several
# seeds. The mean relative difference in bits per byte to the baseline with the same seed is tested with its standard
# error: it is within 0.5 % if |mean| + 2 errors is, beyond it if |mean| - 2 errors is, and otherwise more seeds are
# needed.
# shellcheck shell=bash disable=SC2154 # options are set by read_options

# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
# shellcheck source=bench/lib/quickstart_text.sh
source bench/lib/quickstart_text.sh

iterations=200
seeds=1234,2,3,4
results="" # file of earlier lines of standard output: runs in it are not repeated, new ones are appended
program=${MEGATRON_CPP:-}
launch=()        # launcher words before the program, set by launch_ranks
plain_options=() # options of the first half of train_late

# begin_comparison <argument of the script ...>: reads the options and prepares the text in $folder.
begin_comparison() {
  read_options iterations seeds results -- "$@"
  build_program
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  prepare_text "$folder"
  results=${results:-$folder/results}
  environment_json | tee -a "$results"
}

# train <name> <baseline> <option ...>: trains with each seed. Prints one line of JSON for each, with the bits per byte
# of the held-out text.
train() {
  local seed
  for seed in ${seeds//,/ }; do train_once "$seed" "$@"; done
}

# key_of <seed> <name> <baseline>: prints the beginning of the line of a run.
key_of() { echo "\"arithmetic\": \"$2\", \"plain\": \"$3\", \"seed\": $1, \"iterations\": $iterations"; }

# is_known <seed> <name> <baseline>: succeeds if the results contain the training.
is_known() { grep -qF "$(key_of "$@")" "$results"; }

# train_once <seed> <name> <baseline> <option ...>: trains and evaluates, unless the results contain the training.
train_once() {
  local seed=$1 name=$2 plain=$3 option shown=() line
  ! is_known "$seed" "$name" "$plain" || return 0
  for option in "${@:4}"; do [[ $option == --checkpoint.* ]] || shown+=("$option"); done
  train_only "$seed" "$folder/$name" "${@:4}"
  line="{$(key_of "$seed" "$name" "$plain"), \"bits_per_byte\": $(held_out_bits "$folder/$name" "$folder"), \"options\": \"${shown[*]}\"}"
  echo "$line" | tee -a "$results"
}

# train_only <seed> <checkpoint folder> <option ...>: trains without evaluation.
train_only() {
  local log=$2.log
  rm -rf "${2:?}"
  "${launch[@]}" "$program" pretrain configs/quickstart.toml --training.train_iters="$iterations" --training.seed="$1" \
    --training.eval_iters=0 --training.eval_interval=0 --checkpoint.save_interval=0 --checkpoint.save="$2" \
    --data.train_data_path="$folder/train_text_document" --data.valid_data_path="$folder/valid_text_document" \
    --data.tokenizer_model="$folder/tokenizer.model" "${@:3}" "${options[@]}" >"$log" 2>&1 </dev/null ||
    { cat "$log" >&2 && exit 1; }
}

# train_late <name> <baseline> <keys> <option ...>: like train, but the options, which change these comma-separated
# keys, apply to the second half only. The first half uses `plain_options` and is shared, so that less of the difference
# is random. The name in the results is <name>_late.
train_late() {
  local seed first half=$((iterations / 2))
  for seed in ${seeds//,/ }; do
    ! is_known "$seed" "$1_late" "$2" || continue
    first=$folder/first_half_$2_$seed
    [ -d "$first" ] || train_only "$seed" "$first" "--training.exit_interval=$half" "${plain_options[@]}"
    train_once "$seed" "$1_late" "$2" "--checkpoint.load=$first" "--checkpoint.allow_changed_keys=$3" "${@:4}"
  done
}

# judge [name ...]: prints for each arithmetic the mean difference from its baseline in percent. The given names must be
# identical to it for every seed. Fails unless they are, and all others are within 0.5 %.
# shellcheck disable=SC2120 # many have no such names
judge() {
  sed -n 's/.*"arithmetic": "\([^"]*\)", "plain": "\([^"]*\)", "seed": \([0-9]*\), "iterations": '"$iterations"', "bits_per_byte": \([0-9.]*\).*/\1 \2 \3 \4/p' "$results" |
    awk -v identical="$*" '
      { bits[$1, $3] = $4
        if (!($1 in plain)) order[++names] = $1
        plain[$1] = $2; all_seeds[$3] }
      function compute_statistics(name,    seed, difference, count, sum, squares) {
        for (seed in all_seeds) {
          if (!((name, seed) in bits) || !((plain[name], seed) in bits)) continue
          difference = 100 * (bits[name, seed] / bits[plain[name], seed] - 1)
          ++count; sum += difference; squares += difference * difference
          if (index(" " identical " ", " " name " ") && difference != 0) different = 1
        }
        n = count; mean = n ? sum / n : 0
        error = n > 1 ? sqrt(squares / n - mean * mean > 0 ? (squares / n - mean * mean) / (n - 1) : 0) : 0
      }
      END {
        for (i = 1; i <= names; ++i) {
          name = order[i]
          if (name == plain[name]) continue
          different = 0
          compute_statistics(name)
          size = mean < 0 ? -mean : mean
          if (index(" " identical " ", " " name " ")) verdict = different ? "not identical" : "identical"
          else if (n < 2) verdict = "undecided: several seeds are needed"
          else if (size + 2 * error <= 0.5) verdict = "within 0.5 %"
          else if (size - 2 * error > 0.5) verdict = "beyond 0.5 %"
          else verdict = "undecided: more seeds are needed"
          printf "%-18s %+.3f %% from %s, standard error %.3f %%, %d seeds: %s\n", name, mean, plain[name], error, n, verdict
          if (verdict != "within 0.5 %" && verdict != "identical") bad = 1
        }
        exit bad
      }' >&2
}
