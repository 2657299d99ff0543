#compdef megatron_cpp
# Completes megatron_cpp in zsh: source <(megatron_cpp completion zsh), or as file _megatron_cpp in a folder of $fpath.

# Asks the program for the candidates after the words before the current one, up to the first option.
_megatron_cpp() {
  local -a before names descriptions
  local word line
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ $word == -* ]] && break
    before+=("${(Q)word}")
  done
  for line in "${(@f)$(${(Q)words[1]} $before --list_options 2>/dev/null </dev/null)}"; do
    [[ $line == *$'\t'* ]] || continue
    names+=("${line%%$'\t'*}")
    descriptions+=("${line%%$'\t'*}  -- ${line#*$'\t'}")
  done
  if [[ $PREFIX == -* ]]; then
    # No space after the = of keys that take a value.
    local -a keys=(${(M)names:#*=}) others=(${names:#*=})
    compadd -S '' -a keys
    compadd -a others
    compset -P '*=' && _files
  elif (( ${#names} && ! ${names[(I)-*]} )); then
    compadd -l -d descriptions -a names
  else
    _files
  fi
}
if [[ $funcstack[1] == _megatron_cpp ]]; then _megatron_cpp "$@"; else compdef _megatron_cpp megatron_cpp; fi
