// Numbers of iterations, by named column.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mcpp {

/// A row for each iteration that something is known of, in rising order; what a row does not have is NaN.
class NumberTable {
 public:
  struct Column {
    std::string name;
    std::vector<double> values;  ///< one for each row
  };
  /// More columns than this are not kept: no run has them, and a file that is none might.
  static constexpr std::size_t kMostColumns = 256;

  /// A row that is not after all others takes the place of those from its iteration on, which were computed anew.
  void add(double iteration, std::span<const std::pair<std::string, double>> row);
  /// Drops the rows of later iterations.
  void keep_up_to(double iteration);

  std::size_t rows() const { return iterations_.size(); }
  const std::vector<double>& iterations() const { return iterations_; }
  const std::vector<Column>& columns() const { return columns_; }
  /// Nothing where there is no such column.
  std::span<const double> column(std::string_view name) const;

 private:
  Column* find_or_add(const std::string& name);

  std::vector<double> iterations_;
  std::vector<Column> columns_;
};

}  // namespace mcpp
