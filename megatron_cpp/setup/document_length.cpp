#include "megatron_cpp/setup/document_length.h"

#include "data/read/blend.h"
#include "data/read/dataset_info.h"

namespace mcpp {

double mean_document_tokens(const DataConfig& data) {
  const bool has_own = !data.train_data_path.empty();
  const std::vector<std::string>& paths = has_own ? data.train_data_path : data.data_path;
  if (data.mock_data || paths.empty()) return 0;
  const BlendList blend = parse_blend_list(paths, has_own ? "data.train_data_path" : "data.data_path");
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
    const std::optional<DatasetInfo> info = read_dataset_info(blend.prefixes[i]);
    if (!info || info->documents <= 0) return 0;
    const auto tokens = static_cast<double>(info->tokens);
    const double weight = blend.weights.empty() ? tokens : blend.weights[i];
    sum += weight * tokens / static_cast<double>(info->documents);
    weights += weight;
  }
  return weights > 0 ? sum / weights : 0;
}

}  // namespace mcpp
