# Creates a checkpoint for benchmarks that read one; to be sourced with $program set.
# shellcheck shell=bash disable=SC2154 # program is set by the caller

# untrained_model <folder> <configuration> <text>: trains a tokenizer of 2048 pieces on tiny Shakespeare and the model
# for one step on the text. The checkpoint is in <folder>/run.
untrained_model() {
  local folder=$1 configuration=$2 text=$3
  "$program" tokenizer train --input=data/tinyshakespeare.txt --output="$folder/tokenizer.model" --vocab_size=2048 >/dev/null
  "$program" preprocess --input="$text" --text_document=paragraph --output_prefix="$folder/text" \
    --tokenizer_model="$folder/tokenizer.model" >/dev/null
  "$program" pretrain "$configuration" --model.vocab_size=0 --data.data_path="$folder/text_text_document" --data.split=100,0,0 \
    --data.tokenizer_model="$folder/tokenizer.model" --training.micro_batch_size=1 --training.global_batch_size=1 \
    --training.train_iters=1 --training.eval_iters=0 --checkpoint.save="$folder/run" >/dev/null
}
