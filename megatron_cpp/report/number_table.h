// Table of numbers by iteration with named columns.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mcpp {

/// Table with one row per recorded iteration, in ascending order. Missing values are NaN.
class NumberTable {
 public:
  struct Column {
    std::string name;
    std::vector<double> values;  ///< one per row
  };
  /// Maximum number of columns; real runs have fewer, other files may not.
  static constexpr std::size_t kMaxColumns = 256;

  /// Adds a row. If its iteration is not the latest, first removes the rows from it on, which were recomputed.
  void add(double iteration, std::span<const std::pair<std::string, double>> row);
  /// Removes the rows of later iterations.
  void truncate_after(double iteration);

  std::size_t rows() const { return iterations_.size(); }
  const std::vector<double>& iterations() const { return iterations_; }
  const std::vector<Column>& columns() const { return columns_; }
  /// Returns a column; empty if it does not exist.
  std::span<const double> column(std::string_view name) const;

 private:
  Column* find_or_add(const std::string& name);

  std::vector<double> iterations_;
  std::vector<Column> columns_;
};

}  // namespace mcpp
