#include "optimizer/matrix_gatherer.h"

#include <algorithm>
#include <numeric>

#include "parallel/reduce_scalar.h"
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the operations of a Newton-Schulz step, up to a constant factor.
double newton_schulz_flops(i64 rows, i64 columns) {
  const auto n = static_cast<double>(std::min(rows, columns)), m = static_cast<double>(std::max(rows, columns));
  return 2 * n * n * m + n * n * n;
}

enum class Side { Chunk, Matrix };

/// Calls f(at, count) for each contiguous span on one side, in message order.
template <class F>
void for_each_span(const Region& chunk, const Region& matrix, Side side, F&& f) {
  i64 begin = 0, count = 0;
  for_each_run(chunk, matrix, [&](i64 in_chunk, i64 in_matrix, i64 length) {
    const i64 offset = side == Side::Chunk ? in_chunk : in_matrix;
    if (count > 0 && offset != begin + count) f(begin, count), count = 0;
    if (count == 0) begin = offset;
    count += length;
  });
  if (count > 0) f(begin, count);
}

/// Copies the intersection of both regions between `values`, the elements of one region, and the message.
template <bool kIntoMessage>
void copy_part(const Region& chunk, const Region& matrix, Side side, const Tensor& values, const Tensor& message) {
  i64 offset = 0;
  for_each_span(chunk, matrix, side, [&](i64 begin, i64 count) {
    Tensor span = values.flat(begin, count), own = message.flat(offset, count);
    kIntoMessage ? ops::copy(span, own) : ops::copy(own, span);
    offset += count;
  });
}

bool is_same_region(const Region& a, const Region& b) {
  return a.box.offset == b.box.offset && a.box.shape == b.box.shape && a.flat_begin == b.flat_begin &&
         a.flat_end == b.flat_end;
}

/// Encodes a chunk as integers: parameter, offset and shape of the box, begin and end of the range; then -1.
void encode(i64 param, const Region& region, std::vector<i64>& encoded) {
  encoded.push_back(param);
  for (const Shape* shape : {&region.box.offset, &region.box.shape})
    encoded.insert(encoded.end(), shape->begin(), shape->end());
  encoded.insert(encoded.end(), {region.flat_begin, region.flat_end});
}

}  // namespace

MatrixGatherer::MatrixGatherer(std::span<ParamAndGradBuffer* const> buffers, const MatrixSelector& select,
                               Communicator* holders)
    : holders_(holders),
      rank_(holders ? holders->rank() : 0),
      ranks_(holders ? holders->size() : 1),
      device_(buffers.front()->device()),
      type_(accumulate_dtype(buffers.front()->dtype())),
      chunks_(static_cast<std::size_t>(ranks_)),
      owned_(static_cast<std::size_t>(ranks_)) {
  add_params(buffers, select);
  if (ranks_ > 1) exchange_chunks();
  find_parts();
  choose_owners();
}

void MatrixGatherer::add_params(std::span<ParamAndGradBuffer* const> buffers, const MatrixSelector& select) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    for (const Param* param : buffer->params()) {
      const std::vector<Box> boxes = select(*param);
      if (boxes.empty() || !params_.emplace(param->name, static_cast<i64>(params_.size())).second) continue;
      globals_.push_back(param->box.global);
      for (const Box& box : boxes) matrices_.push_back({.param = params_.at(param->name), .region = full_region(box)});
    }
    buffer->visit_grads([&](const Param& param, i64 first, const Tensor& values) {
      const auto found = params_.find(param.name);
      if (found == params_.end()) return;
      chunks_[static_cast<std::size_t>(rank_)].push_back(
          {found->second, {param.box, first, first + values.numel()}, values});
    });
  }
}

