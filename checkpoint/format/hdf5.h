// Minimal HDF5 support for checkpoints: a file of contiguous datasets, laid out by the library and then written and
// read at byte offsets with plain I/O. That is faster than H5Dwrite, allows streaming and checksums in one pass, and
// avoids running the library on a full disk, which can crash it. Files are regular HDF5, readable by h5dump and h5py.
// bf16 is stored as a 16-bit float with 8 exponent and 7 fraction bits.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace mcpp {

struct Hdf5Dataset {
  std::string path;  ///< "group/.../name"; groups are created as needed
  DType dtype = DType::F32;
  Shape shape;
  std::vector<std::pair<std::string, Shape>> attributes;  ///< lists of integers
};

/// Creates `path` with these datasets, each with at least one element, allocated but not written. Returns the byte
/// offset of each in the file. Throws BadInput with the library's reason.
std::vector<i64> create_hdf5(const Path& path, std::span<const Hdf5Dataset> datasets);

/// HDF5 file opened for reading.
class Hdf5File {
 public:
  explicit Hdf5File(const Path& path);
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;

  /// Returns the byte offset of a contiguous dataset. Throws unless it has this type and number of elements and is
  /// completely in the file.
  i64 offset_of(const std::string& dataset, DType dtype, i64 numel) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Path path_;
};

}  // namespace mcpp
