// Kernels that memory bounds, beside a copy: see figure.h. Bytes are the least that a kernel must
// read and write once, its vectors and rows' statistics left out: one that reads an operand twice
// has a share of 2/3 or less.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/bench/gpu/noise.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/norm.h"
#include "dtensor/runtime/kernels/optimizer.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/runtime/kernels/softmax.h"

namespace dtensor::bench {
namespace {

struct Kernel {
  const char* name;
  int64_t bytes;
  Call call;
};

// What the kernels below work on; results are written over each other.
struct Operands {
  static absl::StatusOr<Operands> Make(Device& device, int64_t rows, int64_t columns);

  int64_t rows, columns;
  Tensor x, y, z;                                    // [rows, columns] bf16
  Tensor weight, bias, of_columns, more_of_columns;  // [columns] bf16
  Tensor mean, rstd;                                 // [rows] f32
  Tensor m, v;                                       // [rows, columns] f32
  Tensor ids;                                        // [rows] i32: each row once
  Tensor logits, targets, lse, dloss, stats;         // x, of fewer and longer rows
};

// The numbers below `limit` in an order that no cache helps, again and again: 7919 is a prime.
absl::StatusOr<Tensor> Shuffled(Device& device, int64_t count, int64_t limit) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i * 7919 % limit);
  DT_ASSIGN_OR_RETURN(const Tensor tensor, FromHost<int32_t>(device, ids, {count}));
  DT_RETURN_IF_ERROR(device.Synchronize());  // `ids` goes
  return tensor;
}

absl::StatusOr<Operands> Operands::Make(Device& device, int64_t rows, int64_t columns) {
  Operands o = {rows, columns};
  const int64_t tokens = rows / 4, classes = 4 * columns;
  const std::pair<Tensor*, Dims> narrow[] = {
      {&o.x, {rows, columns}},        {&o.y, {rows, columns}}, {&o.z, {rows, columns}},
      {&o.weight, {columns}},         {&o.bias, {columns}},    {&o.of_columns, {columns}},
      {&o.more_of_columns, {columns}}};
  const std::pair<Tensor*, Dims> wide[] = {
      {&o.mean, {rows}},  {&o.rstd, {rows}},    {&o.m, {rows, columns}}, {&o.v, {rows, columns}},
      {&o.lse, {tokens}}, {&o.dloss, {tokens}}, {&o.stats, {tokens, 3}}};
  for (const auto& [tensor, shape] : narrow) {
    DT_ASSIGN_OR_RETURN(*tensor, Noise(device, DType::kBF16, shape));
  }
  for (const auto& [tensor, shape] : wide) {
    DT_ASSIGN_OR_RETURN(*tensor, Noise(device, DType::kF32, shape));
  }
  DT_RETURN_IF_ERROR(kernels::Fill(device, o.v, 1));  // AdamW takes its root
  DT_ASSIGN_OR_RETURN(o.ids, Shuffled(device, rows, rows));
  DT_ASSIGN_OR_RETURN(o.logits, o.x.Reshape({tokens, classes}));
  DT_ASSIGN_OR_RETURN(o.targets, Shuffled(device, tokens, classes));
  return o;
}

std::vector<Kernel> ElementKernels(Device& device, const Operands& o) {
  const int64_t one = o.x.bytes();
  return {
      {"add", 3 * one,
       [&o, &device] { return kernels::Binary(device, kernels::BinaryOp::kAdd, o.x, o.y, o.z); }},
      {"silu_mul", 3 * one, [&o, &device] { return kernels::SiluMul(device, o.x, o.y, o.z); }},
      {"cast", o.m.bytes() + one,
       [&o, &device] { return kernels::Unary(device, kernels::UnaryOp::kCopy, o.m, o.z); }},
      {"transpose", 2 * one,
       [&o, &device] {
         return kernels::Unary(device, kernels::UnaryOp::kCopy, o.x.Transpose(0, 1),
                               *o.z.Reshape({o.columns, o.rows}));
       }},
      {"dropout", 2 * one,
       [&o, &device] {
         const IndexSet region[] = {IndexSet::Interval(0, o.rows),
                                    IndexSet::Interval(0, o.columns)};
         return kernels::Dropout(device, o.x, region, o.x.shape(), 1, 2, 0.1, o.z);
       }},
      {"adamw", 3 * one + 4 * o.m.bytes(), [&o, &device] {
         return kernels::AdamW(device, {.lr = 1e-4}, o.z, o.y, o.m, o.v, Tensor());
       }}};
}

