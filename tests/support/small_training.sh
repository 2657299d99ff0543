# A text, its tokenizer and token files, and a configuration that trains in seconds, to be sourced: run.toml for four ranks
# in the current folder, made by $MEGATRON_CPP.
# shellcheck shell=bash disable=SC2154 # root: the folder of the sources

iterations=60

make_training() {
  head -c 60000 "$root/data/tinyshakespeare.txt" >train.txt
  "$MEGATRON_CPP" tokenizer train --input=train.txt --output=tokenizer.model --vocab_size=400
  "$MEGATRON_CPP" preprocess --input=train.txt --output_prefix=train --tokenizer_model=tokenizer.model --text_document=paragraph
  cat >run.toml <<END
[model]
num_layers = 2
hidden_size = 32
num_attention_heads = 4
seq_length = 32
[training]
micro_batch_size = 2
global_batch_size = 8
train_iters = $iterations
[parallel]
tensor_model_parallel_size = 2
zero_stage = 1
[optimizer]
lr = 1e-2
[data]
data_path = ["$PWD/train_text_document"]
tokenizer_model = "$PWD/tokenizer.model"
[checkpoint]
save_interval = 5
[logging]
log_interval = 1
peak_tflops = 1
[device]
num_threads = 1
END
}
