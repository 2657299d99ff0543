# A text, its tokenizer and token files, and a configuration that trains in seconds, to be sourced: run.toml for four ranks
# in the current folder, made by $MEGATRON_CPP.
# shellcheck shell=bash disable=SC2154 # root: the folder of the sources

iterations=60

make_training() {
  head -c 60000 "$root/data/tinyshakespeare.txt" >train.txt
  "$MEGATRON_CPP" tokenizer train --input=train.txt --output=tokenizer.model --vocab_size=400
  "$MEGATRON_CPP" preprocess --input=train.txt --output_prefix=train --tokenizer_model=tokenizer.model --text_document=paragraph
  sed -e "s|@folder@|$PWD|" -e 's/^micro_batch_size = .*/micro_batch_size = 2/' -e "s/^train_iters = .*/train_iters = $iterations/" \
    -e 's/^eval_iters = .*/eval_iters = 0/' -e 's/^save_interval = .*/save_interval = 5/' \
    "$root/tests/support/small_training.toml" >run.toml
  printf '[parallel]\ntensor_model_parallel_size = 2\nzero_stage = 1\n' >>run.toml
}
