// Ops that depend on token positions: attention, rotary and learned positions.
#include <algorithm>
#include <cmath>

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/kernels.h"
#include "tensor/ops/op_records.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

void check_heads(const char* op, const Heads& x) {
  MCPP_CHECK(x.base.defined() && is_float(x.base.dtype()) && x.group_size > 0 && x.heads % x.group_size == 0, op, ": ",
             "invalid view of ", x.heads, " heads in groups of ", x.group_size);
  const i64 last = x.offset + (x.seq - 1) * x.seq_stride + (x.batch - 1) * x.batch_stride +
                   (x.heads / x.group_size - 1) * x.group_stride + x.group_size * x.head_dim;
  MCPP_CHECK(x.seq == 0 || x.batch == 0 || last <= x.base.numel(), op, ": the heads end at element ", last, " of ",
             x.base.numel());
}

void check_ranges(const char* op, const PositionRanges& x) {
  const bool is_one = x.split == PositionRanges::kNone;
  MCPP_CHECK(x.first >= 0 && x.split >= 0 && (is_one ? x.second == x.split : x.second >= x.first + x.split), op,
             ": positions must ascend, but ", x.split, " positions from ", x.first, " are followed by ", x.second);
  MCPP_CHECK(
      x.more >= 0 && x.more <= PositionRanges::kMaxRuns - 2 && (x.more == 0) == (x.length == PositionRanges::kNone), op,
      ": invalid number ", x.more, " or length ", x.length, " of additional runs");
  for (i64 i = 0; i < x.more; ++i)
    MCPP_CHECK(x.length > 0 && x.begins[i] >= (i == 0 ? x.second : x.begins[i - 1]) + x.length, op,
               ": positions must ascend, but run ", i + 2, " begins at ", x.begins[i]);
}

void check_positions(const char* op, const Positions& x, i64 seq, i64 batch) {
  check_ranges(op, x.ranges);
  if (!x.starts.defined()) return;
  MCPP_CHECK(x.starts.dtype() == DType::I32 && x.starts.shape() == Shape({seq, batch}), op,
             ": document starts must be int32 ", Shape{seq, batch}, ", not ", name_of(x.starts.dtype()), " ",
             x.starts.shape());
}

/// Checks that every position of `seq` rows has a row in the table.
void check_table(const char* op, const Positions& x, i64 seq, i64 batch, const Tensor& table) {
  check_positions(op, x, seq, batch);
  MCPP_CHECK(seq == 0 || x.ranges.at(seq - 1) < table.dim(0), op, ": positions ", x.ranges.at(0), " to ",
             x.ranges.at(std::max<i64>(seq, 1) - 1), " exceed a table ", table.shape());
}

/// Returns true if the views have equally many rows and heads.
bool has_same_heads(const Heads& a, const Heads& b) {
  return a.seq == b.seq && a.batch == b.batch && a.heads == b.heads;
}

bool is_alike(const Heads& a, const Heads& b) {
  return has_same_heads(a, b) && a.head_dim == b.head_dim;
}

void check_attention(const char* op, const QkvHeads& x, const AttentionOptions& options) {
  const auto& [q, k, v] = x;
  for (const Heads* heads : {&q, &k, &v}) check_heads(op, *heads);
  MCPP_CHECK(q.heads % k.heads == 0 && has_same_heads(k, v) && q.head_dim == k.head_dim && q.batch == k.batch &&
                 q.base.dtype() == k.base.dtype() && k.base.dtype() == v.base.dtype(),
             op, ": shapes or dtypes of q, k and v do not match");
  MCPP_CHECK(options.softmax_scale > 0, op, ": softmax_scale must be positive, not ", options.softmax_scale);
  MCPP_CHECK(options.soft_cap >= 0, op, ": soft_cap must not be negative, but is ", options.soft_cap);
  MCPP_CHECK(options.window >= 0, op, ": window must not be negative, but is ", options.window);
  MCPP_CHECK(options.chunk >= 0, op, ": chunk must not be negative, but is ", options.chunk);
  check_positions(op, options.queries, q.seq, q.batch);
  check_ranges(op, options.keys);
  check_dropout(op, options.dropout, q.batch);
}

