#include "parallel/pp/engine.h"

#include <chrono>
#include <map>

#include "base/check.h"

namespace mcpp {
namespace {

using enum ActionKind;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Tensors in transit between stages, keyed by the receiving stage and the microbatch.
class Transit {
 public:
  /// `step` leads from a stage to the receiver of its result: +1 for activations, -1 for gradients.
  Transit(const Schedule& schedule, Communicator& channel, int step)
      : schedule_(schedule), channel_(channel), step_(step) {}

  /// Stores the result of `stage` for a stage on this rank or for send(). Does nothing for the stage at the end.
  void store(int stage, int microbatch, Tensor result) {
    const int receiver_stage = stage + step_;
    if (receiver_stage < 0 || receiver_stage >= schedule_.stages()) return;
    MCPP_CHECK(result.defined(), "stage ", stage, " returned no result for microbatch ", microbatch);
    entries_[{receiver_stage, microbatch}].tensor = std::move(result);
  }
  /// Returns the input of `stage`; undefined for the stage at the beginning.
  Tensor take(int stage, int microbatch) {
    const int sender_stage = stage - step_;
    if (sender_stage < 0 || sender_stage >= schedule_.stages()) return {};
    const auto node = entries_.extract({stage, microbatch});
    MCPP_CHECK(!node.empty(), "no input for microbatch ", microbatch, " in stage ", stage);
    return std::move(node.mapped().tensor);
  }

  void send(int stage, int microbatch) {
    const int receiver_stage = stage + step_;
    std::erase_if(sends_, [](const Work& work) { return work.is_done(); });  // releases their tensors
    sends_.push_back(channel_.send(take(receiver_stage, microbatch), schedule_.rank_of(receiver_stage)));
  }
  void post_receive(int stage, int microbatch, Tensor buffer) {
    Entry& entry = entries_[{stage, microbatch}];
    entry.tensor = std::move(buffer);
    entry.work = channel_.recv(entry.tensor, schedule_.rank_of(stage - step_));
  }
  void wait(int stage, int microbatch) { entries_.at({stage, microbatch}).work.wait(); }

  void finish() {
    for (Work& work : sends_) work.wait();
    MCPP_CHECK(entries_.empty(), "the schedule leaves ", entries_.size(), " tensors unused");
  }

 private:
  struct Entry {
    Tensor tensor;
    Work work;
  };
  const Schedule& schedule_;
  Communicator& channel_;
  int step_;
  std::map<std::pair<int, int>, Entry> entries_;
  std::vector<Work> sends_;
};

class Engine {
 public:
  Engine(const Schedule& schedule, Communicator& forward_channel, Communicator& backward_channel,
         std::span<PipelineStage* const> chunks, const EngineOptions& options)
      : schedule_(schedule),
        rank_(forward_channel.rank()),
        actions_(schedule.per_rank[static_cast<std::size_t>(rank_)]),
        chunks_(chunks),
        options_(options),
        serializes_receives_(options.serializes_receives && options.wait_timer),
        activations_(schedule, forward_channel, +1),
        gradients_(schedule, backward_channel, -1),
        weight_grads_left_(chunks.size()) {
    for (const Action& a : actions_) weight_grads_left_[chunk_of(a)] += computes_weight_grad(a.kind);
  }

  PipelineTimes run() {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < actions_.size();) {
      const std::size_t count = is_pass_pair(schedule_, rank_, i) ? 2 : 1;
      post_receives(i + count - 1);
      for (std::size_t k = i; k < i + count; ++k) {
        if (!computes(actions_[k].kind)) continue;
        prefetch_after(k);
        stage_of(actions_[k]).begin_pass(actions_[k].microbatch);
      }
      if (count == 2)
        options_.interleaver->run([&] { execute(actions_[i]); }, [&] { execute(actions_[i + 1]); });
      else
        execute(actions_[i]);
      i += count;
    }
    activations_.finish();
    gradients_.finish();
    times_.total = seconds_since(begin);
    return times_;
  }

