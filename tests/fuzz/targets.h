// What reads bytes that anybody may have written, as functions that a fuzzer can call: tests/fuzz/libfuzzer.cpp makes a
// program of each (scripts/fuzz.sh), tests/fuzz/replay_test.cpp runs all on the inputs kept in
// tests/fuzz/corpus/ and tests/fuzz/found/.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace mcpp::fuzz {

/// Each takes `input` as what its name says and goes through all that follows from it, such as the numbers of a tensor.
/// It throws BadInput for what it refuses, and anything else only for a bug; MCPP_CHECK holds what must be true of all
/// that was accepted.
void arguments(std::string_view input);  ///< of a command line, one a line
void batch_size_schedule(std::string_view input);
void blend(std::string_view input);            ///< one entry a line
void checkpoint_file(std::string_view input);  ///< the HDF5 file of a checkpoint whose manifest fits it
void config(std::string_view input);           ///< TOML
void documents(std::string_view input);        ///< text, JSONL or gzip, after a byte that says how to cut it
void gemm_choices(std::string_view input);
void gzip_members(std::string_view input);  ///< parts of a gzip file: packed, packed and spoilt, or as they are
void huggingface_config(std::string_view input);
void indexed_dataset(std::string_view input);  ///< .idx; the .bin has the size that fits best
void manifest(std::string_view input);
void pipeline_layout(std::string_view input);
void safetensors(std::string_view input);
void safetensors_index(std::string_view input);  ///< beside two sound files
void tokenizer(std::string_view input);          ///< a sentencepiece model, tokenizer.json or list of ranks
void toml_nesting(std::string_view input);       ///< TOML that repeats the input: the first byte says how often
void zstd_frames(std::string_view input);        ///< parts of a zstd file, as those of gzip_members

struct Target {
  std::string_view name;
  void (*read)(std::string_view input);
};

/// All of the above, by name.
std::span<const Target> targets();

/// What is wrong with how `target` took `input`; "" when it accepted the input or refused it with BadInput.
std::string finding(const Target& target, std::string_view input);

/// Writes `content` to the file `name` in a folder of this process, which goes with it. Returns the path.
Path scratch_file(const std::string& name, std::string_view content);

}  // namespace mcpp::fuzz
