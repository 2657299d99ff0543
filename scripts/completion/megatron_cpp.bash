# Completes megatron_cpp in bash: source <(megatron_cpp completion bash)
# shellcheck shell=bash

# Asks the program for the candidates after the words before the current one, up to the first option.
_megatron_cpp() {
  local line=${COMP_LINE:0:COMP_POINT} word words candidate
  local typed=${line##*[[:space:]]}
  read -ra words <<<"${line:0:${#line}-${#typed}}"
  local before=()
  for word in "${words[@]:1}"; do
    [[ $word != -* ]] || break
    before+=("$word")
  done
  # If = separates words, bash expects only the part after it.
  local strip=""
  [[ $COMP_WORDBREAKS != *=* || $typed != *=* ]] || strip=${typed%"${typed##*=}"}
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    [[ -n $candidate && $candidate == "$typed"* ]] || continue
    COMPREPLY+=("${candidate#"$strip"}")
  done < <("${words[0]:-megatron_cpp}" "${before[@]}" --list_options 2>/dev/null </dev/null)
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
# Falls back to files for positional arguments and values.
complete -o default -o bashdefault -F _megatron_cpp megatron_cpp
