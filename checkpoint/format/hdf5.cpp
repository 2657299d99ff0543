#include "checkpoint/format/hdf5.h"

#include <hdf5.h>

#include <mutex>
#include <set>

#include "base/check.h"

namespace mcpp {
namespace {

/// Held around every use of the library. HDF5 has global state and is not always built thread-safe, so the lock is
/// global too. The first user also disables flushing at exit, which can crash after a failed write.
std::unique_lock<std::mutex> lock_hdf5() {
  static std::mutex mutex;
  std::unique_lock lock(mutex);
  static const bool prepared = H5dont_atexit() >= 0;
  static_cast<void>(prepared);  // negative if already disabled by other code
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  return lock;
}

/// Returns the innermost entry of the error stack: the root cause.
std::string library_reason() {
  std::string reason = "unknown reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* entry, void* text) -> herr_t {
        if (depth == 0 && entry->desc) *static_cast<std::string*>(text) = entry->desc;
        return 0;
      },
      &reason);
  return reason;
}

/// Returns `result`; throws if it is negative, which indicates a failure.
template <class T, class... What>
T checked(T result, const What&... what) {
  if (result < 0) fail(ExitCode::BadInput, what..., ": HDF5 reports: ", library_reason());
  return result;
}

/// RAII wrapper of a library identifier and the function that closes it.
class Handle {
 public:
  Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), close_(closer) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  operator hid_t() const { return id_; }

  template <class... What>
  void close(const What&... what) {
    checked(close_(std::exchange(id_, -1)), what...);
  }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

/// 16-bit float: sign, `exponent` bits, fraction. H5T_IEEE_F16LE requires HDF5 1.14.4.
Handle float16_type(std::size_t exponent) {
  Handle type(checked(H5Tcopy(H5T_IEEE_F32LE), "16-bit type"), H5Tclose);
  const std::size_t fraction = 15 - exponent;
  checked(H5Tset_fields(type, 15, fraction, exponent, 0, fraction), "16-bit type");
  checked(H5Tset_precision(type, 16), "16-bit type");
  checked(H5Tset_size(type, 2), "16-bit type");
  checked(H5Tset_ebias(type, (std::size_t{1} << (exponent - 1)) - 1), "16-bit type");
  return type;
}

Handle type_of(DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return float16_type(8);
    case DType::F16:
      return float16_type(5);
    case DType::F32:
      return {checked(H5Tcopy(H5T_IEEE_F32LE), "type"), H5Tclose};
    case DType::F64:
      return {checked(H5Tcopy(H5T_IEEE_F64LE), "type"), H5Tclose};
    case DType::I32:
      return {checked(H5Tcopy(H5T_STD_I32LE), "type"), H5Tclose};
    case DType::I64:
      return {checked(H5Tcopy(H5T_STD_I64LE), "type"), H5Tclose};
  }
  fail(ExitCode::Internal, "unknown element type");
}

Handle space_of(const Shape& shape) {
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  const hid_t id =
      sizes.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
  return {checked(id, "dataspace of ", shape), H5Sclose};
}

/// Newest format, whose metadata have checksums; large objects aligned to pages; no HDF5 file locks, which parallel
/// file systems reject.
Handle file_access() {
  constexpr hsize_t kPage = 4096;
  Handle access(checked(H5Pcreate(H5P_FILE_ACCESS), "file access"), H5Pclose);
  checked(H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), "file access");
  checked(H5Pset_alignment(access, kPage, kPage), "file access");
  checked(H5Pset_file_locking(access, false, true), "file access");
  return access;
}

void write_attributes(const Handle& dataset, const Hdf5Dataset& description) {
  for (const auto& [name, values] : description.attributes) {
    if (values.empty()) continue;  // the sizes of a scalar
    const Handle space = space_of({static_cast<i64>(values.size())});
    Handle attribute(
        checked(H5Acreate2(dataset, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), "attribute ", name),
        H5Aclose);
    checked(H5Awrite(attribute, H5T_NATIVE_INT64, values.data()), "attribute ", name);
    attribute.close("attribute ", name);
  }
}