 private:
  std::size_t chunk_of(const Action& a) const { return static_cast<std::size_t>(schedule_.chunk_of(a.stage)); }
  PipelineStage& stage_of(const Action& a) { return *chunks_[chunk_of(a)]; }
  bool is_last_weight_grad(const Action& a) { return --weight_grads_left_[chunk_of(a)] == 0; }

  /// Starts all receives up to action i and, if that computes, up to the next action that does, to overlap them.
  void post_receives(std::size_t i) {
    const auto should_post = [&] {
      return posted_ < actions_.size() &&
             (posted_ <= i || (!serializes_receives_ && !computes(actions_[posted_].kind)));
    };
    for (; should_post(); ++posted_) {
      const Action& a = actions_[posted_];
      if (a.kind == RecvForward) activations_.post_receive(a.stage, a.microbatch, stage_of(a).empty_input());
      if (a.kind == RecvBackward) gradients_.post_receive(a.stage, a.microbatch, stage_of(a).empty_output_gradient());
    }
  }

  /// Announces the next computation to its stage if it is a backward pass, which can then prefetch during action i.
  void prefetch_after(std::size_t i) {
    do ++i;
    while (i < actions_.size() && !computes(actions_[i].kind));
    if (i < actions_.size() && computes_input_grad(actions_[i].kind))
      stage_of(actions_[i]).prefetch_backward(actions_[i].microbatch);
  }

  void execute(const Action& a) {
    const int stage = a.stage, microbatch = a.microbatch;
    PipelineStage& chunk = stage_of(a);
    switch (a.kind) {
      case Forward:
        return activations_.store(stage, microbatch, chunk.forward(microbatch, activations_.take(stage, microbatch)));
      case Backward:
        return gradients_.store(stage, microbatch,
                                chunk.backward(microbatch, gradients_.take(stage, microbatch), is_last_weight_grad(a)));
      case BackwardInput:
        return gradients_.store(stage, microbatch,
                                chunk.backward_input(microbatch, gradients_.take(stage, microbatch)));
      case BackwardWeight:
        return chunk.backward_weight(microbatch, is_last_weight_grad(a));
      case SendForward:
        return activations_.send(stage, microbatch);
      case SendBackward:
        return gradients_.send(stage, microbatch);
      case RecvForward:
        return wait(activations_, a);
      case RecvBackward:
        return wait(gradients_, a);
      case ReduceGrad:
        return chunk.reduce_gradients();
    }
  }

  void wait(Transit& transit, const Action& a) {
    const WaitRange range(times_.waiting, options_.wait_timer, options_.profiler,
                          a.kind == RecvForward ? "forward-recv" : "backward-recv", RangeKind::Bubble,
                          {.microbatch = a.microbatch, .chunk = schedule_.chunk_of(a.stage)});
    transit.wait(a.stage, a.microbatch);
    if (serializes_receives_) options_.wait_timer->wait_for_device();
  }

  const Schedule& schedule_;
  int rank_;
  const std::vector<Action>& actions_;
  std::span<PipelineStage* const> chunks_;
  EngineOptions options_;
  bool serializes_receives_;
  Transit activations_, gradients_;
  std::vector<int> weight_grads_left_;  // by chunk
  std::size_t posted_ = 0;              // receives of actions before this index have been started
  PipelineTimes times_;
};

}  // namespace

PipelineTimes run_schedule(const Schedule& lowered, Communicator& forward_channel, Communicator& backward_channel,
                           std::span<PipelineStage* const> chunks, const EngineOptions& options) {
  MCPP_CHECK(forward_channel.size() == lowered.ranks && backward_channel.size() == lowered.ranks, "the schedule has ",
             lowered.ranks, " ranks, but the pipeline has ", forward_channel.size());
  MCPP_CHECK(forward_channel.rank() == backward_channel.rank(), "the ranks of the two channels differ");
  MCPP_CHECK(options.interleaver || lowered.combines_passes.empty(),
             "the schedule has pairs of passes, but there is no ", "interleaver");
  MCPP_CHECK(static_cast<int>(chunks.size()) == lowered.chunks_per_rank, "the schedule has ", lowered.chunks_per_rank,
             " chunks per rank, but ", chunks.size(), " were passed");
  return Engine(lowered, forward_channel, backward_channel, chunks, options).run();
}

}  // namespace mcpp
