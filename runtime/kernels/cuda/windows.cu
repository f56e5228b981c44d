#include "dtensor/runtime/kernels/cuda/windows.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// The arguments with rows, and the strides between them, in pieces: as much as is moved together.
template <typename Piece>
struct PieceArgs {
  WindowsShape shape;
  Piece value;
  const Piece* x;
  Piece* y;
};

// A thread writes one piece of y.
template <typename Piece>
__global__ void WindowsKernel(const __grid_constant__ PieceArgs<Piece> a, int64_t pieces) {
  const WindowsShape& s = a.shape;
  WithIndex(pieces, [&](auto all) {
    using Index = decltype(all);
    const Index row = static_cast<Index>(s.row), size = static_cast<Index>(s.size),
                inner = static_cast<Index>(s.inner), windows = static_cast<Index>(s.windows);
    ForEachPiece<Index>(all, [&](Index at) {
      Index rest = at / row;
      const auto c = static_cast<int64_t>(at - rest * row);
      const Index block = rest / size;
      const auto j = static_cast<int64_t>(rest - block * size);
      rest = block / inner;
      const auto b = static_cast<int64_t>(block - rest * inner);
      const Index outer = rest / windows;
      const auto i = static_cast<int64_t>(rest - outer * windows);
      const auto o = static_cast<int64_t>(outer);
      const int64_t p = s.steps.first + i * s.steps.step + j * s.steps.dilation;
      const int64_t to = ((i * s.inner + b) * s.size + j) * s.row + c;
      a.y[o * s.windows_outer_stride + to] =
          0 <= p && p < s.n ? a.x[o * s.outer_stride + (p * s.inner + b) * s.row + c] : a.value;
    });
  });
}

// A thread adds up the copies of one element of x.
template <typename T>
__global__ void WindowsGradKernel(const __grid_constant__ WindowsGradArgs a, int64_t elements) {
  const WindowsShape& s = a.shape;
  WithIndex(elements, [&](auto all) {
    using Index = decltype(all);
    const Index row = static_cast<Index>(s.row), inner = static_cast<Index>(s.inner),
                n = static_cast<Index>(s.n);
    ForEachPiece<Index>(all, [&](Index at) {
      Index rest = at / row;
      const auto c = static_cast<int64_t>(at - rest * row);
      const Index place = rest / inner;
      const auto b = static_cast<int64_t>(rest - place * inner);
      const Index outer = place / n;
      const auto p = static_cast<int64_t>(place - outer * n);
      const T* const dy =
          static_cast<const T*>(a.dy) + static_cast<int64_t>(outer) * s.windows_outer_stride + c;
      Compute<T> sum = 0;
      int64_t from_first = p - s.steps.first;
      for (int64_t j = 0; j < s.size && from_first >= 0; ++j, from_first -= s.steps.dilation) {
        const int64_t i = Divide(from_first, s.steps.step);
        if (i * s.steps.step != from_first || i >= s.windows) continue;
        sum += Widen(dy[((i * s.inner + b) * s.size + j) * s.row]);
      }
      static_cast<T*>(a.dx)[static_cast<int64_t>(at)] = Round<T>(sum);
    });
  });
}

// Whether rows consist of pieces of `bytes` bytes, in which x and y are aligned.
bool IsInPieces(const WindowsArgs& a, int64_t bytes) {
  const int64_t size = SizeOf(a.shape.dtype);
  const auto fits = [bytes](int64_t distance) { return distance % bytes == 0; };
  return fits(a.shape.row * size) &&
         (a.shape.outer == 1 ||
          (fits(a.shape.outer_stride * size) && fits(a.shape.windows_outer_stride * size))) &&
         fits(static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.x))) &&
         fits(static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.y)));
}

template <typename Piece>
absl::Status CopyPieces(Device& device, const char* kernel, const WindowsArgs& args) {
  const int64_t size = SizeOf(args.shape.dtype), in_piece = sizeof(Piece) / size;
  PieceArgs<Piece> pieces = {
      args.shape, {}, static_cast<const Piece*>(args.x), static_cast<Piece*>(args.y)};
  VisitDType(args.shape.dtype, [&](auto t) {
    const auto value = Cast<decltype(t)>(args.value);
    for (int64_t i = 0; i < in_piece; ++i) {
      std::memcpy(reinterpret_cast<std::byte*>(&pieces.value) + i * size, &value, size);
    }
  });
  WindowsShape& s = pieces.shape;
  s.row /= in_piece;
  s.outer_stride /= in_piece;
  s.windows_outer_stride /= in_piece;
  const int64_t all = s.outer * s.windows * s.inner * s.size * s.row;
  return Launch(device, kernel, BlocksFor(all), kThreads, WindowsKernel<Piece>, pieces, all);
}

}  // namespace

absl::Status Windows(Device& device, const char* kernel, const WindowsArgs& args) {
  const WindowsShape& s = args.shape;
  const bool is_empty = s.outer == 0 || s.windows == 0 || s.inner == 0 || s.size == 0 || s.row == 0;
  if (is_empty) return device.failure();
  if (IsInPieces(args, 16)) return CopyPieces<Pack<uint64_t, 2>>(device, kernel, args);
  return WithBits(SizeOf(s.dtype), [&](auto bits) {
    return CopyPieces<Pack<decltype(bits), 1>>(device, kernel, args);
  });
}

absl::Status WindowsGrad(Device& device, const char* kernel, const WindowsGradArgs& args) {
  const WindowsShape& s = args.shape;
  if (s.outer == 0 || s.n == 0 || s.inner == 0 || s.row == 0) return device.failure();
  const int64_t elements = s.outer * s.n * s.inner * s.row;
  return VisitFloat(s.dtype, [&](auto t) {
    return Launch(device, kernel, BlocksFor(elements), kThreads, WindowsGradKernel<decltype(t)>,
                  args, elements);
  });
}

}  // namespace dtensor::kernels::cuda
