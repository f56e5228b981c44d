#include "dtensor/runtime/device/print.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/number_text.h"

namespace dtensor {
namespace {

// More are never shown: edges cannot shorten a tensor of very many short dimensions.
constexpr int64_t kMostShown = 100'000;

template <typename T>
std::string ElementText(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return absl::StrCat(value);
  } else {
    const double number = static_cast<double>(
        static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value));
    if (std::isnan(number)) return "nan";  // also if its sign is set
    return RoundedText(number, sizeof(T) == 2 ? 4 : 6);
  }
}

class Printer {
 public:
  Printer(const Tensor& tensor, const PrintOptions& options)
      : tensor_(tensor), edge_(std::clamp<int64_t>(options.edge, 1, kMostShown)) {
    crops_ = Count() > std::clamp<int64_t>(options.max_elements, 1, kMostShown);
    while (edge_ > 1 && Count() > kMostShown) edge_ /= 2;
  }

  std::string Values() {
    if (Count() > kMostShown) return "too many dimensions to show; print a part (Narrow)";
    VisitDType(tensor_.dtype(),
               [&](auto element) { Collect(tensor_.data<decltype(element)>(), 0); });
    for (const std::string& text : texts_) width_ = std::max(width_, text.size());
    std::string out;
    Append(0, out);
    return out;
  }

 private:
  // The number of elements that are shown; if there are none, of the brackets around them.
  int64_t Count() const {
    int64_t count = 1;
    for (int dim = 0; dim < tensor_.ndim() && count <= kMostShown; ++dim) {
      const int64_t shown = Crops(dim) ? 2 * edge_ : std::max<int64_t>(tensor_.size(dim), 1);
      if (__builtin_mul_overflow(count, shown, &count)) return kMostShown + 1;
    }
    return count;
  }
  bool Crops(int dim) const { return crops_ && tensor_.size(dim) > 2 * edge_; }

  // Calls fn(i) for each index of `dim` that is shown, and gap() where some are left out.
  template <typename Fn, typename Gap>
  void ForEachShown(int dim, Fn fn, Gap gap) const {
    const int64_t size = tensor_.size(dim);
    for (int64_t i = 0; i < size; ++i) {
      if (Crops(dim) && i == edge_) {
        gap();
        i = size - edge_;
      }
      fn(i);
    }
  }

  template <typename T>
  void Collect(const T* data, int dim) {
    if (dim == tensor_.ndim()) {
      texts_.push_back(ElementText(*data));
      return;
    }
    ForEachShown(
        dim, [&](int64_t i) { Collect(data + i * tensor_.strides()[dim], dim + 1); }, [] {});
  }

  void Append(int dim, std::string& out) {
    if (dim == tensor_.ndim()) {
      const std::string& text = texts_[next_++];
      out.append(tensor_.ndim() == 0 ? 0 : width_ - text.size(), ' ');
      out += text;
      return;
    }
    const bool is_last = dim + 1 == tensor_.ndim();
    const std::string between = is_last ? " " : "\n" + std::string(dim + 1, ' ');
    bool is_first = true;
    const auto separate = [&] {
      out += is_first ? "" : between;
      is_first = false;
    };
    out += '[';
    ForEachShown(
        dim,
        [&](int64_t) {
          separate();
          Append(dim + 1, out);
        },
        [&] {
          separate();
          out += "...";
        });
    out += ']';
  }

  const Tensor& tensor_;
  int64_t edge_;
  bool crops_ = false;
  std::vector<std::string> texts_;  // of what is shown, row-major
  size_t next_ = 0, width_ = 0;
};

std::string ValuesText(const Tensor& tensor, const PrintOptions& options) {
  Device& device = tensor.device();
  if (device.is_meta()) return ", which has no values";
  if (device.kind() == Device::Kind::kCuda) {
    return "; its values are on the GPU, and ToHost<T>(tensor) copies them (device/tensor.h)";
  }
  if (absl::Status status = device.Synchronize(); !status.ok()) {
    return absl::StrCat("; no values, since the device failed: ", status.message());
  }
  return absl::StrCat("\n", Printer(tensor, options).Values());
}

}  // namespace

std::string ToString(const Tensor& tensor, const PrintOptions& options) {
  if (!tensor.defined()) return "undefined";
  std::string out = absl::StrCat(DimsToString(tensor.shape()), " ", ToString(tensor.dtype()));
  if (!tensor.is_contiguous()) absl::StrAppend(&out, ", strides ", DimsToString(tensor.strides()));
  absl::StrAppend(&out, " on ", ToString(tensor.device().kind()));
  return out + ValuesText(tensor, options);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << ToString(tensor);
}

}  // namespace dtensor
