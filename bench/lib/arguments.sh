# Parses the arguments of benchmarks; to be sourced.
# shellcheck shell=bash disable=SC2034 # options is read there

# read_options <name ...> -- <argument ...>: --name=VALUE sets variable <name>, which already has its default. All other
# arguments are stored in `options`.
read_options() {
  local names=" " argument name
  while [ "$1" != -- ]; do names+="$1 " && shift; done
  shift
  options=()
  for argument in "$@"; do
    name=${argument%%=*}
    if [[ $argument == --*=* && $names == *" ${name#--} "* ]]; then
      printf -v "${name#--}" %s "${argument#*=}"
    else
      options+=("$argument")
    fi
  done
}

# build_program: unless `program` is set, builds the release program and sets `program` to it.
build_program() {
  [ -n "$program" ] || { scripts/build.sh release megatron_cpp >/dev/null && program=build/release/megatron_cpp; }
}
