// Files of torch.save, assembled byte by byte; files that PyTorch wrote are in foreign_files_test.cpp.
#include "checkpoint/format/torch_file.h"

#include <array>

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/zip_file.h"

namespace mcpp {
namespace {

using test::pickled_tensor;
using test::torch_file_of;
using test::zip_of;
using test::ZipPart;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string zip_error(const std::vector<ZipPart>& parts) {
  const std::string text = zip_of(parts);
  return error_of([&] {
    const ZipArchive archive(bytes_of(text), "x.pt");
    for (const ZipEntry& entry : archive.entries()) archive.read(entry);
  });
}

/// Returns six floats 0 to 5.
std::string six_floats() {
  std::string text;
  for (int i = 0; i < 6; ++i) test::append_number(text, static_cast<float>(i));
  return text;
}

/// Returns the error of reading the tensor with these opcodes and a storage of six floats.
std::string tensor_error(const std::string& opcodes) {
  const std::string text = torch_file_of(opcodes + ".", {six_floats()});
  return error_of([&] {
    const TorchFile file(bytes_of(text), "x.pt");
    file.tensor(file.root(), "w");
  });
}

TEST(ZipArchiveTest, ReadsEntriesByName) {
  const std::string text = zip_of({{.name = "b", .content = "two"}, {.name = "a", .content = ""}});
  const ZipArchive archive(bytes_of(text), "x.pt");
  ASSERT_EQ(archive.entries().size(), 2);
  EXPECT_EQ(archive.entries()[0].name, "a");
  EXPECT_EQ(archive.read(*archive.find("b")).size(), 3);
  EXPECT_EQ(archive.find("c"), nullptr);
}

TEST(ZipArchiveTest, RejectsHostileEntries) {
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .method = 8}}), "a is compressed");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .flags = 1}}), "a is encrypted");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .claimed_size = 0xfffffff0}}),
                  "a has 4294967280 bytes, which reach beyond the end");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .offset = 3}}), "a has an invalid offset");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .offset = 0x7fffffff}}), "a has an invalid offset");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx"}, {.name = "a", .content = "yy"}}), "have the name a");
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = "xx", .inner_name = "b"}}), "a has a different name");
  // A second entry in the bytes of the first.
  EXPECT_CONTAINS(
      zip_error({{.name = "a", .content = "xxxx"}, {.name = "a2", .content = "", .claimed_size = 4, .offset = 0}}),
      "has a different name");
  const std::string inner = zip_of({{.name = "b", .content = "yy"}});
  EXPECT_CONTAINS(zip_error({{.name = "a", .content = inner}, {.name = "b", .content = "yy", .offset = 31}}),
                  "a and b overlap");
}

TEST(ZipArchiveTest, RejectsTruncatedFiles) {
  const std::string text = zip_of({{.name = "a", .content = "xxxx"}});
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_CONTAINS(error_of([&] { ZipArchive(bytes_of(text.substr(0, size)), "x.pt"); }), "ZIP archive") << size;
}

TEST(ZipArchiveTest, VerifiesChecksumsWhenPresent) {
  std::string text = zip_of({{.name = "a", .content = "xxxx"}}),
              unchecked = zip_of({{.name = "a", .content = "xxxx", .has_checksum = false}});
  text[33] = unchecked[33] = 'y';
  EXPECT_CONTAINS(error_of([&] {
                    const ZipArchive archive(bytes_of(text), "x.pt");
                    archive.read(*archive.find("a"));
                  }),
                  "a differs from its checksum");
  const ZipArchive archive(bytes_of(unchecked), "x.pt");
  EXPECT_EQ(archive.read(*archive.find("a"))[2], std::byte{'y'});
}

