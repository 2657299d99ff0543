#include "model/chunk_params.h"

#include <algorithm>
#include <numeric>

#include "model/gpt_model.h"
#include "model/meta_model.h"
#include "model/transformer_layer.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/dp/power_sgd.h"

namespace mcpp {
namespace {

ParamTrace describe(const Param& param) {
  return {.name = param.name,
          .shape = param.box.shape,
          .grid = param.placement.grid,
          .is_matrix = !param.matrices.empty(),
          .has_partial_slices = param.has_partial_slices()};
}

/// Unit of the first layer of a chunk, or of the output part if it has no layers (GPTModel::kFirstLayerUnit).
constexpr int kFirstLayer = 2;

}  // namespace

const std::vector<ParamTrace>& ChunkParams::layer(const ActivationSetup& setup, std::size_t kind) {
  const auto [it, is_new] = layers_.try_emplace({key_of(setup), kind});
  if (!is_new) return it->second;
  MetaModelContext meta(setup);
  const ModelContext context = meta.context(config_);
  RotaryTable rotary(context);
  const auto index = std::ranges::find(blocks_.kind_of_layer, kind) - blocks_.kind_of_layer.begin();
  TransformerLayer layer(static_cast<i64>(index), blocks_.kinds[kind], context, rotary);
  layer.visit([&](const Param& param) { it->second.push_back(describe(param)); });
  return it->second;
}

const std::vector<std::vector<ChunkParam>>& ChunkParams::rest(const ActivationSetup& setup,
                                                              const std::vector<StageContents>& chunks,
                                                              int final_norm_rank) {
  const auto [it, is_new] = rests_.try_emplace({key_of(setup), chunks, final_norm_rank});
  if (!is_new) return it->second;
  MetaModelContext meta(setup);
  ModelContext context = meta.context(config_);
  context.final_norm_rank = final_norm_rank;
  for (const auto& chunk : make_chunks(context, chunks)) {
    std::vector<ChunkParam>& params = it->second.emplace_back();
    chunk->visit([&](const Param& param, int unit) { params.push_back({describe(param), unit}); });
  }
  return it->second;
}

std::vector<std::vector<ChunkParam>> ChunkParams::get(const ActivationSetup& setup, const RankMemorySpec& share) {
  std::vector<StageContents> contents, without_layers;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk) {
    contents.push_back(share.contents(chunk));
    without_layers.push_back(contents.back());
    without_layers.back().first_layer = without_layers.back().end_layer = 0;
  }
  const auto final_norm = std::ranges::find_if(share.stages, &StageContents::has_final_norm);
  const int final_norm_rank = share.schedule.rank_of(static_cast<int>(final_norm - share.stages.begin()));
  std::vector<std::vector<ChunkParam>> all = rest(setup, without_layers, final_norm_rank);
  for (std::size_t chunk = 0; chunk < all.size(); ++chunk) {
    std::vector<ChunkParam>& params = all[chunk];
    const std::vector<LayerGroup> groups = layer_groups(setup.recompute, contents[chunk].num_layers());
    const auto after = std::ranges::find_if(params, [](const ChunkParam& p) { return p.unit >= kFirstLayer; });
    std::for_each(after, params.end(), [&](ChunkParam& p) { p.unit += static_cast<int>(groups.size()); });
    std::vector<ChunkParam> of_layers;
    i64 next = contents[chunk].first_layer;
    int unit = kFirstLayer;
    for (const LayerGroup& group : groups) {  // layers that are recomputed together are one unit
      for (const i64 end = next + group.layers; next < end; ++next)
        for (const ParamTrace& param : layer(setup, blocks_.kind_of_layer[static_cast<std::size_t>(next)]))
          of_layers.push_back({param, unit});
      ++unit;
    }
    params.insert(after, of_layers.begin(), of_layers.end());
  }
  return all;
}

namespace {

ChunkParameters count_chunk(const std::vector<ChunkParam>& chunk, const RankMemorySpec& share, GridKind grid) {
  std::vector<ParamMeta> params;
  std::vector<i64> matrices;  // for each parameter, its elements in linear layers
  ChunkParameters counts;
  const i64 rank = share.layout.formats.power_sgd_rank;
  for (const auto& [param, unit] : chunk) {
    if (param.grid != grid) continue;
    const i64 elements = numel(param.shape);
    matrices.push_back(param.is_matrix ? elements : 0);
    params.push_back({"", elements, unit});
    counts.all += elements;
    counts.largest = std::max(counts.largest, elements);
    counts.matrices += matrices.back();
    if (unit == params.front().unit) counts.first += elements;
    if (param.is_matrix && !param.has_partial_slices && is_low_rank(param.shape, rank))
      counts.low_rank += elements + param.shape.back() * rank;
  }
  const i64 shards = grid == GridKind::Dense ? share.shards() : share.expert_shards();
  const i64 bucket_limit = bucket_close_threshold(share.layout.zero_stage, share.layout.bucket_size,
                                                  share.layout.formats.has_quantized_comm());
  const BufferPlan plan = plan_buffer(params, static_cast<int>(shards), bucket_limit);
  for (const Bucket& bucket : plan.buckets) {
    counts.buckets.push_back(bucket.size());
    counts.units.push_back(bucket.first_unit);
    const auto first = matrices.begin();
    counts.matrices_of_buckets.push_back(std::accumulate(first + static_cast<std::ptrdiff_t>(bucket.first_param),
                                                         first + static_cast<std::ptrdiff_t>(bucket.end_param),
                                                         i64{0}));
  }
  return counts;
}

}  // namespace

RankParameters rank_parameters(ChunkParams& params, const ActivationSetup& setup, const RankMemorySpec& share) {
  RankParameters counts;
  for (const std::vector<ChunkParam>& chunk : params.get(setup, share)) {
    counts.dense.push_back(count_chunk(chunk, share, GridKind::Dense));
    if (params.has_experts()) counts.experts.push_back(count_chunk(chunk, share, GridKind::Expert));
  }
  return counts;
}

RankParameters rank_parameters(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share) {
  ChunkParams params(config);
  return rank_parameters(params, setup, share);
}

}  // namespace mcpp
