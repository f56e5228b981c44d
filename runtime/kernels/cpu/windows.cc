#include "dtensor/runtime/kernels/cpu/windows.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"

namespace dtensor::kernels::cpu {
namespace {

// The first number j >= 0 with begin + j * step >= bound.
int64_t FirstFrom(int64_t bound, int64_t begin, int64_t step) {
  return begin >= bound ? 0 : (bound - begin + step - 1) / step;
}

// One window of rows: x [n, inner, row] from one of `inner` on, y [size, row].
template <typename T>
void CopyWindow(const WindowsShape& s, T value, const T* x, int64_t first, T* y) {
  const int64_t dilation = s.steps.dilation;
  const int64_t begin = std::min(FirstFrom(0, first, dilation), s.size);
  const int64_t end = std::clamp(FirstFrom(s.n, first, dilation), begin, s.size);
  std::fill_n(y, begin * s.row, value);
  std::fill_n(y + end * s.row, (s.size - end) * s.row, value);
  if (begin == end) return;
  const int64_t columns = s.inner * s.row;
  if (dilation == 1 && s.inner == 1) {
    std::copy_n(x + (first + begin) * columns, (end - begin) * s.row, y + begin * s.row);
    return;
  }
  for (int64_t j = begin; j < end; ++j) {
    std::copy_n(x + (first + j * dilation) * columns, s.row, y + j * s.row);
  }
}

template <typename T>
void CopyWindows(const WindowsArgs& a) {
  const WindowsShape& s = a.shape;
  const T value = Cast<T>(a.value);
  for (int64_t o = 0; o < s.outer; ++o) {
    const T* const x = static_cast<const T*>(a.x) + o * s.outer_stride;
    T* y = static_cast<T*>(a.y) + o * s.windows_outer_stride;
    for (int64_t i = 0; i < s.windows; ++i) {
      const int64_t first = s.steps.first + i * s.steps.step;
      for (int64_t b = 0; b < s.inner; ++b, y += s.size * s.row) {
        CopyWindow(s, value, x + b * s.row, first, y);
      }
    }
  }
}

// Where an element of x lies in windows, [inner, size, row] each: the offset of each of its copies.
void FindCopies(const WindowsShape& s, int64_t p, std::vector<int64_t>& copies) {
  copies.clear();
  int64_t from_first = p - s.steps.first;
  for (int64_t j = 0; j < s.size && from_first >= 0; ++j, from_first -= s.steps.dilation) {
    const int64_t i = from_first / s.steps.step;
    if (i * s.steps.step != from_first || i >= s.windows) continue;
    copies.push_back((i * s.inner * s.size + j) * s.row);
  }
}

template <typename T>
void AddCopies(const WindowsGradArgs& a) {
  const WindowsShape& s = a.shape;
  std::vector<int64_t> copies;
  std::vector<Compute<T>> sums(s.row);
  T* dx = static_cast<T*>(a.dx);
  for (int64_t o = 0; o < s.outer; ++o) {
    const T* const windows = static_cast<const T*>(a.dy) + o * s.windows_outer_stride;
    for (int64_t p = 0; p < s.n; ++p) {
      FindCopies(s, p, copies);
      for (int64_t b = 0; b < s.inner; ++b, dx += s.row) {
        std::fill(sums.begin(), sums.end(), Compute<T>{0});
        for (const int64_t copy : copies) {
          const T* const dy = windows + copy + b * s.size * s.row;
          for (int64_t c = 0; c < s.row; ++c) sums[c] += Cast<Compute<T>>(dy[c]);
        }
        RoundAll(sums.data(), dx, s.row);
      }
    }
  }
}

}  // namespace

absl::Status Windows(Device& device, const char* kernel, const WindowsArgs& args) {
  return Launch(device, kernel, args, [](const WindowsArgs& a) {
    const WindowsShape& s = a.shape;
    if (s.outer == 0 || s.inner == 0 || s.size == 0 || s.row == 0) return;
    VisitDType(a.shape.dtype, [&](auto t) { CopyWindows<decltype(t)>(a); });
  });
}

absl::Status WindowsGrad(Device& device, const char* kernel, const WindowsGradArgs& args) {
  return Launch(device, kernel, args, [](const WindowsGradArgs& a) {
    if (a.shape.outer == 0 || a.shape.inner == 0 || a.shape.row == 0) return;
    VisitFloat(a.shape.dtype, [&](auto t) { AddCopies<decltype(t)>(a); });
  });
}

}  // namespace dtensor::kernels::cpu
