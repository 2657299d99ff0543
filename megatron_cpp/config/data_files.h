// Files that list the datasets of a run, as Megatron-LM's --data-args-path and --per-split-data-args-path.
#pragma once
#include <string_view>

#include "data/config.h"
#include "megatron_cpp/config/settings.h"

namespace mcpp {

/// Sets data paths to those that the files of data.data_args_path and data.per_split_data_args_path list, and clears
/// these two keys, so that the resulting configuration does not depend on the files. Reports to `reader` files that
/// cannot be read, and keys that `reader` has read although a file replaces them.
void read_data_files(DataConfig& data, SettingsReader& reader, std::string_view default_location);

}  // namespace mcpp
