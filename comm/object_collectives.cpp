#include "comm/object_collectives.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace mcpp {
namespace {

/// Tensor of bytes in host memory, padded to 32-bit integers.
class ByteTensor {
 public:
  explicit ByteTensor(i64 bytes) : tensor(Tensor::empty({bytes / 4 + 1}, DType::I32, host_, MemoryClass::Other)) {
    std::memset(tensor.raw(), 0, static_cast<std::size_t>(tensor.bytes()));
  }
  explicit ByteTensor(std::string_view text) : ByteTensor(text, static_cast<i64>(text.size())) {}
  /// Has room for `bytes` bytes, at least the size of the text.
  ByteTensor(std::string_view text, i64 bytes) : ByteTensor(bytes) {
    std::memcpy(tensor.raw(), text.data(), text.size());
  }
  std::string read(i64 bytes) const {
    return {static_cast<const char*>(tensor.raw()), static_cast<std::size_t>(bytes)};
  }

 private:
  CpuDevice host_;

 public:
  Tensor tensor;
};

/// Gathers the equally sized tensors of all ranks, in rank order.
Tensor gather(const Tensor& local, Communicator& group) {
  Tensor all = Tensor::like(local, {local.numel() * group.size()});
  group.all_gather(local, all).wait();
  return all;
}

}  // namespace

std::vector<std::string> all_gather_strings(std::string_view text, Communicator& group) {
  if (group.size() == 1) return {std::string(text)};
  CpuDevice host;
  const auto ranks = static_cast<std::size_t>(group.size());

  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  *length.data<i64>() = static_cast<i64>(text.size());
  const Tensor lengths = gather(length, group);
  const i64* sizes = lengths.data<i64>();

  const ByteTensor padded(text, *std::max_element(sizes, sizes + ranks));  // to the longest text
  const Tensor texts = gather(padded.tensor, group);

  std::vector<std::string> result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const char* begin = static_cast<const char*>(texts.raw()) + static_cast<i64>(rank) * padded.tensor.bytes();
    result.emplace_back(begin, static_cast<std::size_t>(sizes[rank]));
  }
  return result;
}

namespace {

/// Texts of consecutive ranks, each after its length.
std::string encoded(std::string_view text) {
  const auto length = static_cast<i64>(text.size());
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result.append(text);
}
std::vector<std::string> decoded(std::string_view texts) {
  std::vector<std::string> result;
  while (!texts.empty()) {
    i64 length = 0;
    std::memcpy(&length, texts.data(), sizeof(length));
    texts.remove_prefix(sizeof(length));
    result.emplace_back(texts.substr(0, static_cast<std::size_t>(length)));
    texts.remove_prefix(static_cast<std::size_t>(length));
  }
  return result;
}

}  // namespace

std::vector<std::string> gather_strings(std::string_view text, Communicator& group) {
  // Binomial tree: in round k, ranks with bit k send the texts of 2^k ranks to the rank without this bit.
  std::string texts = encoded(text);
  for (int distance = 1; distance < group.size(); distance *= 2) {
    if ((group.rank() & distance) != 0) {
      const int parent = group.rank() - distance;
      send_value(static_cast<i64>(texts.size()), group, parent);
      group.send(ByteTensor(texts).tensor, parent).wait();
      return {};
    }
    const int child = group.rank() + distance;
    if (child >= group.size()) continue;
    const auto bytes = receive_value<i64>(group, child);
    ByteTensor received(bytes);
    group.recv(received.tensor, child).wait();
    texts += received.read(bytes);
  }
  return decoded(texts);
}

bool is_identical_on_ranks(std::string_view text, Communicator& group) {
  if (group.size() == 1) return true;
  // The maximum of x and the maximum of ~x, which is the complement of the minimum of x, differ unless all ranks have
  // the same.
  const std::string digits = checksum_hex(text);
  const auto words = static_cast<i64>(digits.size()) / 4;
  CpuDevice host;
  Tensor bounds = Tensor::empty({2 * words}, DType::I32, host, MemoryClass::Other);
  i32* values = bounds.data<i32>();
  std::memcpy(values, digits.data(), digits.size());
  for (i64 i = 0; i < words; ++i) values[words + i] = ~values[i];
  group.all_reduce(bounds, ReduceOp::Max).wait();
  for (i64 i = 0; i < words; ++i)
    if (values[i] != ~values[words + i]) return false;
  return true;
}

namespace {

/// Result of a function on one rank: its text, or the code and message of the error that it threw.
struct Outcome {
  ExitCode code = ExitCode::Done;
  std::string text;
};

Outcome run(const std::function<std::string()>& f) {
  try {
    return {ExitCode::Done, f()};
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::Internal, error.what()};
  }
}

void throw_if_failed(const Outcome& outcome, std::size_t rank, const Communicator& group) {
  if (outcome.code != ExitCode::Done)
    fail(outcome.code, group.size() > 1 ? str("rank ", rank, ": ") : "", outcome.text);
}

/// Returns true if the condition is true on any rank.
bool any_rank(bool condition, Communicator& group) {
  if (group.size() == 1) return condition;
  ValueTensor<i32> value(condition ? 1 : 0);
  group.all_reduce(value.tensor, ReduceOp::Max).wait();
  i32 any = 0;
  value.read(any);
  return any != 0;
}

}  // namespace

std::vector<std::string> run_on_all_ranks(Communicator& group, const std::function<std::string()>& f) {
  const Outcome outcome = run(f);
  // Usually no rank fails, and often all results are empty: then a single reduction suffices.
  std::vector<std::string> results(static_cast<std::size_t>(group.size()));
  if (!any_rank(outcome.code != ExitCode::Done || !outcome.text.empty(), group)) return results;
  // The first byte is the exit code.
  results = all_gather_strings(static_cast<char>(outcome.code) + outcome.text, group);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const Outcome other{static_cast<ExitCode>(results[rank][0]), results[rank].substr(1)};
    throw_if_failed(other, rank, group);
    results[rank] = other.text;
  }
  return results;
}

std::string broadcast_from_rank0(Communicator& group, const std::function<std::string()>& f) {
  Outcome outcome;
  if (group.rank() == 0) outcome = run(f);
  if (group.size() > 1) {
    struct Header {
      i64 code, length;
    } header{static_cast<i64>(outcome.code), static_cast<i64>(outcome.text.size())};
    broadcast_value(header, group);
    outcome.code = static_cast<ExitCode>(header.code);
    if (header.length > 0) {
      ByteTensor text = group.rank() == 0 ? ByteTensor(outcome.text) : ByteTensor(header.length);
      group.broadcast(text.tensor, 0).wait();
      outcome.text = text.read(header.length);
    }
  }
  throw_if_failed(outcome, 0, group);
  return outcome.text;
}

std::vector<int> nodes_of_ranks(Communicator& group, Communicator& node) {
  const std::string first = broadcast_from_rank0(node, [&] { return std::to_string(group.rank()); });
  std::vector<int> nodes;
  for (const std::string& number : all_gather_strings(first, group)) nodes.push_back(std::stoi(number));
  return nodes;
}

}  // namespace mcpp
