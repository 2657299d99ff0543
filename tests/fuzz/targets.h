// Fuzz targets that parse untrusted bytes. tests/fuzz/libfuzzer.cpp builds a program from each (scripts/fuzz.sh), and
// tests/fuzz/replay_test.cpp runs all of them on the inputs in tests/fuzz/corpus/ and tests/fuzz/found/.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace mcpp::fuzz {

/// Each function parses `input` as the kind of data in its name and uses the results, such as the values of a tensor.
/// It throws BadInput for rejected input, and anything else only for a bug. MCPP_CHECK asserts the properties of
/// accepted input.
void arguments(std::string_view input);  ///< command-line arguments, one per line
void batch_size_schedule(std::string_view input);
void blend(std::string_view input);                 ///< one entry per line
void chat_template(std::string_view input);         ///< a template, which renders a conversation with tools
void checkpoint_file(std::string_view input);       ///< the HDF5 file of a checkpoint with a matching manifest
void config(std::string_view input);                ///< TOML
void distributed_metadata(std::string_view input);  ///< .metadata of a distributed checkpoint with two parts of [2, 3]
void documents(std::string_view input);             ///< text, JSONL or gzip, after a byte of option bits
void gemm_choices(std::string_view input);
void gzip_members(std::string_view input);  ///< parts of a gzip file: compressed, compressed and damaged, or raw
void huggingface_config(std::string_view input);
void indexed_dataset(std::string_view input);  ///< .idx, with a .bin of the described size
void manifest(std::string_view input);
void pickle(std::string_view input);
void pipeline_layout(std::string_view input);
/// Dequantizes all weights of a safetensors file; the first byte selects the quantization.
void quantized_weights(std::string_view input);
void safetensors(std::string_view input);
void safetensors_index(std::string_view input);  ///< an index of two intact files
void tokenizer(std::string_view input);          ///< a sentencepiece model, tokenizer.json or rank list
void torch_file(std::string_view input);         ///< a file of torch.save
/// Parses TOML that repeats the input; the first byte is the number of repetitions.
void toml_nesting(std::string_view input);
void zstd_frames(std::string_view input);  ///< parts of a zstd file, like those of gzip_members

struct Target {
  std::string_view name;
  void (*read)(std::string_view input);
};

/// Returns all targets, by name.
std::span<const Target> targets();

/// Returns the problem with the way `target` handled `input`, or "" if it accepted it or rejected it with BadInput.
std::string finding(const Target& target, std::string_view input);

/// Writes `content` to the file `name` in a folder that is removed when the process ends. Returns the path.
Path scratch_file(const std::string& name, std::string_view content);

}  // namespace mcpp::fuzz
