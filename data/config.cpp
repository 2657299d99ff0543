#include "data/config.h"

#include "base/strings.h"

namespace mcpp {

std::vector<std::string> DataConfig::conflicts() const {
  std::vector<std::string> found;
  const bool separate = !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty();
  if (!data_path.empty() && separate) {
    found.push_back("data.data_path: cannot be combined with train_data_path, valid_data_path or test_data_path");
  }
  if (separate && train_data_path.empty()) {
    found.push_back("data.train_data_path: is required if valid_data_path or test_data_path is set");
  }
  if (separate && split != DataConfig().split) {
    found.push_back("data.split: applies to data_path only, not to train_data_path");
  }
  if (!mock_data) return found;
  if (!data_path.empty() || separate) {
    found.push_back(
        "data.mock_data: cannot be combined with data_path, train_data_path, valid_data_path or "
        "test_data_path; clear them, for example with --data.data_path=");
  }
  if (multiple_validation_sets)
    found.push_back("data.multiple_validation_sets: cannot be combined with mock_data, which is a single dataset");
  if (full_validation) found.push_back("data.full_validation: cannot be combined with mock_data, which is endless");
  return found;
}

}  // namespace mcpp
