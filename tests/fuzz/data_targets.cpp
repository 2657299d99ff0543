// Fuzz targets for token files, texts and tokenizers.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/document_reader.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {
namespace {

/// Returns the number of token bytes that an .idx describes, at most 64 KiB; 0 if the .idx is implausible.
std::size_t described_bytes(std::string_view idx) {
  u64 sequences = 0, bytes = 0;
  if (idx.size() < kIndexHeaderBytes) return 0;
  std::memcpy(&sequences, idx.data() + 18, sizeof sequences);
  const auto code = static_cast<u8>(idx[17]);
  if (code < 1 || code > 8 || sequences > idx.size() / 4) return 0;
  for (std::size_t at = kIndexHeaderBytes; sequences > 0 && at + 4 <= idx.size(); --sequences, at += 4) {
    u32 tokens = 0;
    std::memcpy(&tokens, idx.data() + at, sizeof tokens);
    bytes += tokens * static_cast<u64>(token_bytes(static_cast<TokenType>(code)));
  }
  return static_cast<std::size_t>(std::min<u64>(bytes, 1 << 16));
}

/// Returns the documents of one file, read with the given option bits in chunks of `chunk_bytes`.
std::vector<std::string> read_documents(const Path& path, u8 options, std::size_t chunk_bytes) {
  DocumentFormat format;
  format.text_document = static_cast<TextDocument>(options % 3);
  format.invalid_utf8 = options & 4 ? InvalidUtf8::Replace : InvalidUtf8::Error;
  format.skip_malformed = (options & 8) != 0;
  TextSource source(path);
  TextChunk chunk;
  std::vector<std::string> documents;
  std::string open;
  chunk.is_json_lines = path.extension() == ".jsonl";
  format.input_format = chunk.is_json_lines ? InputFormat::JsonLines : InputFormat::Text;
  while (source.next(chunk, chunk_bytes, split_mode_for(chunk.is_json_lines, format))) {
    MCPP_CHECK(!chunk.text.empty(), "an empty chunk never ends");
    const ChunkDocuments parsed = parse_chunk(path, chunk, format);
    for (const Segment& segment : parsed.by_key[0]) {
      open += segment.text;
      if (segment.ends_document && !open.empty()) documents.push_back(std::exchange(open, {}));
    }
  }
  MCPP_CHECK(open.empty(), "the last document does not end");
  return documents;
}

}  // namespace

void documents(std::string_view input) {
  if (input.empty()) return;
  const auto options = static_cast<u8>(input[0]);
  const Path path = scratch_file(options & 16 ? "text.jsonl" : "text.txt", input.substr(1));
  const std::vector<std::string> small_chunks = read_documents(path, options, 64),
                                 one_chunk = read_documents(path, options, 1 << 20);
  // A replaced byte, a carriage return split from its line or a line longer than a chunk may change the documents.
  const std::vector<std::string> lines = split(input, '\n');
  const bool is_plain = (options & 4) == 0 && input.find('\r') == std::string_view::npos &&
                        std::ranges::all_of(lines, [](const std::string& line) { return line.size() < 60; });
  MCPP_CHECK(!is_plain || small_chunks == one_chunk, "the documents depend on how the file is split");
}

void indexed_dataset(std::string_view input) {
  scratch_file("data.bin", std::string(described_bytes(input), '\1'));
  const Path idx = scratch_file("data.idx", input);
  const IndexedDataset dataset(idx.parent_path() / "data");
  i64 tokens = 0;
  std::vector<i32> ids;
  for (i64 i = 0; i < dataset.num_sequences(); ++i) {
    ids.resize(static_cast<std::size_t>(dataset.length(i)));
    dataset.read(i, 0, ids);
    tokens += dataset.length(i);
    MCPP_CHECK(dataset.num_documents() == 0 || dataset.document_of(i) < dataset.num_documents());
  }
  MCPP_CHECK(tokens == dataset.num_tokens());
}

void tokenizer(std::string_view input) {
  const Tokenizer tokenizer(scratch_file("tokenizer.model", input));
  const std::vector<i32> ids = tokenizer.encode("  To be, or\nnot \xE2\x96\x81 \xF0\x9F\x98\x80 to be <eod>");
  for (const i32 id : ids) MCPP_CHECK(!tokenizer.piece(id).empty() || id >= 0);
  tokenizer.decode(ids);
  std::vector<i32> all(static_cast<std::size_t>(tokenizer.vocab_size()));
  std::iota(all.begin(), all.end(), 0);
  tokenizer.decode(all);
  MCPP_CHECK(tokenizer.eod() >= 0 && tokenizer.eod() < tokenizer.vocab_size());
}

}  // namespace mcpp::fuzz
