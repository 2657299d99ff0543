// The little of HDF5 that checkpoints need: a file of contiguous datasets, laid out by the library and then written
// and read at their byte offsets with plain I/O. That is faster than H5Dwrite, streams, sums checksums on the way, and
// keeps a full disk away from the library, which does not survive it. Files stay ordinary HDF5: h5dump and h5py read
// them. bf16 is stored as a 16-bit IEEE-like float of 8 exponent and 7 fraction bits.
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
  std::string path;  ///< "group/.../name"; groups are made as needed
  DType dtype = DType::F32;
  Shape shape;
  std::vector<std::pair<std::string, Shape>> attributes;  ///< lists of integers
};

/// Creates `path` with these datasets, each with at least one element, all allocated and not yet written.
/// Returns the byte offset of each in the file. Throws BadInput with the library's reason.
std::vector<i64> create_hdf5(const Path& path, std::span<const Hdf5Dataset> datasets);

/// A file opened for reading.
class Hdf5File {
 public:
  explicit Hdf5File(const Path& path);
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;

  /// The byte offset of a contiguous dataset, which must have this type and number of elements, all in the file.
  i64 offset_of(const std::string& dataset, DType dtype, i64 numel) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Path path_;
};

}  // namespace mcpp
