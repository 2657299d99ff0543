#include "data/config.h"

#include "base/strings.h"

namespace mcpp {

std::vector<std::string> DataConfig::conflicts() const {
  std::vector<std::string> errors;
  const bool separate = !train_data_path.empty() || !valid_data_path.empty() || !test_data_path.empty();
  if (!data_path.empty() && separate) {
    errors.push_back("data.data_path: cannot be combined with train_data_path, valid_data_path or test_data_path");
  }
  if (separate && train_data_path.empty()) {
    errors.push_back("data.train_data_path: is required if valid_data_path or test_data_path is set");
  }
  if (separate && split != DataConfig().split) {
    errors.push_back("data.split: applies to data_path only, not to train_data_path");
  }
  if (fim_rate > 0 && !mock_data && tokenizer_model.empty()) {
    errors.push_back(
        "data.tokenizer_model: is missing; data.fim_rate rearranges documents as text, so set it to the tokenizer of "
        "the datasets");
  }
  if (!mock_data) return errors;
  if (fim_rate > 0) {
    errors.push_back(
        "data.fim_rate: cannot be combined with mock_data, whose random tokens are not text; remove one of them");
  }
  if (!data_path.empty() || separate) {
    errors.push_back(
        "data.mock_data: cannot be combined with data_path, train_data_path, valid_data_path or "
        "test_data_path; clear them, for example with --data.data_path=");
  }
  if (multiple_validation_sets)
    errors.push_back("data.multiple_validation_sets: cannot be combined with mock_data, which is a single dataset");
  if (full_validation) errors.push_back("data.full_validation: cannot be combined with mock_data, which is endless");
  return errors;
}

}  // namespace mcpp