/// Checks that an attention result has the operands' dtype or the accumulate dtype.
void check_result(const char* op, const char* name, DType result, DType type) {
  MCPP_CHECK(result == type || result == accumulate_dtype(type), op, ": ", name, " must be of ", name_of(type), " or ",
             name_of(accumulate_dtype(type)), ", not ", name_of(result));
}

void check_gradient(const char* op, const char* name, const Heads& dx, const Heads& x) {
  check_heads(op, dx);
  MCPP_CHECK(is_alike(dx, x), op, ": ", name, " and its gradient have different heads");
  check_result(op, name, dx.base.dtype(), x.base.dtype());
}

}  // namespace

Heads dense_heads(const Tensor& x, i64 heads) {
  const Tensor rows = x.view({x.dim(0), x.dim(1), -1});
  MCPP_CHECK(heads > 0 && rows.dim(2) % heads == 0, "cannot divide the last axis of ", x.shape(), " into ", heads,
             " heads");
  return {x,           0,          x.dim(0), x.dim(1), heads, rows.dim(2) / heads, heads, x.dim(1) * rows.dim(2),
          rows.dim(2), rows.dim(2)};
}

Heads slice_heads(const Heads& x, i64 first, i64 count) {
  const i64 inside = first % x.group_size;
  MCPP_CHECK(first >= 0 && first + count <= x.heads &&
                 (inside + count <= x.group_size || (inside == 0 && count % x.group_size == 0)),
             "heads [", first, ", ", first + count, ") are not a valid slice of ", x.heads, " heads in groups of ",
             x.group_size);
  Heads part = x;
  part.offset += first / x.group_size * x.group_stride + inside * x.head_dim;
  part.heads = count, part.group_size = std::min(count, x.group_size);
  return part;
}

Heads strided_heads(const Heads& x, i64 first, i64 step) {
  MCPP_CHECK((x.group_size == 1 || x.group_size == x.heads) && first < step && x.heads % step == 0,
             "cannot select heads ", first, ", ", first + step, ", ... of ", x.heads, " heads in groups of ",
             x.group_size);
  const i64 distance = x.group_size == 1 ? x.group_stride : x.head_dim;
  Heads result = x;
  result.offset += first * distance;
  result.heads = x.heads / step, result.group_size = 1, result.group_stride = step * distance;
  return result;
}

namespace {

/// Range of consecutive positions.
struct Run {
  i64 begin, end;
};

/// Returns the runs of the first `rows` rows.
std::vector<Run> runs_of(const PositionRanges& positions, i64 rows) {
  std::vector<Run> runs;
  const auto add = [&](i64 begin, i64 length) {
    if (const i64 count = std::min(length, rows); count > 0) runs.push_back({begin, begin + count}), rows -= count;
  };
  add(positions.first, positions.split);
  for (i64 run = 0; run <= positions.more; ++run)
    add(run == 0 ? positions.second : positions.begins[run - 1], run < positions.more ? positions.length : rows);
  return runs;
}

/// Returns the number of pairs of a query and a key whose distance is at least `distance`, with half of those at
/// exactly this distance: the area of the region in which query - key >= distance.
double pairs_beyond(const Run& queries, const Run& keys, double distance) {
  const auto length = static_cast<double>(keys.end - keys.begin);
  const auto area_before = [&](i64 query) {
    const double t = static_cast<double>(query - keys.begin) - distance;  // keys at the required distance of this query
    return t <= 0 ? 0 : t <= length ? t * t / 2 : length * length / 2 + (t - length) * length;
  };
  return area_before(queries.end) - area_before(queries.begin);
}

/// Returns the number of pairs in which the query attends to the key, in samples of one document. A `window` or
/// `chunk` of 0 does not limit the keys.
double visible_pairs(const Run& queries, const Run& keys, i64 window, i64 chunk) {
  if (chunk == 0)
    return pairs_beyond(queries, keys, 0) - (window > 0 ? pairs_beyond(queries, keys, static_cast<double>(window)) : 0);
  double pairs = 0;
  for (i64 begin = queries.begin / chunk * chunk; begin < queries.end; begin += chunk) {
    const auto limit = [&](const Run& run) {
      return Run{std::max(run.begin, begin), std::min(run.end, begin + chunk)};
    };
    const Run chunk_queries = limit(queries), chunk_keys = limit(keys);
    if (chunk_queries.begin < chunk_queries.end && chunk_keys.begin < chunk_keys.end)
      pairs += visible_pairs(chunk_queries, chunk_keys, window, 0);
  }
  return pairs;
}

}  // namespace

