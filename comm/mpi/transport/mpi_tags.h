// Tags of what the ranks of a group send one another, each kind with its own, so that none is taken for another.
#pragma once

namespace mcpp::mpi_tag {

constexpr int kMessage = 0, kExchange = 1, kSum = 2, kBroadcast = 3;
/// Offers have tags of their own, by which they stay apart whoever is asked for first: more than are ever under way. As
/// many more are those of the answers.
constexpr int kFirstOffer = 16, kOffers = 2040;
/// Of part r of a gather it is this and r.
constexpr int kFirstGather = 4096;
static_assert(kFirstOffer + 2 * kOffers <= kFirstGather);

}  // namespace mcpp::mpi_tag
