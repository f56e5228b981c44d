#include "dtensor/runtime/testing/boxes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

namespace dtensor::box_testing {
namespace {

MatchedRun RandomPiece(TestRandom& random) {
  MatchedRun piece;
  piece.length = random.Chance(3) ? 0 : random.In(1, random.Chance(10) ? 40 : 5);
  piece.count = random.Chance(60) ? 1 : random.In(1, 3);
  piece.src = random.In(0, 2);
  piece.dst = random.In(0, 2);
  if (piece.count > 1) {
    piece.src_stride = piece.length + random.In(0, 3);
    piece.dst_stride = piece.length + random.In(0, 3);
  }
  return piece;
}

template <typename T>
T RandomValue(TestRandom& random) {
  const int64_t small = random.In(-4, 4);
  if constexpr (std::is_same_v<T, bool>) {
    return small > 0;
  } else if constexpr (std::is_integral_v<T>) {
    return random.Chance(10) ? std::numeric_limits<T>::max() - (small + 4) : static_cast<T>(small);
  } else {
    const float value = static_cast<float>(small) + static_cast<float>(random.In(-999, 999)) / 1e3f;
    if (random.Chance(1)) return T(random.Chance(50) ? NAN : -INFINITY);
    return T(random.Chance(2) ? value * 1e-7f : value);
  }
}

// `a op b` in the accumulator's type A.
template <typename A>
A Combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::kMax:
      return a != a || a > b ? a : b;
    case ReduceOp::kMin:
      return a != a || a < b ? a : b;
    default:
      break;
  }
  const bool product = op == ReduceOp::kProduct;
  if constexpr (std::is_floating_point_v<A>) {
    return product ? a * b : a + b;
  } else {
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<A>(product ? x * y : x + y);
  }
}

template <typename T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

template <typename T>
T Read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

}  // namespace

Dims RandomStrides(TestRandom& random, absl::Span<const int64_t> shape) {
  std::vector<int> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  if (random.Chance(50)) {
    for (size_t i = 1; i < order.size(); ++i) std::swap(order[i], order[random.In(0, i)]);
  }
  Dims strides(shape.size());
  int64_t next = random.Chance(20) ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = next;
    next *= std::max<int64_t>(shape[order[i]], 1);
    if (random.Chance(20)) next += random.In(1, 3);
  }
  return strides;
}

ReceiveBox RandomReceiveBox(TestRandom& random, int ndim, absl::Span<const int> peers) {
  ReceiveBox box;
  box.peers.assign(peers.begin(), peers.end());
  for (int d = 0; d < ndim; ++d) box.dims.push_back(RandomPiece(random));
  return box;
}

Dims SourceShape(const ReceiveBox& box) {
  Dims shape;
  for (const MatchedRun& p : box.dims)
    shape.push_back(p.src + (p.count - 1) * p.src_stride + p.length);
  return shape;
}

Dims DstShape(const ReceiveBox& box) {
  Dims shape;
  for (const MatchedRun& p : box.dims)
    shape.push_back(p.dst + (p.count - 1) * p.dst_stride + p.length);
  return shape;
}

Backed RandomTensor(TestRandom& random, Device& device, DType dtype,
                    absl::Span<const int64_t> shape) {
  const Dims strides = RandomStrides(random, shape);
  int64_t elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    elements += std::max<int64_t>(shape[d] - 1, 0) * strides[d];
  }
  Backed backed;
  VisitDType(dtype, [&](auto t) {
    using T = decltype(t);
    backed.bytes.resize(elements * sizeof(T));
    for (int64_t i = 0; i < elements; ++i) {
      const T value = RandomValue<T>(random);
      std::memcpy(&backed.bytes[i * sizeof(T)], &value, sizeof(T));
    }
  });
  backed.tensor = Tensor::Adopt(device, backed.bytes.data(), dtype, shape, strides, nullptr);
  return backed;
}

void ForEachElement(const ReceiveBox& box, const Tensor& dst, const Tensor& source,
                    const ElementFn& fn) {
  // Of the dimensions before d: where the element lies.
  const std::function<void(size_t, int64_t, int64_t)> walk = [&](size_t d, int64_t s, int64_t t) {
    if (d == box.dims.size()) {
      return fn(s * SizeOf(source.dtype()), t * SizeOf(dst.dtype()));
    }
    const MatchedRun& p = box.dims[d];
    for (int64_t j = 0; j < p.count; ++j) {
      for (int64_t i = 0; i < p.length; ++i) {
        walk(d + 1, s + (p.src + j * p.src_stride + i) * source.strides()[d],
             t + (p.dst + j * p.dst_stride + i) * dst.strides()[d]);
      }
    }
  };
  walk(0, 0, 0);
}

void NaiveReduce(DType in, DType out, ReduceOp op, double scale,
                 absl::Span<const std::byte* const> terms, std::byte* dst) {
  VisitDType(in, [&](auto term) {
    using T = decltype(term);
    using A = Accumulator<T>;
    A value = static_cast<A>(Read<T>(terms[0]));
    for (size_t i = 1; i < terms.size(); ++i) {
      value = Combine(op, value, static_cast<A>(Read<T>(terms[i])));
    }
    if constexpr (std::is_floating_point_v<A>) value *= static_cast<A>(scale);
    VisitDType(out, [&](auto result) {
      result = static_cast<decltype(result)>(value);
      std::memcpy(dst, &result, sizeof(result));
    });
  });
}

bool SameElements(DType dtype, absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  return VisitDType(dtype, [&](auto t) {
    using T = decltype(t);
    for (size_t i = 0; i < a.size(); i += sizeof(T)) {
      if (std::memcmp(&a[i], &b[i], sizeof(T)) == 0) continue;
      const auto x = static_cast<Accumulator<T>>(Read<T>(&a[i]));
      const auto y = static_cast<Accumulator<T>>(Read<T>(&b[i]));
      if (x == x || y == y) return false;
    }
    return true;
  });
}

}  // namespace dtensor::box_testing