OpRecord attention_record(const QkvHeads& x, const AttentionOptions& options, bool is_backward) {
  AttentionShape shape{.queries = x.q.seq,
                       .keys = x.k.seq,
                       .batch = x.q.batch,
                       .query_heads = x.q.heads,
                       .key_heads = x.k.heads,
                       .key_dim = x.k.head_dim,
                       .value_dim = x.v.head_dim,
                       .window = options.window,
                       .chunk = options.chunk,
                       .has_dropout = options.dropout.p > 0};
  const auto pairs = [&](const Run& queries, const Run& keys) {
    return visible_pairs(queries, keys, options.window, options.chunk);
  };
  double all_pairs = 0;
  for (const Run& queries : runs_of(options.queries.ranges, x.q.seq)) {
    all_pairs += pairs(queries, {0, queries.end});
    for (const Run& keys : runs_of(options.keys, x.k.seq)) shape.pairs += pairs(queries, keys);
  }
  if (all_pairs > 0) shape.share = shape.pairs / all_pairs;
  OpRecord record;
  record.kind = OpKind::Attention, record.is_backward = is_backward, record.dtype = x.q.base.dtype();
  record.attention = shape;
  record.flops = 2 * static_cast<double>(shape.key_dim + shape.value_dim) * shape.all_pairs();
  return record;
}

QkvHeads packed_heads(const Tensor& qkv) {
  MCPP_CHECK(qkv.rank() == 5 && qkv.dim(3) >= 3,
             "a fused QKV tensor must be [s, b, groups, q_per_group + 2, head_dim], not ", qkv.shape());
  const i64 seq = qkv.dim(0), batch = qkv.dim(1), groups = qkv.dim(2), q_per_group = qkv.dim(3) - 2, d = qkv.dim(4);
  const i64 group_stride = (q_per_group + 2) * d;
  const Heads kv{
      qkv,         q_per_group * d, seq, batch, groups, d, 1, batch * groups * group_stride, groups * group_stride,
      group_stride};
  QkvHeads views{kv, kv, kv};
  views.q.offset = 0;
  views.q.heads = groups * q_per_group;
  views.q.group_size = q_per_group;
  views.v.offset += d;
  return views;
}

namespace ops {

void rope_table(const std::vector<double>& frequencies, double magnitude, Tensor& cos, Tensor& sin) {
  const i64 positions = cos.dim(0), channels = static_cast<i64>(frequencies.size());
  check_shape("rope_table", "cos", cos, {positions, channels});
  check_shape("rope_table", "sin", sin, {positions, channels});
  if (cos.device().type() == DeviceType::Meta) return;
  on_float(cos.dtype(), [&]<class T>() {
    std::vector<T> cosines, sines;
    for (i64 p = 0; p < positions; ++p) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(p) * frequency;
        cosines.push_back(from_double<T>(magnitude * std::cos(angle)));
        sines.push_back(from_double<T>(magnitude * std::sin(angle)));
      }
    }
    write_values(cosines, cos);
    write_values(sines, sin);
  });
}

void rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions, bool is_inverse) {
  check_heads("rope", x);
  check_shape("rope", "sin", sin, cos.shape());
  MCPP_CHECK(cos.dtype() == accumulate_dtype(x.base.dtype()) && 2 * cos.dim(1) <= x.head_dim, "rope: a ",
             name_of(cos.dtype()), " table ", cos.shape(), " does not match heads of ", x.head_dim, " channels");
  check_table("rope", positions, x.seq, x.batch, cos);
  on_device(
      x.base, [&] { return element_record(OpKind::Rotary, x.seq * x.batch * x.heads * x.head_dim, is_inverse); },
      [&]<DeviceType D>() { Kernels<D>::rope(x, cos, sin, positions, is_inverse); });
}

void attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  const Heads& q = x.q;
  check_attention("attention", x, options);
  const i64 outputs = q.seq * q.batch * q.heads * x.v.head_dim;
  MCPP_CHECK(y.out.defined() && y.out.numel() == outputs, "attention: out must have ", outputs, " elements");
  check_result("attention", "out", y.out.dtype(), q.base.dtype());
  check_accumulate_dtype("attention", "lse", y.lse, q.base, q.batch * q.heads * q.seq);
  on_device(
      y.out, [&] { return attention_record(x, options, false); },
      [&]<DeviceType D>() { Kernels<D>::attention(x, options, y); });
}

void attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const AttentionOptions& options, QkvHeads& dx) {
  check_attention("attention_backward", x, options);
  check_gradient("attention_backward", "dx.q", dx.q, x.q);
  check_gradient("attention_backward", "dx.k", dx.k, x.k);
  check_gradient("attention_backward", "dx.v", dx.v, x.v);
  const Heads& q = x.q;
  check_vector("attention_backward", "out", y.out, q.base, q.seq * q.batch * q.heads * x.v.head_dim);
  check_same("attention_backward", "dout", dout, y.out);
  on_device(
      dout, [&] { return attention_record(x, options, true); },
      [&]<DeviceType D>() { Kernels<D>::attention_backward(dout, x, y, options, dx); });
}

void copy_heads(const Heads& from, Heads& to) {
  check_heads("copy_heads", from);
  check_heads("copy_heads", to);
  MCPP_CHECK(is_alike(from, to), "copy_heads: [", from.seq, ", ", from.batch, ", ", from.heads, ", ", from.head_dim,
             "] does not match [", to.seq, ", ", to.batch, ", ", to.heads, ", ", to.head_dim, "]");
  const auto describe = [&] {
    OpRecord record;
    record.bytes = static_cast<double>(from.seq * from.batch * from.heads * from.head_dim) *
                   static_cast<double>(size_of(from.base.dtype()) + size_of(to.base.dtype()));
    return record;
  };
  on_device(from.base, describe, [&]<DeviceType D>() { Kernels<D>::copy_heads(from, to); });
}

void merge_attention(const AttentionResult& part, AttentionResult& total) {
  MCPP_CHECK(part.out.rank() == 3 && part.lse.rank() == 3 && part.lse.dim(0) == part.out.dim(1) &&
                 part.lse.dim(2) == part.out.dim(0) && part.lse.dim(1) > 0 && part.out.dim(2) % part.lse.dim(1) == 0,
             "merge_attention: shapes of out ", part.out.shape(), " and lse ", part.lse.shape(), " do not match");
  check_shape("merge_attention", "total.out", total.out, part.out.shape());
  check_shape("merge_attention", "total.lse", total.lse, part.lse.shape());
  MCPP_CHECK(total.out.dtype() == part.out.dtype() || total.out.dtype() == accumulate_dtype(part.out.dtype()),
             "merge_attention: cannot merge ", name_of(part.out.dtype()), " into ", name_of(total.out.dtype()));
  for (const Tensor* lse : {&part.lse, static_cast<const Tensor*>(&total.lse)})
    check_accumulate_dtype("merge_attention", "lse", *lse, part.out, part.lse.numel());
  on_device(
      part.out,
      [&] {
        return memory_record({&part.out, &part.lse, &total.out, &total.lse, &total.out, &total.lse},
                             OpKind::AttentionMerge);
      },
      [&]<DeviceType D>() { Kernels<D>::merge_attention(part, total); });
}