/// Creation properties without timestamps, so that equal content gives equal files.
Handle creation_properties(hid_t kind, const std::string& name) {
  Handle creation(checked(H5Pcreate(kind), name), H5Pclose);
  checked(H5Pset_obj_track_times(creation, false), name);
  return creation;
}

/// Creates the parent groups of `path` that are not yet in `made_groups`.
void create_groups(const Handle& file, const Handle& creation, const std::string& path,
                   std::set<std::string>& made_groups) {
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string name = path.substr(0, end);
    if (!made_groups.insert(name).second) continue;
    Handle group(checked(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), name), H5Gclose);
    group.close(name);
  }
}

i64 create_dataset(const Handle& file, const Handle& creation, const Hdf5Dataset& description) {
  const std::string& path = description.path;
  const Handle type = type_of(description.dtype), space = space_of(description.shape);
  Handle dataset(checked(H5Dcreate2(file, path.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT), path),
                 H5Dclose);
  write_attributes(dataset, description);
  const haddr_t offset = H5Dget_offset(dataset);
  check_input(offset != HADDR_UNDEF, path, ": HDF5 did not allocate it in the file: ", library_reason());
  dataset.close(path);
  return static_cast<i64>(offset);
}

}  // namespace

std::vector<i64> create_hdf5(const Path& path, std::span<const Hdf5Dataset> datasets) {
  const auto lock = lock_hdf5();
  const std::string name = path.string();
  const Handle access = file_access();
  const Handle creation = creation_properties(H5P_DATASET_CREATE, name),
               groups = creation_properties(H5P_GROUP_CREATE, name), root = creation_properties(H5P_FILE_CREATE, name);
  checked(H5Pset_layout(creation, H5D_CONTIGUOUS), name);
  checked(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY), name);
  checked(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER), name);

  Handle file(checked(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, root, access), "cannot create ", name), H5Fclose);
  std::set<std::string> made_groups;
  std::vector<i64> offsets;
  offsets.reserve(datasets.size());
  for (const Hdf5Dataset& description : datasets) {
    create_groups(file, groups, description.path, made_groups);
    offsets.push_back(create_dataset(file, creation, description));
  }
  file.close("cannot write ", name);
  return offsets;
}

struct Hdf5File::Impl {
  Handle file;
};

Hdf5File::Hdf5File(const Path& path) : path_(path) {
  const auto lock = lock_hdf5();
  const Handle access = file_access();
  impl_ = std::make_unique<Impl>(
      Impl{Handle(checked(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), "cannot open ", path.string()), H5Fclose)});
}

Hdf5File::~Hdf5File() {
  const auto lock = lock_hdf5();
  impl_.reset();
}

Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;

i64 Hdf5File::offset_of(const std::string& name, DType dtype, i64 numel) const {
  const auto lock = lock_hdf5();
  const std::string where = path_.string() + ": " + name;
  const Handle dataset(checked(H5Dopen2(impl_->file, name.c_str(), H5P_DEFAULT), where), H5Dclose);
  const Handle stored(checked(H5Dget_type(dataset), where), H5Tclose), wanted = type_of(dtype);
  check_input(checked(H5Tequal(stored, wanted), where) > 0, where, " does not hold ", name_of(dtype));
  const Handle space(checked(H5Dget_space(dataset), where), H5Sclose);
  const hssize_t count = checked(H5Sget_simple_extent_npoints(space), where);
  check_input(count == numel, where, " has ", count, " elements; the manifest states ", numel);
  const Handle creation(checked(H5Dget_create_plist(dataset), where), H5Pclose);
  const haddr_t offset = H5Dget_offset(dataset);
  check_input(
      H5Pget_layout(creation) == H5D_CONTIGUOUS && offset != HADDR_UNDEF && H5Pget_external_count(creation) == 0, where,
      " is not stored in one chunk");
  const u64 size = static_cast<u64>(numel * size_of(dtype)), end = std::filesystem::file_size(path_);
  check_input(size <= end && offset <= end - size, where, " reaches beyond the end of the file");
  return static_cast<i64>(offset);
}

}  // namespace mcpp
