// Checkpoints of Megatron Core as tensors with one name per layer.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load/tensor_files.h"
#include "checkpoint/load/torch_files.h"

namespace mcpp {

/// Tensors of a distributed checkpoint of Megatron Core (torch_dist), with these changes:
///  - Tensors that stack the layers, "decoder.layers.mlp.linear_fc1.weight" [layers, ...], become one tensor per layer,
///    "decoder.layers.0.mlp.linear_fc1.weight".
///  - Norms that are fused with the next projection, such as "mlp.linear_fc1.layer_norm_weight", get separate names.
///  - Separate gates and up projections (singleton_local_shards), "mlp.linear_fc1.weight_w" and "weight_v", are named
///    "mlp.linear_fc1.gate.weight" and "mlp.linear_fc1.up.weight".
///  - States of the optimizer, "optimizer.state.exp_avg.<tensor>", also below "chained_1.", are named as in PyTorch,
///    "optimizer.state.<tensor>.exp_avg". fp32 weights are the state "master".
class MegatronFiles final : public TensorFiles {
 public:
  explicit MegatronFiles(std::unique_ptr<TensorFiles> files);

  const std::vector<FileTensor>& tensors() const override { return tensors_; }
  Tensor read(std::string_view name, const Box& part, DType dtype, Device& device) override;
  bool contains(std::string_view name) const override { return files_->contains(name); }
  std::optional<double> number(std::string_view name) override { return files_->number(name); }
  std::string source() const override { return files_->source(); }

 private:
  /// Tensor of the files, or one of its layers.
  struct Origin {
    std::string name;
    i64 layer = -1;  ///< index along the first axis; -1: the whole tensor
  };
  void add(const FileTensor& tensor);

  std::unique_ptr<TensorFiles> files_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, Origin, std::less<>> origins_;
};

/// Weights of a legacy checkpoint of Megatron Core: mp_rank_XX/model_optim_rng.pt, or mp_rank_XX_YYY with pipeline
/// parallelism, where XX is the tensor-parallel rank and YYY the pipeline rank. The shards are merged, and the layers
/// numbered over all pipeline ranks.
class MegatronRanks final : public TensorFiles {
 public:
  /// `folder` has the folders of the ranks. Throws BadInput if ranks are missing.
  explicit MegatronRanks(const Path& folder);

  /// Returns true if the folder has folders of ranks.
  static bool is_in(const Path& folder);

  const std::vector<FileTensor>& tensors() const override { return tensors_; }
  Tensor read(std::string_view name, const Box& part, DType dtype, Device& device) override;
  bool contains(std::string_view name) const override { return stages_[0][0]->contains(name); }
  std::optional<double> number(std::string_view name) override;
  std::string source() const override { return folder_.string(); }

  /// Returns the file of the first rank.
  const TorchFile& first_file() const { return stages_[0][0]->files()[0]; }

 private:
  /// Tensor of one pipeline rank, and how its tensor-parallel ranks shard it.
  struct Origin {
    std::size_t stage = 0;
    std::string name;
    int axis = -1;                ///< axis that is sharded; -1: replicated
    bool is_interleaved = false;  ///< each shard has a part of the gates and then a part of the up projections
  };
  void add_stage(std::size_t stage, i64 first_layer);
  void add(std::size_t stage, const FileTensor& tensor, const std::string& global_name);

  Path folder_;
  std::vector<std::vector<std::unique_ptr<TorchFiles>>> stages_;  // by pipeline rank and tensor-parallel rank
  bool is_gated_ = false;
  std::vector<FileTensor> tensors_;
  std::map<std::string, Origin, std::less<>> origins_;
};

}  // namespace mcpp
