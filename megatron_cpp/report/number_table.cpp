#include "megatron_cpp/report/number_table.h"

#include <algorithm>
#include <limits>

namespace mcpp {

constexpr double kEmptyCell = std::numeric_limits<double>::quiet_NaN();

void NumberTable::add(double iteration, std::span<const std::pair<std::string, double>> row) {
  while (!iterations_.empty() && iterations_.back() >= iteration) iterations_.pop_back();
  iterations_.push_back(iteration);
  for (Column& column : columns_) {
    column.values.resize(rows() - 1, kEmptyCell);
    column.values.push_back(kEmptyCell);
  }
  for (const auto& [name, value] : row) {
    if (Column* column = find_or_add(name)) column->values.back() = value;
  }
}

void NumberTable::truncate_after(double iteration) {
  while (!iterations_.empty() && iterations_.back() > iteration) iterations_.pop_back();
  for (Column& column : columns_) column.values.resize(rows(), kEmptyCell);
}

std::span<const double> NumberTable::column(std::string_view name) const {
  const auto found = std::ranges::find(columns_, name, &Column::name);
  if (found == columns_.end()) return {};
  return found->values;
}

NumberTable::Column* NumberTable::find_or_add(const std::string& name) {
  const auto found = std::ranges::find(columns_, name, &Column::name);
  if (found != columns_.end()) return &*found;
  if (columns_.size() == kMaxColumns) return nullptr;
  return &columns_.emplace_back(Column{name, std::vector<double>(rows(), kEmptyCell)});
}

}  // namespace mcpp
