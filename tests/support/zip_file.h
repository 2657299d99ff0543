// ZIP archives and files of torch.save that tests assemble, possibly with wrong content.
#pragma once
#include <zlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp::test {

/// File of an archive. Values that are not set follow from the content.
struct ZipPart {
  std::string name, content;
  u16 method = 0, flags = 0;
  i64 claimed_size = -1;
  i64 offset = -1;  ///< of the header before the content
  bool has_checksum = true;
  std::string inner_name = "";  ///< name before the content; "" = `name`
};

template <class T>
void append_number(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// Returns an archive of these files, without compression.
inline std::string zip_of(const std::vector<ZipPart>& parts) {
  std::string data, directory;
  for (const ZipPart& part : parts) {
    const auto at = static_cast<u32>(part.offset < 0 ? static_cast<i64>(data.size()) : part.offset);
    const auto size =
        static_cast<u32>(part.claimed_size < 0 ? static_cast<i64>(part.content.size()) : part.claimed_size);
    const auto* bytes = reinterpret_cast<const Bytef*>(part.content.data());
    const auto sum = static_cast<u32>(part.has_checksum ? crc32_z(0, bytes, part.content.size()) : 0);
    const auto common = [&](std::string& to, const std::string& name) {
      append_number<u16>(to, part.flags), append_number<u16>(to, part.method), append_number<u32>(to, 0);
      append_number<u32>(to, sum), append_number<u32>(to, size), append_number<u32>(to, size);
      append_number<u16>(to, static_cast<u16>(name.size())), append_number<u16>(to, 0);
    };
    const std::string inner = part.inner_name.empty() ? part.name : part.inner_name;
    append_number<u32>(data, 0x04034b50), append_number<u16>(data, 0);
    common(data, inner);
    data += inner + part.content;
    append_number<u32>(directory, 0x02014b50), append_number<u32>(directory, 0);
    common(directory, part.name);
    append_number<u16>(directory, 0), append_number<u16>(directory, 0), append_number<u16>(directory, 0);
    append_number<u32>(directory, 0), append_number<u32>(directory, at);
    directory += part.name;
  }
  std::string end;
  append_number<u32>(end, 0x06054b50), append_number<u32>(end, 0);
  append_number<u16>(end, static_cast<u16>(parts.size())), append_number<u16>(end, static_cast<u16>(parts.size()));
  append_number<u32>(end, static_cast<u32>(directory.size())), append_number<u32>(end, static_cast<u32>(data.size()));
  append_number<u16>(end, 0);
  return data + directory + end;
}

/// Returns a file of torch.save with this pickle of protocol 2, without its header, and these storages "0", "1", ...
inline std::string torch_file_of(const std::string& opcodes, const std::vector<std::string>& storages = {}) {
  std::vector<ZipPart> parts{{.name = "x/data.pkl", .content = "\x80\x02" + opcodes}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    parts.push_back({.name = "x/data/" + std::to_string(i), .content = storages[i]});
  return zip_of(parts);
}

/// Returns the opcodes of an integer.
inline std::string pickled(i64 value) {
  std::string text = "\x8a\x08";
  append_number(text, value);
  return text;
}
inline std::string pickled(const std::string& text) {
  std::string opcodes = "X";
  append_number(opcodes, static_cast<u32>(text.size()));
  return opcodes + text;
}
inline std::string pickled(const std::vector<i64>& sizes) {
  std::string opcodes = "(";
  for (const i64 size : sizes) opcodes += pickled(size);
  return opcodes + "t";
}

/// Returns the opcodes of a tensor in storage "0".
inline std::string pickled_tensor(i64 offset, const std::vector<i64>& shape, const std::vector<i64>& strides,
                                  i64 storage_elements, const std::string& storage = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" + storage + "\n" + pickled("0") +
         pickled("cpu") + pickled(storage_elements) + "tQ" + pickled(offset) + pickled(shape) + pickled(strides) +
         "\x89" + "N" + "tR";
}

}  // namespace mcpp::test
