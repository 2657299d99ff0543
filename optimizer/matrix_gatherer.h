// Gathering of matrices that are sharded by tensor parallelism and ZeRO: each matrix has an owner rank, which gathers
// the parts, transforms the matrix and scatters the result. Owners are chosen to balance the work. Results do not
// depend on the layout, because the gathered matrices do not.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/tensor_region.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

class MatrixGatherer {
 public:
  /// Returns the boxes of a parameter's matrices, in the order that all ranks use; empty if it has none.
  using MatrixSelector = std::function<std::vector<Box>(const Param&)>;

  /// Selects the matrices of all parameters. Each rank of `holders` has the gradients in its buffers' shard().
  /// Collective over `holders`; `holders` is nullptr if this rank has all matrices.
  MatrixGatherer(std::span<ParamAndGradBuffer* const> buffers, const MatrixSelector& select, Communicator* holders);
  MatrixGatherer(const MatrixGatherer&) = delete;
  MatrixGatherer& operator=(const MatrixGatherer&) = delete;

  /// Replaces the gradient of each matrix [out, in] by the result of f(matrix), on all ranks that hold parts of it.
  /// Collective.
  void transform(const std::function<void(Tensor& matrix)>& f);

 private:
  /// One rank's part of a parameter.
  struct Chunk {
    i64 param;
    Region region;
    Tensor values;  // gradient; undefined for chunks of other ranks
  };
  /// Chunk that overlaps a matrix.
  struct Part {
    int rank;
    const Chunk* chunk;
    i64 count;
    bool is_copy;  // true if an earlier rank has the same values
  };
  struct Matrix {
    i64 param;
    Region region;
    int owner = 0;
    std::vector<Part> parts = {};  // parts, by rank

    i64 columns() const { return region.box.shape.back(); }
    i64 rows() const { return region.numel() / columns(); }
  };

  void add_params(std::span<ParamAndGradBuffer* const> buffers, const MatrixSelector& select);
  void exchange_chunks();
  void find_parts();
  void choose_owners();

  /// Calls f(part) for the rank's parts of a matrix.
  template <class F>
  static void for_each_part(const Matrix& matrix, int rank, F&& f);
  static i64 count_elements(const Matrix& matrix, int rank, bool includes_copies);
  Tensor make_message(i64 elements) const;

  // Transfers for a matrix that another rank owns.
  void send_parts(const Matrix& matrix);
  void receive_parts(const Matrix& matrix);
  // Transfers for a matrix that this rank owns.
  Tensor gather(const Matrix& matrix);
  void scatter(const Matrix& matrix, const Tensor& full);
  Tensor contiguous_view(const Matrix& matrix) const;

  Communicator* holders_;
  int rank_, ranks_;
  Device& device_;
  DType type_;                              // accumulate dtype of gradients
  std::map<std::string, i64> params_;       // index of each parameter by name, identical on all ranks
  std::vector<Shape> globals_;              // global shape by index
  std::vector<std::vector<Chunk>> chunks_;  // chunks, by rank
  std::vector<Matrix> matrices_;
  std::vector<std::vector<const Matrix*>> owned_;  // matrices owned, by rank
};

}  // namespace mcpp
