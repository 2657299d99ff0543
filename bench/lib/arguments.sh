# What benchmarks read from their command lines; to be sourced.
# shellcheck shell=bash disable=SC2034 # options is read there

# read_options <name ...> -- <argument ...>: --name=VALUE sets that variable, which has its default already; all other arguments
# become `options`.
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

# build_program: fills `program`, unless it is given, with the release build of today's sources.
build_program() {
  [ -n "$program" ] || { scripts/build.sh release megatron_cpp >/dev/null && program=build/release/megatron_cpp; }
}
