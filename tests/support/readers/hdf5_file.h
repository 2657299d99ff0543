// Golden values: datasets and attributes of an HDF5 file, with number types converted by HDF5.
#pragma once
#include <hdf5.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "base/types.h"

namespace mcpp::test {

template <class T>
struct Hdf5Array {
  std::vector<i64> shape;
  std::vector<T> values;  // row-major
};

class Hdf5File {
 public:
  explicit Hdf5File(const std::filesystem::path& path) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    file_ = ok(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open " + path.string());
  }
  ~Hdf5File() { H5Fclose(file_); }
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;

  /// Returns true if `path`, below the root, is a group or dataset. Checks every prefix of the path, as HDF5 requires.
  bool has(const std::string& path) const {
    for (std::size_t end = path.find('/');; end = path.find('/', end + 1)) {
      if (H5Lexists(file_, path.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
      if (end == std::string::npos) return true;
    }
  }

  /// Returns the names in a group, sorted.
  std::vector<std::string> names(const std::string& group) const {
    const hid_t id = ok(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), "open group " + group);
    H5G_info_t info;
    H5Gget_info(id, &info);
    std::vector<std::string> result;
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      char name[512];
      H5Lget_name_by_idx(id, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
      result.emplace_back(name);
    }
    H5Gclose(id);
    return result;
  }

  /// Reads a dataset. T is a number type, to which HDF5 converts from the type in the file.
  template <class T>
  Hdf5Array<T> read(const std::string& path) const {
    const hid_t id = ok(H5Dopen2(file_, path.c_str(), H5P_DEFAULT), "open dataset " + path);
    const hid_t space = H5Dget_space(id);
    Hdf5Array<T> result = sized<T>(space);
    ok(H5Dread(id, native<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, result.values.data()), "read " + path);
    H5Sclose(space);
    H5Dclose(id);
    return result;
  }

  bool has_attribute(const std::string& object, const std::string& name) const {
    return H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
  }

  template <class T>
  std::vector<T> attribute_values(const std::string& object, const std::string& name) const {
    const Attribute attribute(file_, object, name);
    std::vector<T> values = sized<T>(attribute.space).values;
    ok(H5Aread(attribute.id, native<T>(), values.data()), "read attribute " + name);
    return values;
  }
  template <class T>
  T attribute(const std::string& object, const std::string& name) const {
    return attribute_values<T>(object, name).at(0);
  }

  /// Reads an attribute that holds strings of variable length.
  std::vector<std::string> attribute_strings(const std::string& object, const std::string& name) const {
    const Attribute attribute(file_, object, name);
    std::vector<char*> raw(sized<i32>(attribute.space).values.size());
    const hid_t type = H5Aget_type(attribute.id);
    ok(H5Aread(attribute.id, type, raw.data()), "read attribute " + name);
    std::vector<std::string> values(raw.begin(), raw.end());
    H5Dvlen_reclaim(type, attribute.space, H5P_DEFAULT, raw.data());
    H5Tclose(type);
    return values;
  }
  std::string attribute_string(const std::string& object, const std::string& name) const {
    return attribute_strings(object, name).at(0);
  }

 private:
  template <class Id>
  static Id ok(Id id, const std::string& what) {
    if (id < 0) throw std::runtime_error("hdf5: cannot " + what);
    return id;
  }

  struct Attribute {
    Attribute(hid_t file, const std::string& object, const std::string& name)
        : id(ok(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), "open " + name)),
          space(H5Aget_space(id)) {}
    ~Attribute() { H5Sclose(space), H5Aclose(id); }
    Attribute(const Attribute&) = delete;
    Attribute& operator=(const Attribute&) = delete;
    hid_t id, space;
  };

  template <class T>
  static hid_t native() {
    if constexpr (std::is_same_v<T, double>)
      return H5T_NATIVE_DOUBLE;
    else if constexpr (std::is_same_v<T, float>)
      return H5T_NATIVE_FLOAT;
    else if constexpr (std::is_same_v<T, i32>)
      return H5T_NATIVE_INT32;
    else if constexpr (std::is_same_v<T, u32>)
      return H5T_NATIVE_UINT32;
    else if constexpr (std::is_same_v<T, i64>)
      return H5T_NATIVE_INT64;
    else
      static_assert(sizeof(T) == 0, "no HDF5 type for T");
  }

  template <class T>
  static Hdf5Array<T> sized(hid_t space) {
    const int rank = H5Sget_simple_extent_ndims(space);
    std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
    H5Sget_simple_extent_dims(space, dims.data(), nullptr);
    Hdf5Array<T> result;
    std::size_t count = 1;
    for (const hsize_t dim : dims) result.shape.push_back(static_cast<i64>(dim)), count *= dim;
    result.values.resize(count);
    return result;
  }

  hid_t file_ = -1;
};

}  // namespace mcpp::test
