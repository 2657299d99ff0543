// MPI message tags, a distinct one for each kind of message of a group.
#pragma once

namespace mcpp::mpi_tag {

constexpr int kMessage = 0, kExchange = 1, kSum = 2, kBroadcast = 3;
/// Offers use rotating tags, more than are ever in flight, so that they can be accepted in any order. Answers use the
/// next kOffers tags.
constexpr int kFirstOffer = 16, kOffers = 2040;
/// Tag of part 0 of a gather; part r uses kFirstGather + r.
constexpr int kFirstGather = 4096;
static_assert(kFirstOffer + 2 * kOffers <= kFirstGather);

}  // namespace mcpp::mpi_tag
