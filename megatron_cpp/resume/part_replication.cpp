#include "megatron_cpp/resume/part_replication.h"

#include <chrono>

#include "base/machine.h"
#include "base/strings.h"
#include "comm/object_collectives.h"

namespace mcpp {

PartReplication::PartReplication(const Path& part, ReplicaTarget target, Communicator& group, StoredRef<Log> log)
    : part_(part), target_(std::move(target)), group_(group), log_(log), files_(std::make_shared<PartFiles>(part)) {
  for (const int holder : target_.peers.holders) sends_.push_back(std::make_unique<PartSend>(files_, group_, holder));
  for (const int source : target_.peers.sources) {
    const Path folder = target_.folder / part_folder_name(source, group_.size(), /*is_replica=*/true);
    const std::string name = part.filename().string() + std::string(kTempInfix) + process_tag();
    incoming_.push_back({std::make_unique<PartReceive>(folder / name, group_, source), source});
  }
  work_ = std::async(std::launch::async, [this] { prepare(); });
}

bool PartReplication::is_idle() const {
  return !work_.valid() || work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void PartReplication::prepare() {
  reach(SavePoint::BeforeReplicas, target_.observer);
  if (!sends_.empty()) files_->read(part_);
  for (const Incoming& copy : incoming_) {
    const Path folder = copy.receive->directory().parent_path();
    mcpp::create_directories(folder);
    remove_stale_entries(folder, log_);
    copy.receive->reserve();
  }
}

void PartReplication::publish() {
  for (const Incoming& copy : incoming_) {
    const Path folder = copy.receive->directory().parent_path();
    if (const std::string problem = copy.receive->write_and_verify(); !problem.empty()) {
      log_.warn_from_any_rank(str("the copy of ", part_.filename().string(), " of rank ", copy.source,
                                  " arrived damaged and is not kept: ", problem));
      continue;
    }
    reach(SavePoint::BeforeReplicaRename, target_.observer);
    copy.receive->publish(folder / part_.filename());
    prune(folder, target_.retention, log_);
  }
}

bool PartReplication::advance() {
  if (phase_ == Phase::Transfer) {
    for (const Incoming& copy : incoming_) copy.receive->wait();
    for (const auto& send : sends_) send->wait();
    sends_.clear();
    files_ = nullptr;
    phase_ = Phase::Publish;
    work_ = std::async(std::launch::async, [this] { publish(); });
    return false;
  }
  run_on_all_ranks(group_, [&] { work_.get(); });
  if (phase_ == Phase::Publish) return true;
  for (const Incoming& copy : incoming_) copy.receive->start();
  for (const auto& send : sends_) send->start();
  phase_ = Phase::Transfer;
  return false;
}

}  // namespace mcpp
