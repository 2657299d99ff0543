#include "megatron_cpp/resume/local_replicas.h"

#include <numeric>

#include "base/machine.h"
#include "base/strings.h"
#include "checkpoint/directory/folder.h"
#include "comm/metered.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

/// Returns a group of all ranks that only the transfers use, so that their messages do not match other receives.
std::unique_ptr<Communicator> make_group(const RunContext& run) {
  std::unique_ptr<Communicator> group = run.world().split(0, run.world().rank());
  if (!run.session.recorder) return group;
  std::vector<int> ranks(static_cast<std::size_t>(group->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_metered(std::move(group), std::make_shared<CommMeter>(),
                      {*run.session.recorder, "local replicas", std::move(ranks)});
}

/// Returns checkpoint.local_replicas, or the number of other nodes if there are fewer, which logs a warning.
i64 available_replicas(const RunContext& run, const LocalStore& store) {
  const i64 wanted = run.config.checkpoint.local_replicas, others = count_nodes(store.nodes) - 1;
  if (wanted > others) {
    run.log.warn(str("checkpoint.local_replicas = ", wanted, ": needs ", wanted + 1, " nodes, but the run has ",
                     others + 1, "; copies on ", others, " other nodes are kept. If ",
                     others == 0 ? "a node is" : "more nodes are",
                     " lost, the run resumes from the last checkpoint in checkpoint.save"));
  }
  return std::min(wanted, others);
}

}  // namespace

LocalReplicas::LocalReplicas(const RunContext& run)
    : run_(run), store_(local_store(run.config.checkpoint, run.session)), group_(make_group(run)) {
  Communicator& world = run.world();
  peers_ = replica_peers(store_.nodes, world.rank(), available_replicas(run, store_));
  check_separate_folders(run.config.checkpoint, store_, world);
  for (const int source : peers_.sources)
    folders_.push_back(store_.folder / part_folder_name(source, world.size(), /*is_replica=*/true));
  check_local_owner(run.config.checkpoint, folders_, world);
  run_on_all_ranks(world, [&] {
    for (const Path& folder : folders_)
      locks_.push_back(std::make_unique<FolderLock>(folder, run.log, run.session.job));
  });
}

void LocalReplicas::start(const Path& part, SaveObserver observer) {
  finish();
  start_ = steady_seconds();
  iteration_ = *iteration_of(part.filename().string());
  ReplicaTarget target{.folder = store_.folder,
                       .peers = peers_,
                       .retention = local_target(run_.config.checkpoint, run_.world()).retention,
                       .observer = std::move(observer)};
  replication_ = std::make_unique<PartReplication>(part, std::move(target), *group_, run_.log);
}

void LocalReplicas::advance() {
  run_.session.enter(Activity::Saving, iteration_);  // a transfer may take longer than a step
  if (!replication_->advance()) return;
  replication_.reset();
  if (!std::exchange(is_first_, false)) return;
  log_placement(steady_seconds() - start_);
  remove_moved_parts();
}

/// Logs which ranks keep the copies, and the duration of the first replication.
void LocalReplicas::log_placement(double seconds) const {
  std::vector<std::string> holders;
  for (const int holder : peers_.holders) holders.push_back(std::to_string(holder));
  if (!holders.empty())
    run_.log.info(str("local checkpoints are copied to other nodes, those of rank 0 to rank ", join(holders, " and "),
                      "; the first took ", human_seconds(seconds)));
}

/// Removes the parts and copies that ranks left on nodes on which they no longer run. The new checkpoint and its copies
/// replace them.
void LocalReplicas::remove_moved_parts() const {
  const int node = store_.nodes[static_cast<std::size_t>(run_.world().rank())];
  if (node != run_.world().rank()) return;
  std::vector<std::string> kept;
  for (int rank = 0; rank < run_.world().size(); ++rank) {
    if (store_.nodes[static_cast<std::size_t>(rank)] != node) continue;
    kept.push_back(part_folder_name(rank, run_.world().size(), /*is_replica=*/false));
    for (const int source : replica_peers(store_.nodes, rank, std::ssize(peers_.holders)).sources)
      kept.push_back(part_folder_name(source, run_.world().size(), /*is_replica=*/true));
  }
  remove_unused_parts(store_, kept, run_.log);
}

void LocalReplicas::poll() {
  if (!replication_) return;
  const double busy = replication_->is_idle() ? 0 : 1;
  if (reduce_scalar(busy, ReduceOp::Max, run_.world(), host_) == 0) advance();
}

void LocalReplicas::finish() {
  while (replication_) advance();
}

}  // namespace mcpp
