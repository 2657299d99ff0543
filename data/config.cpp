#include "data/config.h"

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
  return found;
}

}  // namespace mcpp
