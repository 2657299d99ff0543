// A pipeline schedule is a value: for each rank the list of what it does, in order. It is built (here), completed with
// messages (lower.h), checked and timed (simulate.h), drawn (draw.h), and run by one engine that knows no schedule.
//
// The model is cut into stages 0 .. stages()-1; a rank holds chunks_per_rank of them. A microbatch goes forward through
// all stages and backward through all in reverse.
#pragma once
#include <compare>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

enum class ActionKind : u8 {
  Forward,
  Backward,        ///< both gradients
  BackwardInput,   ///< gradient of the activations only; the one of the weights comes later:
  BackwardWeight,  ///< frees what forward kept
  SendForward,     ///< output of this stage, to the rank of the next one
  RecvForward,     ///< input of this stage
  SendBackward,    ///< gradient of this stage's input, to the rank of the one before
  RecvBackward,    ///< gradient of this stage's output
  ReduceGrad,      ///< all gradients of this stage are there: sum them over the data-parallel ranks
};

struct Action {
  ActionKind kind;
  int stage;
  int microbatch = -1;  ///< none for ReduceGrad
  auto operator<=>(const Action&) const = default;
};

/// "forward of microbatch 3 in stage 1".
std::string describe(const Action& action);

/// Where stages are: Loop: stage s on rank s % ranks. V: the chunks of a rank go down and up again, so that the first
/// and the last stage share a rank.
enum class StagePlacement : u8 { Loop, V };

/// Which rank holds which stages of a pipeline.
struct StageMap {
  int ranks = 1;
  int chunks_per_rank = 1;
  StagePlacement placement = StagePlacement::Loop;

  int stages() const { return ranks * chunks_per_rank; }
  int rank_of(int stage) const {
    const int place = stage % ranks;
    return placement == StagePlacement::V && chunk_of(stage) % 2 == 1 ? ranks - 1 - place : place;
  }
  /// Which of its rank's chunks a stage is.
  int chunk_of(int stage) const { return stage / ranks; }
  int stage_of(int rank, int chunk) const {
    const bool back = placement == StagePlacement::V && chunk % 2 == 1;
    return chunk * ranks + (back ? ranks - 1 - rank : rank);
  }
};

struct Schedule : StageMap {
  int microbatches = 1;
  std::vector<std::vector<Action>> per_rank;
  bool forward_only = false;  ///< evaluation: there is no backward, and nothing is kept for it

  /// Actions of a rank that compute: forward and backward passes of a microbatch through a stage.
  i64 passes(int rank) const;
};

constexpr bool computes(ActionKind k) {
  return k <= ActionKind::BackwardWeight;
}
constexpr bool computes_input_grad(ActionKind k) {
  return k == ActionKind::Backward || k == ActionKind::BackwardInput;
}
constexpr bool computes_weight_grad(ActionKind k) {
  return k == ActionKind::Backward || k == ActionKind::BackwardWeight;
}

// The builders hold for any number of ranks and microbatches >= 1, unless they say otherwise; what they cannot build is
// a BadInput error with the texts of schedule_conflicts() (schedule_kind.h, where each has its row). Each microbatch's
// weight gradients are added in rising order, so that all schedules give the same bits.

/// All forwards, then all backwards (Huang et al., "GPipe", 2019). Keeps every microbatch in memory.
Schedule gpipe(int ranks, int microbatches);
/// As soon as the pipeline is full, one forward and one backward in turn (Narayanan et al., PipeDream-Flush, 2021).
/// Keeps at most `ranks` microbatches.
Schedule one_f_one_b(int ranks, int microbatches);
/// 1F1B with several chunks per rank in Megatron-LM's order (Narayanan et al., "Efficient Large-Scale Language Model
/// Training on GPU Clusters Using Megatron-LM", 2021). ranks >= 2, chunks >= 2, microbatches a multiple of ranks.
Schedule interleaved_1f1b(int ranks, int microbatches, int chunks);
/// 1F1B with the weight gradients of rank r put off by r microbatches: a third of the bubble with the same memory (Qi
/// et al., "Zero Bubble Pipeline Parallelism", 2023).
Schedule zb_h1(int ranks, int microbatches);
/// Two chunks per rank, placed in a V: no bubble when F, B and W take the same time, with the memory of 1F1B (Qi et
/// al., "Pipeline Parallelism with Controllable Memory", 2024).
Schedule zb_v(int ranks, int microbatches);

/// The forwards of a schedule that is not lowered yet, in its order.
Schedule forwards_of(const Schedule& schedule);

/// The first `microbatches` one after another, each through all stages and back, then the others in the order of the
/// schedule, which is not lowered yet. With the same bits; while only one rank computes, no two wait for each other.
Schedule in_turn_at_first(const Schedule& schedule, int microbatches);

}  // namespace mcpp