void MatrixGatherer::exchange_chunks() {
  std::vector<int> others(static_cast<std::size_t>(ranks_));
  std::iota(others.begin(), others.end(), 0);
  std::erase(others, rank_);
  holders_->connect(others);

  std::vector<i64> encoded;
  for (const Chunk& chunk : chunks_[static_cast<std::size_t>(rank_)]) encode(chunk.param, chunk.region, encoded);
  const double longest = reduce_scalar(static_cast<double>(encoded.size() + 1), ReduceOp::Max, *holders_, device_);
  encoded.resize(static_cast<std::size_t>(longest), -1);
  const auto length = static_cast<i64>(encoded.size());
  Tensor local_sizes = Tensor::empty({length}, DType::I64, device_, MemoryClass::Workspace);
  Tensor all = Tensor::empty({length * ranks_}, DType::I64, device_, MemoryClass::Workspace);
  write_values(encoded, local_sizes);
  holders_->all_gather(local_sizes, all).wait();
  const std::vector<i64> all_encoded = read_values<i64>(all);
  for (const int rank : others) {
    auto next = all_encoded.begin() + rank * length;
    while (*next >= 0) {
      const i64 param = *next++;
      const Shape& global = globals_[static_cast<std::size_t>(param)];
      const auto axes = static_cast<i64>(global.size());
      const Box box{global, Shape(next, next + axes), Shape(next + axes, next + 2 * axes)};
      next += 2 * axes;
      chunks_[static_cast<std::size_t>(rank)].push_back({param, {box, next[0], next[1]}, {}});
      next += 2;
    }
  }
}

void MatrixGatherer::find_parts() {
  std::vector<std::vector<std::pair<int, const Chunk*>>> by_param(params_.size());  // with their ranks, in rank order
  for (int rank = 0; rank < ranks_; ++rank) {
    for (const Chunk& chunk : chunks_[static_cast<std::size_t>(rank)])
      by_param[static_cast<std::size_t>(chunk.param)].emplace_back(rank, &chunk);
  }
  for (Matrix& matrix : matrices_) {
    for (const auto& [rank, chunk] : by_param[static_cast<std::size_t>(matrix.param)]) {
      const i64 count = overlap(chunk->region, matrix.region);
      if (count == 0) continue;
      const bool is_copy =
          std::ranges::any_of(matrix.parts, [&, own = rank, region = chunk->region](const Part& other) {
            return other.rank < own && is_same_region(other.chunk->region, region);
          });
      matrix.parts.push_back({.rank = rank, .chunk = chunk, .count = count, .is_copy = is_copy});
    }
  }
}

void MatrixGatherer::choose_owners() {
  std::vector<Matrix*> largest_first;
  for (Matrix& matrix : matrices_) largest_first.push_back(&matrix);
  std::ranges::stable_sort(largest_first, std::greater(),
                           [](const Matrix* m) { return newton_schulz_flops(m->rows(), m->columns()); });
  std::vector<double> loads(static_cast<std::size_t>(ranks_));
  for (Matrix* matrix : largest_first) {
    const auto least_loaded = std::ranges::min_element(loads);
    *least_loaded += newton_schulz_flops(matrix->rows(), matrix->columns());
    matrix->owner = static_cast<int>(least_loaded - loads.begin());
    owned_[static_cast<std::size_t>(matrix->owner)].push_back(matrix);
  }
}

void MatrixGatherer::transform(const std::function<void(Tensor&)>& f) {
  const auto& local = owned_[static_cast<std::size_t>(rank_)];
  const std::size_t rounds = std::ranges::max(owned_, {}, &std::vector<const Matrix*>::size).size();
  // One matrix per owner at a time, so that all ranks work and no rank holds more than one matrix.
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto for_each_other = [&](auto&& g) {
      for (int rank = 0; rank < ranks_; ++rank) {
        const auto& matrices = owned_[static_cast<std::size_t>(rank)];
        if (rank != rank_ && round < matrices.size()) g(*matrices[round]);
      }
    };
    for_each_other([&](const Matrix& matrix) { send_parts(matrix); });
    if (round < local.size()) {
      Tensor matrix = gather(*local[round]);
      f(matrix);
      scatter(*local[round], matrix);
    }
    for_each_other([&](const Matrix& matrix) { receive_parts(matrix); });
  }
}

