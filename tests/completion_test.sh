#!/usr/bin/env bash
# Tests shell completion in real shells: completion_test.sh PROGRAM. zsh is tested if it is installed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/a folder"
ln -s "$1" "$work/a folder/megatron_cpp"
export PATH="$work/a folder:$PATH"
cd "$work"
touch run.toml
failures=0
fail() {
  echo "completion: $*" >&2
  failures=$((failures + 1))
}

# completed <line>: prints the candidates that bash would offer, one per line. `breaks`: its word break characters.
breaks=$' \t\n"\'><=;|&(:'
completed() {
  # shellcheck disable=SC2016 # expanded by the inner bash
  bash --norc -c '
    source <(megatron_cpp completion bash)
    COMP_WORDBREAKS=$1 COMP_LINE=$2 COMP_POINT=${#2}
    _megatron_cpp
    printf "%s\n" "${COMPREPLY[@]}"' - "$breaks" "$1" 2>"$work/errors"
  [ ! -s "$work/errors" ] || fail "$1: $(cat "$work/errors")"
}
# offers <line> <candidate>: fails unless the candidate is offered. offers_not: the opposite.
offers() { completed "$1" | grep -qxF -e "$2" || fail "\"$1\" does not offer $2 but: $(completed "$1" | head -5 | tr '\n' ' ')"; }
offers_not() { ! completed "$1" | grep -qF -e "$2" || fail "\"$1\" offers $2"; }

offers 'megatron_cpp ' pretrain
offers 'megatron_cpp pre' preprocess
offers_not 'megatron_cpp pre' generate
offers 'megatron_cpp checkpoint ' verify
offers 'megatron_cpp checkpoint ver' verify
offers 'megatron_cpp pretrain run.toml --model.num_l' --model.num_layers=
offers 'megatron_cpp pretrain run.toml --dry' --dry_run
offers 'megatron_cpp pretrain --training.precision=b' bf16
breaks=${breaks/=/} offers 'megatron_cpp pretrain --training.precision=b' --training.precision=bf16
offers 'megatron_cpp pretrain --training.precision=bf16 --optimizer.optimizer=' muon
offers 'megatron_cpp schedule zb-v --pipeline_m' --pipeline_model_parallel_size=
offers 'megatron_cpp data show --it' --iteration=
# shellcheck disable=SC2016 # must not be expanded
for nothing in 'megatron_cpp no_such_command ' 'megatron_cpp pretrain --no_such_key' 'megatron_cpp $(touch evil) --' 'no_such_program --x'; do
  [ -z "$(completed "$nothing")" ] || fail "$nothing: candidates are offered"
done
[ ! -e evil ] || fail "a word of the line was executed"

# Every command lists its options without starting anything.
for command in $(megatron_cpp --list_options | cut -f1); do
  list=$(megatron_cpp "$command" --list_options </dev/null) || fail "$command --list_options fails"
  [ -n "$list" ] || fail "$command lists nothing"
  case $list in --*) continue ;; esac
  while IFS=$'\t' read -r subcommand _; do
    [ -n "$subcommand" ] || continue
    megatron_cpp "$command" "$subcommand" --list_options </dev/null | grep -q '^--' || fail "$command $subcommand lists no options"
  done <<<"$list"
done
[ "$(ls)" = "a folder"$'\n'errors$'\n'run.toml ] || fail "files were written: $(ls)"

# A real interactive bash with readline: Tab completes a line, which is then echoed.
if command -v script >/dev/null; then
  printf 'PS1=""; source <(megatron_cpp completion bash)\nmegatron_cpp checkpoint ver\t\x01echo typed: \n exit\n' |
    timeout 60 script -qec 'bash --norc -i' /dev/null >"$work/typed" 2>&1 || true
  tr -d '\r' <"$work/typed" | grep -q 'typed: megatron_cpp checkpoint verify' || fail "a Tab in bash gives: $(tail -3 "$work/typed")"
fi

if command -v zsh >/dev/null; then
  cat >"$work/typed.zsh" <<'END'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit && compinit -u -D; source <(megatron_cpp completion zsh); echo read''y"
zpty -r shell out '*ready*'
zpty -w -n shell "$1"$'\t'
sleep 3
zpty -w shell $'\x01echo typed: '
zpty -w shell "echo en''d"
zpty -r shell out '*end*'
print -r -- "$out"
END
  typed() { zsh -f "$work/typed.zsh" "$1" 2>&1; }
  # becomes <line> <completed line>: tests what Tab makes of a line.
  becomes() { typed "$1" | tr -d '\r' | grep -qx "typed: $2 *" || fail "a Tab in zsh after \"$1\" gives: $(typed "$1" | tail -2)"; }
  becomes 'megatron_cpp checkp' 'megatron_cpp checkpoint'
  becomes 'megatron_cpp pretrain run.toml --training.precision=bf' 'megatron_cpp pretrain run.toml --training.precision=bf16'
fi
exit $((failures > 0))
