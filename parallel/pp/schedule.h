// Pipeline schedules as data: an ordered list of actions per rank. A schedule is built by the functions below, lowered
// to include messages (schedule.h), validated and timed (simulate.h), drawn (draw.h), and run by an engine that is
// independent of the kind of schedule.
//
// The model is split into stages 0 .. stages()-1; a rank holds chunks_per_rank of them. A microbatch passes forward
// through all stages, and then backward through all stages in reverse order.
#pragma once
#include <compare>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcpp {

enum class ActionKind : u8 {
  Forward,
  Backward,        ///< gradients of the activations and of the weights
  BackwardInput,   ///< gradient of the activations only; BackwardWeight follows later
  BackwardWeight,  ///< weight gradients; releases the tensors that forward saved
  SendForward,     ///< output of this stage, to the next stage's rank
  RecvForward,     ///< input of this stage
  SendBackward,    ///< gradient of this stage's input, to the previous stage's rank
  RecvBackward,    ///< gradient of this stage's output
  ReduceGrad,      ///< reduction of this stage's complete gradients over the data-parallel ranks
};

struct Action {
  ActionKind kind;
  int stage;
  int microbatch = -1;  ///< unused by ReduceGrad
  auto operator<=>(const Action&) const = default;
};

/// Describes an action, e.g. "forward of microbatch 3 in stage 1".
std::string describe(const Action& action);

/// Placement of stages. Loop: stage s is on rank s % ranks. V: the direction alternates between chunks, so that the
/// first and the last stage share a rank.
enum class StagePlacement : u8 { Loop, V };

/// Mapping between stages and ranks of a pipeline.
struct StageMap {
  int ranks = 1;
  int chunks_per_rank = 1;
  StagePlacement placement = StagePlacement::Loop;

  int stages() const { return ranks * chunks_per_rank; }
  int rank_of(int stage) const {
    const int position = stage % ranks;
    return placement == StagePlacement::V && chunk_of(stage) % 2 == 1 ? ranks - 1 - position : position;
  }
  /// Returns the index of a stage among the chunks of its rank.
  int chunk_of(int stage) const { return stage / ranks; }
  int stage_of(int rank, int chunk) const {
    const bool is_reversed = placement == StagePlacement::V && chunk % 2 == 1;
    return chunk * ranks + (is_reversed ? ranks - 1 - rank : rank);
  }
};

struct Schedule : StageMap {
  int microbatches = 1;
  std::vector<std::vector<Action>> per_rank;
  bool forward_only = false;  ///< evaluation: no backward passes; nothing is saved for them
  /// Ranks that run a forward pass and an adjacent backward pass together (is_pass_pair()); empty if none does.
  std::vector<bool> combines_passes = {};

  /// Returns the number of compute actions of a rank: forward and backward passes of a microbatch through a stage.
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

// Schedule builders. They accept any number of ranks and microbatches >= 1 unless stated otherwise, and throw BadInput
// with the messages of schedule_conflicts() (schedule_kind.h). The weight gradients of each stage are accumulated in
// microbatch order, so all schedules are bitwise identical.

/// Runs all forwards, then all backwards (Huang et al., "GPipe", 2019). Keeps every microbatch in memory.
Schedule gpipe(int ranks, int microbatches);
/// Alternates one forward and one backward once the pipeline is full (Narayanan et al., PipeDream-Flush, 2021). Keeps
/// at most `ranks` microbatches in memory.
Schedule one_f_one_b(int ranks, int microbatches);
/// Runs 1F1B with several chunks per rank in Megatron-LM's order (Narayanan et al., "Efficient Large-Scale Language
/// Model Training on GPU Clusters Using Megatron-LM", 2021). Requires ranks >= 2, chunks >= 2 and a multiple of `ranks`
/// microbatches.
Schedule interleaved_1f1b(int ranks, int microbatches, int chunks);
/// Runs 1F1B with the weight gradients of rank r delayed by r microbatches, which reduces the bubble to a third with
/// the same memory (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
Schedule zb_h1(int ranks, int microbatches);
/// Places two chunks per rank in a V. There is no bubble if F, B and W take equal time, and it needs as much memory as
/// 1F1B (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
Schedule zb_v(int ranks, int microbatches);
/// Places two chunks per rank in a V and alternates forwards of one chunk with backwards of the other, so that the
/// communication of each can overlap with the computation of the other. Needs memory for up to ranks + 1/2
/// microbatches. It is DualPipe (DeepSeek-V3 report, 2024) on half of the ranks, without the second copy of the weights
/// (DeepSeek-AI, "DualPipeV", 2025).
Schedule dualpipe_v(int ranks, int microbatches);

/// Returns the forwards of a schedule that is not lowered, in order.
Schedule forward_schedule(const Schedule& schedule);

// Pairs of passes that run together, so that each hides the communication of the other (PassInterleaver).

/// Returns true if a rank runs actions i and i + 1 of its list together: one is a forward pass and the other computes
/// an input gradient of a different microbatch. If three such actions are adjacent, the first two are a pair. Both
/// passes start when the inputs of both have arrived, and their results are sent after both.
bool is_pass_pair(const Schedule& schedule, int rank, std::size_t i);
/// Returns the schedule with pairs. `schedule` must not be lowered and must have no pairs.
///  - Ranks of 1F1B and interleaved schedules run more forward passes in the warm-up, as in Megatron Core: otherwise a
///    rank would wait for the pair of the next rank, which would wait for the pair of this rank. A rank with too few
///    microbatches for this runs all forwards first and has no pairs.
///  - Other schedules keep their order and have pairs if there are at least as many microbatches as ranks.
Schedule combine_passes(const Schedule& schedule);
/// Returns the fraction of forward passes that are in pairs, over all ranks.
double combined_fraction(const Schedule& schedule);

/// Returns a schedule that runs the first `microbatches` one at a time, each through all stages and back, and then the
/// others in the order of `schedule`, which must not be lowered. Results are bitwise identical. While only one rank
/// computes, no two ranks wait for each other. The result has no pairs of passes unless `microbatches` is 0.
Schedule serialize_first_microbatches(const Schedule& schedule, int microbatches);

// Lowering of schedules: adds messages and gradient reductions to the compute actions.

/// Adds a receive before each action whose input is computed on another rank, a send after each action whose result is
/// needed on another rank, and one ReduceGrad after the last weight gradient of each stage. Stages on the same rank
/// need no messages.
Schedule lower(const Schedule& schedule);

}  // namespace mcpp