template <class F>
void MatrixGatherer::for_each_part(const Matrix& matrix, int rank, F&& f) {
  for (const Part& part : matrix.parts) {
    if (part.rank == rank) f(part);
  }
}

i64 MatrixGatherer::count_elements(const Matrix& matrix, int rank, bool includes_copies) {
  i64 sum = 0;
  for_each_part(matrix, rank, [&](const Part& part) { sum += includes_copies || !part.is_copy ? part.count : 0; });
  return sum;
}

Tensor MatrixGatherer::make_message(i64 elements) const {
  return Tensor::empty({elements}, type_, device_, MemoryClass::Workspace);
}

void MatrixGatherer::send_parts(const Matrix& matrix) {
  const Tensor out = make_message(count_elements(matrix, rank_, false));
  if (out.numel() == 0) return;
  i64 offset = 0;
  for_each_part(matrix, rank_, [&](const Part& part) {
    if (part.is_copy) return;
    copy_part<true>(part.chunk->region, matrix.region, Side::Chunk, part.chunk->values, out.flat(offset, part.count));
    offset += part.count;
  });
  holders_->send(out, matrix.owner).wait();
}

void MatrixGatherer::receive_parts(const Matrix& matrix) {
  Tensor in = make_message(count_elements(matrix, rank_, true));
  if (in.numel() == 0) return;
  holders_->recv(in, matrix.owner).wait();
  i64 offset = 0;
  for_each_part(matrix, rank_, [&](const Part& part) {
    copy_part<false>(part.chunk->region, matrix.region, Side::Chunk, part.chunk->values, in.flat(offset, part.count));
    offset += part.count;
  });
}

/// Returns a view of the matrix if it is contiguous in this rank's gradients; otherwise an undefined tensor.
Tensor MatrixGatherer::contiguous_view(const Matrix& matrix) const {
  if (matrix.parts.size() != 1 || matrix.parts.front().rank != rank_) return {};
  const Part& part = matrix.parts.front();
  Tensor view;
  for_each_span(part.chunk->region, matrix.region, Side::Chunk, [&](i64 begin, i64 count) {
    if (count == matrix.region.numel()) view = part.chunk->values.flat(begin, count);
  });
  return view;
}

Tensor MatrixGatherer::gather(const Matrix& matrix) {
  if (const Tensor local = contiguous_view(matrix); local.defined())
    return local.view({matrix.rows(), matrix.columns()});
  const Tensor full = make_message(matrix.region.numel());
  for (int rank = 0; rank < ranks_; ++rank) {
    Tensor in = make_message(count_elements(matrix, rank, false));
    if (in.numel() == 0) continue;
    if (rank != rank_) holders_->recv(in, rank).wait();
    i64 offset = 0;
    for_each_part(matrix, rank, [&](const Part& part) {
      if (part.is_copy) return;
      const Tensor values = in.flat(offset, part.count);
      if (rank == rank_) copy_part<true>(part.chunk->region, matrix.region, Side::Chunk, part.chunk->values, values);
      copy_part<false>(part.chunk->region, matrix.region, Side::Matrix, full, values);
      offset += part.count;
    });
  }
  return full.view({matrix.rows(), matrix.columns()});
}

void MatrixGatherer::scatter(const Matrix& matrix, const Tensor& full) {
  if (contiguous_view(matrix).defined()) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    const Tensor out = make_message(count_elements(matrix, rank, true));
    if (out.numel() == 0) continue;
    i64 offset = 0;
    for_each_part(matrix, rank, [&](const Part& part) {
      const Tensor values = out.flat(offset, part.count);
      copy_part<true>(part.chunk->region, matrix.region, Side::Matrix, full, values);
      if (rank == rank_) copy_part<false>(part.chunk->region, matrix.region, Side::Chunk, part.chunk->values, values);
      offset += part.count;
    });
    if (rank != rank_) holders_->send(out, rank).wait();
  }
}

}  // namespace mcpp
