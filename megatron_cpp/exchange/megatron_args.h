// Arguments of Megatron-LM, which its checkpoints contain, as a configuration.
#pragma once
#include <string>

#include "checkpoint/format/pickle.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Returns the configuration of a run with these arguments, an argparse.Namespace: the model, AdamW and its schedule,
/// batch sizes, length and precision of training. `source` names the checkpoint in messages. Throws BadInput, naming
/// the argument, for options that this program or the import does not have, such as experts.
Config config_of_megatron_args(const PickleValue& arguments, const std::string& source);

}  // namespace mcpp
