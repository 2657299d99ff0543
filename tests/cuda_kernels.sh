#!/usr/bin/env bash
# tests/cuda_kernels.sh <libmcpp_tensor.a built with nvcc>: checks the machine code of the kernels that a step spends
# its time in. They do not spill, their registers suffice for the threads of their blocks, and vectorized kernels move
# 16 bytes per access. Needs cuobjdump and nvdisasm, in the PATH or named by CUOBJDUMP and NVDISASM_PATH; otherwise
# skips.
set -euo pipefail
library=$1
cuobjdump=${CUOBJDUMP:-$(PATH=$PATH:/usr/local/cuda/bin command -v cuobjdump || true)}
[ -n "$cuobjdump" ] || { echo "cuobjdump is not installed" && exit 77; }
[ -f "$library" ] || { echo "$library is not there" && exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ar --output "$folder" x "$library"
cd "$folder"

# Lines "kernel<types> registers 16-byte-loads 16-byte-stores local-accesses", without namespaces and arguments.
for object in *.cu.o; do
  "$cuobjdump" --dump-resource-usage "$object" >usage 2>/dev/null || true
  "$cuobjdump" -sass "$object" >code 2>error || { cat error && exit 77; }
  awk '
    FILENAME == "usage" && /^ *Function / { name = $2; sub(/:$/, "", name) }
    FILENAME == "usage" && /REG:/ { split($1, part, ":"); registers[name] = part[2] }
    FILENAME == "code" && /Function :/ { name = $3 }
    FILENAME == "code" && /LDG\.E[A-Z0-9.]*\.128/ { ++loads[name] }
    FILENAME == "code" && /STG\.E[A-Z0-9.]*\.128/ { ++stores[name] }
    FILENAME == "code" && /(LDL|STL)/ { ++local[name] }
    END { for (name in registers) print name, registers[name] + 0, loads[name] + 0, stores[name] + 0, local[name] + 0 }
  ' usage code
done | c++filt | sed -E 's/\(anonymous namespace\):://g; s/mcpp:://g; s/^void //; s/\((Factors|BlockScales)\)//g; s/\(.*\)( [0-9]+ [0-9]+ [0-9]+ [0-9]+)$/\1/' >kernels
[ -s kernels ] || { echo "$library has no kernels" && exit 1; }

# expect <kernel, an extended regular expression> <threads of a block> <least loads> <least stores> <most local accesses>
failed=0
expect() {
  local found=0 registers loads stores local_accesses name
  while read -r registers loads stores local_accesses name; do
    found=1
    # Registers of a warp are allotted 256 at a time, of 65536 per multiprocessor.
    if [ $(((registers + 7) / 8 * 8 * $2)) -gt 65536 ] || [ "$loads" -lt "$3" ] || [ "$stores" -lt "$4" ] ||
      [ "$local_accesses" -gt "$5" ]; then
      echo "$name: $registers registers for $2 threads, $loads loads and $stores stores of 16 bytes, $local_accesses" \
        "local accesses; expected at least $3 and $4, at most $5"
      failed=1
    fi
  done < <(grep -E "^$1 [0-9]+ [0-9]+ [0-9]+ [0-9]+\$" kernels |
    awk '{ n = NF; name = $1; for (i = 2; i <= n - 4; ++i) name = name " " $i; print $(n-3), $(n-2), $(n-1), $n, name }')
  if [ $found = 0 ]; then
    echo "no kernel $1"
    failed=1
  fi
}

for e in __nv_bfloat16 __half; do
  expect "update<$e, .*>" 256 1 1 0
  expect "squares<$e>" 256 1 0 0
  expect "add_to_rows<$e, 8>" 256 1 1 0
  expect "sum_columns<$e, 8>" 512 1 0 0
  expect "normalize<$e, 8, [04], (true|false)>" 512 2 1 0
  expect "normalize_backward<$e, 8, ([02], (true|false)|4, false)>" 512 2 1 0
  # LayerNorm of the widest rows that registers hold needs a few more than the 128 of 512 threads.
  expect "normalize_backward<$e, 8, 4, true>" 512 2 1 13
  expect "activate<$e, 8, .*>" 256 1 1 0
  expect "activate_backward<$e, 8, .*>" 256 2 1 0
  expect "drop_and_add<$e, 8, .*>" 256 1 1 0
  expect "look_up<8, $e>" 128 1 1 0
  expect "add_tokens<8, $e, float>" 128 1 1 0
  expect "rotate_heads<8, $e, float>" 256 2 2 0
  expect "row_stats<$e, float>" 512 1 0 0
  expect "row_gradient<$e, float>" 512 1 1 0
  expect "combine<8, $e, float>" 128 1 1 0
  expect "combine_backward<8, $e, float>" 128 2 1 0
  # Double precision arithmetic of rare branches is called as a function, which saves registers.
  expect "attention::(forward|backward_queries|backward_keys)<(64|128|256), $e, float>" 256 0 0 20
done
expect "update_weights<4, AdamWVectors<float, (__nv_bfloat16|__half|float)>, AdamW<float> ?>" 256 4 3 0
expect "sum_numbers" 256 1 2 0
expect "write_packed_codes" 256 1 0 0
expect "encode_tiles<Fp8Encoder<[012]>, 8>" 256 1 1 0
expect "encode_tiles<Nvfp4Encoder<(1|16), (true|false)>, 8>" 256 1 0 0
[ $failed = 0 ] && echo "$(wc -l <kernels) kernels"
exit $failed