namespace {

/// Checks shapes and types of a result, and of one value per head if `per_head` is not null.
void check_sinks(const char* op, const AttentionResult& y, const Tensor* per_head) {
  MCPP_CHECK(y.out.defined() && y.lse.defined() && y.out.rank() == 3 && y.lse.rank() == 3 &&
                 y.lse.dim(0) == y.out.dim(1) && y.lse.dim(2) == y.out.dim(0) && y.lse.dim(1) > 0 &&
                 y.out.dim(2) % y.lse.dim(1) == 0,
             op, ": shapes of out and lse do not match");
  check_accumulate_dtype(op, "lse", y.lse, y.out, y.lse.numel());
  if (per_head) check_vector(op, "sinks", *per_head, y.out, y.lse.dim(1));
}

}  // namespace

void attention_sink(const Tensor* sinks, AttentionResult& y) {
  check_sinks("attention_sink", y, sinks);
  on_device(y.out, [&]<DeviceType D>() { Kernels<D>::attention_sink(sinks, y); });
}

void attention_sink_backward(const Tensor& dout, const AttentionResult& y, const Tensor& sinks, Tensor& d_sinks,
                             float beta) {
  check_sinks("attention_sink_backward", y, &sinks);
  const i64 seq = y.out.dim(0), batch = y.out.dim(1), heads = y.lse.dim(1), dim = y.out.dim(2) / heads;
  check_shape("attention_sink_backward", "dout", dout, y.out.shape());
  check_accumulate_dtype("attention_sink_backward", "d_sinks", d_sinks, y.out, heads);
  const Shape rows{seq * batch * heads, dim};
  Tensor dots = Tensor::empty({seq * batch * heads}, y.lse.dtype(), dout.device(), MemoryClass::Workspace);
  row_dots(dout.view(rows), y.out.view(rows), nullptr, 0, dots);
  dots = dots.view({seq, batch, heads});
  on_device(dots, [&]<DeviceType D>() { Kernels<D>::scale_by_sinks(sinks, y.lse, dots); });
  column_sum(dots.view({seq * batch, heads}), d_sinks, beta);
}

void chunk_starts(const PositionRanges& positions, i64 chunk, const Tensor* documents, Tensor& starts) {
  MCPP_CHECK(chunk > 0, "chunk_starts: chunk must be positive, not ", chunk);
  MCPP_CHECK(starts.defined() && starts.rank() == 2, "chunk_starts: starts must be [s, b]");
  for (const Tensor* t : {documents, static_cast<const Tensor*>(&starts)})
    if (t) check_positions("chunk_starts", {positions, *t}, starts.dim(0), starts.dim(1));
  on_device(starts, [&]<DeviceType D>() { Kernels<D>::chunk_starts(positions, chunk, documents, starts); });
}

void add_positions(Tensor& y, const Tensor& table, const Positions& positions) {
  MCPP_CHECK(y.rank() == 3 && table.rank() == 2 && y.dim(2) == table.dim(1) && y.dtype() == table.dtype(),
             "add_positions: y ", y.shape(), " and table ", table.shape(), " do not match");
  check_table("add_positions", positions, y.dim(0), y.dim(1), table);
  on_device(y, [&]<DeviceType D>() { Kernels<D>::add_positions(y, table, positions); });
}

void add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable, float beta) {
  MCPP_CHECK(dy.rank() == 3 && dtable.rank() == 2 && dy.dim(2) == dtable.dim(1) &&
                 dtable.dtype() == accumulate_dtype(dy.dtype()),
             "add_positions_backward: dy ", dy.shape(), " and dtable ", dtable.shape(), " do not match");
  check_table("add_positions_backward", positions, dy.dim(0), dy.dim(1), dtable);
  on_device(dy, [&]<DeviceType D>() { Kernels<D>::add_positions_backward(dy, positions, dtable, beta); });
}

}  // namespace ops
}  // namespace mcpp
