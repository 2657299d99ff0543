// Matrices whose parts are spread over ranks, by tensor parallelism and ZeRO, brought together one by one: each has an
// owner, which gathers its parts, works on it and gives them back. Owners are chosen so that all have about the same
// work. How a matrix was spread does not show in it, so what is made of it does not depend on the layout.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/region.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

class WholeMatrices {
 public:
  using Takes = std::function<bool(const Param&)>;

  /// The matrices (Param::matrices) of the parameters that `takes` says; of their gradients each rank of `holders` has
  /// what its buffers' shard() gives. Called by all of these ranks; `holders` outlives this. Null: this rank has all.
  WholeMatrices(std::span<ParamAndGradBuffer* const> buffers, const Takes& takes, Communicator* holders);
  WholeMatrices(const WholeMatrices&) = delete;
  WholeMatrices& operator=(const WholeMatrices&) = delete;

  /// What f(matrix) makes of each matrix [out, in] takes the place of the gradient, on all ranks that hold parts of it.
  /// Called by all ranks.
  void transform(const std::function<void(Tensor& matrix)>& f);

 private:
  /// Of a parameter: what one rank has of it.
  struct Piece {
    i64 param;
    Region region;
    Tensor values;  // the gradient; undefined for other ranks'
  };
  /// A piece with numbers of a matrix.
  struct Part {
    int rank;
    const Piece* piece;
    i64 count;
    bool is_copy;  // a rank before this one holds the same
  };
  struct Matrix {
    i64 param;
    Region region;
    int owner = 0;
    std::vector<Part> parts = {};  // by rank

    i64 columns() const { return region.box.shape.back(); }
    i64 rows() const { return region.numel() / columns(); }
  };

  void add_params(std::span<ParamAndGradBuffer* const> buffers, const Takes& takes);
  void exchange_pieces();
  void find_parts(Matrix& matrix) const;
  void choose_owners();

  /// Calls f(part) for the rank's parts of a matrix.
  template <class F>
  static void for_each_part(const Matrix& matrix, int rank, F&& f);
  static i64 elements(const Matrix& matrix, int rank, bool with_copies);
  Tensor message(i64 elements) const;

  // Of a matrix that another rank owns.
  void send_parts(const Matrix& matrix);
  void receive_parts(const Matrix& matrix);
  // Of one that this rank owns.
  Tensor gather(const Matrix& matrix);
  void give_back(const Matrix& matrix, const Tensor& whole);
  Tensor in_place(const Matrix& matrix) const;

  Communicator* holders_;
  int rank_, ranks_;
  Device& device_;
  DType type_;                              // of gradients
  std::map<std::string, i64> params_;       // the number of each parameter, the same on all ranks
  std::vector<Shape> globals_;              // and its global shape
  std::vector<std::vector<Piece>> pieces_;  // by rank
  std::vector<Matrix> matrices_;
  std::vector<std::vector<const Matrix*>> owned_;  // by rank
};

}  // namespace mcpp