TEST(TorchFileTest, ReadsStridedViews) {
  // The transpose of columns 1 and 2 of a [2, 3] matrix.
  const std::string text = torch_file_of(pickled_tensor(1, {2, 2}, {1, 3}, 6) + ".", {six_floats()});
  const TorchFile file(bytes_of(text), "x.pt");
  const std::optional<TorchTensor> tensor = file.tensor(file.root(), "w");
  ASSERT_TRUE(tensor.has_value());
  std::array<float, 4> values{};
  tensor->copy(reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(values, (std::array<float, 4>{1, 4, 2, 5}));
  EXPECT_EQ(tensor->type->name, "float32");
  EXPECT_EQ(tensor->number(), std::nullopt);
}

TEST(TorchFileTest, ReadsNumbers) {
  const auto number = [](const std::string& storage, const std::string& bytes) {
    const std::string text = torch_file_of(pickled_tensor(0, {}, {}, 1, storage) + ".", {bytes});
    const TorchFile file(bytes_of(text), "x.pt");
    return file.tensor(file.root(), "step")->number();
  };
  EXPECT_EQ(number("FloatStorage", six_floats().substr(12, 4)), 3);
  EXPECT_EQ(number("LongStorage", std::string("\xfe\xff\xff\xff\xff\xff\xff\xff", 8)), -2);
  EXPECT_EQ(number("IntStorage", std::string("\7\0\0\0", 4)), 7);
  EXPECT_EQ(number("ByteStorage", "\7"), std::nullopt);
}

TEST(TorchFileTest, RejectsViewsBeyondStorage) {
  constexpr i64 kHuge = i64{1} << 62;
  EXPECT_EQ(tensor_error(pickled_tensor(0, {2, 3}, {3, 1}, 6)), "");
  EXPECT_EQ(tensor_error(pickled_tensor(6, {0}, {1}, 6)), "");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(1, {2, 3}, {3, 1}, 6)), "x.pt: w of shape [2, 3]");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(7, {0}, {1}, 6)), "reaches beyond its storage of 6 elements");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {2}, {6}, 6)), "reaches beyond");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {3}, {kHuge}, 6)), "reaches beyond");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(kHuge, {1}, {1}, 6)), "reaches beyond");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {kHuge, kHuge}, {0, 0}, 6)), "reaches beyond");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(-1, {1}, {1}, 6)), "reaches beyond");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(5, {2}, {-1}, 6)), "has an invalid size");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {kHuge}, {0}, 6)), "more elements than its storage");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {7}, {1}, 7)),
                  "a storage of 7 elements, but the archive has 24 bytes");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {1}, {1}, kHuge)), "a storage of 4611686018427387904 elements");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, {1}, {1, 1}, 6)), "1 sizes and 2 strides");
  EXPECT_CONTAINS(tensor_error(pickled_tensor(0, Shape(9, 1), Shape(9, 1), 6)), "has 9 dimensions");
}

TEST(TorchFileTest, RejectsMalformedTensors) {
  EXPECT_CONTAINS(tensor_error("ctorch._utils\n_rebuild_tensor_v2\n)R"), "w is a malformed tensor");
  EXPECT_CONTAINS(tensor_error("ctorch._utils\n_rebuild_parameter\n)R"), "w is a malformed parameter");
  EXPECT_CONTAINS(tensor_error("ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR"), "w has no storage");
  EXPECT_CONTAINS(tensor_error("ctorch._utils\n_rebuild_tensor_v2\n((NNNNNtQNNNNNtR"), "w has a malformed storage");
  // A parameter of itself.
  EXPECT_CONTAINS(tensor_error("ctorch._utils\n_rebuild_parameter\n(ctorch._utils\n_rebuild_parameter\n(NNNtRNNtR"),
                  "w is a malformed parameter");
}

TEST(TorchFileTest, NamesOtherFormats) {
  const auto error = [](const std::string& text) { return error_of([&] { TorchFile(bytes_of(text), "x.pt"); }); };
  EXPECT_CONTAINS(error(std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15)),
                  "the format that torch.save wrote before PyTorch 1.6");
  EXPECT_CONTAINS(error("\x89HDF"), "is not a file of torch.save");
  EXPECT_CONTAINS(error(""), "is not a file of torch.save");
  EXPECT_CONTAINS(error(zip_of({{.name = "x/version", .content = "3"}})), "the archive has no data.pkl");
  EXPECT_CONTAINS(error(zip_of({{.name = "x/byteorder", .content = "big"}, {.name = "x/data.pkl", .content = "N."}})),
                  "byte order");
}

}  // namespace
}  // namespace mcpp
