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
    found.push_back("data.train_data_path: is needed when valid_data_path or test_data_path is given");
  }
  if (separate && split != DataConfig().split) {
    found.push_back("data.split: only read with data_path, not with train_data_path");
  }
  if (!mock_data) return found;
  if (!data_path.empty() || separate) {
    found.push_back(
        "data.mock_data: cannot be combined with data_path, train_data_path, valid_data_path or "
        "test_data_path; empty these, as with --data.data_path=");
  }
  if (multiple_validation_sets) found.push_back("data.multiple_validation_sets: mock_data is one text, not several");
  if (full_validation) found.push_back("data.full_validation: mock_data has no end that it could read up to");
  return found;
}

}  // namespace mcpp