std::vector<Kernel> RowKernels(Device& device, const Operands& o) {
  const int64_t one = o.x.bytes();
  return {
      {"softmax", 2 * one,
       [&o, &device] { return kernels::Softmax(device, kernels::SoftmaxForm::kPlain, o.x, o.z); }},
      {"log_softmax", 2 * one,
       [&o, &device] { return kernels::Softmax(device, kernels::SoftmaxForm::kLog, o.x, o.z); }},
      {"rms_norm", 2 * one,
       [&o, &device] { return kernels::RmsNorm(device, o.x, o.weight, 1e-5, o.z, o.rstd); }},
      {"rms_norm_grad", 3 * one,
       [&o, &device] {
         return kernels::RmsNormGrad(device, o.x, o.weight, o.rstd, o.y, o.z, o.of_columns);
       }},
      {"layer_norm", 2 * one,
       [&o, &device] {
         return kernels::LayerNorm(device, o.x, o.weight, o.bias, 1e-5, o.z, o.mean, o.rstd);
       }},
      {"layer_norm_grad", 3 * one,
       [&o, &device] {
         return kernels::LayerNormGrad(device, o.x, o.weight, o.mean, o.rstd, o.y, o.z,
                                       o.of_columns, o.more_of_columns);
       }},
      {"column_sums", one,
       [&o, &device] { return kernels::Reduce(device, ReduceOp::kSum, o.x, {0}, o.of_columns); }}};
}

// Rows of a table as large as the result, each of them once.
std::vector<Kernel> EmbeddingKernels(Device& device, const Operands& o) {
  return {{"embedding", 2 * o.x.bytes(),
           [&o, &device] {
             const IndexSet rows = IndexSet::Interval(0, o.rows);
             return kernels::Embedding(device, o.ids, o.x, rows, o.rows, o.z);
           }},
          {"embedding_grad", 2 * o.x.bytes(),
           [&o, &device] {
             const IndexSet rows = IndexSet::Interval(0, o.rows);
             return kernels::EmbeddingGrad(device, o.ids, o.y, rows, o.z);
           }},
          {"rope", 2 * o.x.bytes(), [&o, &device] {
             const Dims heads = {1, o.rows, o.columns / 128, 128};
             return kernels::Rope(device, *o.x.Reshape(heads), IndexSet::Interval(0, o.rows),
                                  {10000}, false, *o.z.Reshape(heads));
           }}};
}

// Of 16384 classes each.
std::vector<Kernel> LossKernels(Device& device, const Operands& o) {
  return {{"cross_entropy", o.logits.bytes(),
           [&o, &device] {
             const int64_t classes = o.logits.size(1);
             return kernels::CrossEntropyStats(device, o.logits, o.targets,
                                               IndexSet::Interval(0, classes), {classes}, o.stats);
           }},
          {"cross_entropy_grad", 2 * o.logits.bytes(), [&o, &device] {
             const int64_t classes = o.logits.size(1);
             return kernels::CrossEntropyGrad(
                 device, o.logits, o.targets, IndexSet::Interval(0, classes), {classes},
                 {o.lse, o.lse}, o.dloss, *o.z.Reshape(o.logits.shape()));
           }}};
}

}  // namespace

absl::StatusOr<double> MeasureMemory(Device& device, const Scale& scale, const Report& report) {
  // 256 MiB in bf16.
  DT_ASSIGN_OR_RETURN(const Operands o, Operands::Make(device, scale.Of(32768, 4), 4096));
  DT_ASSIGN_OR_RETURN(const double copy, SecondsOf(device, scale, [&] {
                        return device.CopyOnDevice(o.y.raw(), o.x.raw(), o.x.bytes());
                      }));
  const double limit = 2 * static_cast<double>(o.x.bytes()) / copy / 1e9;
  report({"memory/copy", limit, "GB/s", "", 0, ""});
  for (const auto& kernels : {ElementKernels(device, o), RowKernels(device, o),
                              EmbeddingKernels(device, o), LossKernels(device, o)}) {
    for (const Kernel& kernel : kernels) {
      DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, kernel.call));
      const double rate = static_cast<double>(kernel.bytes) / seconds / 1e9;
      report({absl::StrCat("memory/", kernel.name), rate, "GB/s", "the copy", rate / limit, ""});
    }
  }
  return limit;
}

}  // namespace dtensor::bench
