// Golden datasets, scratch folders and error messages, shared by the tests of data.
#pragma once
#include <initializer_list>

#include "base/file.h"
#include "base/json.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {

inline Path golden_data() {
  return golden_folder() / "data";
}

/// Returns the tokenizer tokenizers/qwen2.json with these special tokens, and then these other tokens, added to it.
inline std::string tokenizer_with(std::initializer_list<const char*> special,
                                  std::initializer_list<const char*> other = {}) {
  Json file = Json::parse(read_text_file(golden_folder() / "tokenizers/qwen2.json"));
  i64 id = 606;  // the first free one
  const auto add = [&](const char* piece, bool is_special) {
    file["added_tokens"].push_back({{"id", id++},
                                    {"content", piece},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", is_special}});
  };
  for (const char* piece : special) add(piece, true);
  for (const char* piece : other) add(piece, false);
  return file.dump();
}

}  // namespace mcpp::test
