#include "dtensor/checkpoint/testing/saved_tensors.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

struct Kind {
  Dims shape;
  DType dtype;
};

const std::map<std::string, Kind>& Kinds() {
  static const auto* const kinds = new std::map<std::string, Kind>{
      {"embedding.weight", {{96, 40}, DType::kF32}},
      {"norm.weight", {{40}, DType::kBF16}},
      {"up.weight", {{7, 13}, DType::kF16}},
      {"cube", {{3, 16, 11}, DType::kF64}},
      {"large", {{129, 600}, DType::kF32}},  // several blocks of checksums
      {"step", {{}, DType::kI64}},
      {"nothing", {{0, 4}, DType::kF32}},
      {"one", {{1}, DType::kI32}},
      {"mask", {{5, 6}, DType::kBool}},
      {"\xc3\xa4 \"quoted\"", {{9}, DType::kI32}}};
  return *kinds;
}

SavedPlace Place(std::string mesh, int ranks, std::string matrix, std::string vector,
                 std::string other, std::string cube, std::string large) {
  return {std::move(mesh),
          ranks,
          {{"embedding.weight", matrix},
           {"norm.weight", vector},
           {"up.weight", other},
           {"cube", std::move(cube)},
           {"large", std::move(large)},
           {"step", "scalar"},
           {"nothing", other},
           {"one", vector},
           {"mask", matrix},
           {"\xc3\xa4 \"quoted\"", vector}}};
}

// The element at a global position. It depends on the position and on `salt` only.
template <typename T>
T ValueAt(int64_t position, int64_t salt) {
  if constexpr (std::is_same_v<T, bool>) {
    return (position * 7 + salt) % 3 == 0;
  } else if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return T(static_cast<float>((position * 13 + salt * 5) % 997) / 16);
  } else {
    return static_cast<T>(position * 3 + salt);
  }
}

// Calls fn(local index, global position) for each element that the rank holds.
template <typename Fn>
void VisitLocal(const DistributedTensor& tensor, Fn fn) {
  if (!tensor.spec().on_mesh) return;
  const Region region =
      Regions(tensor.layout(), tensor.shape(), tensor.mesh().Coordinate(tensor.context().rank()));
  const int64_t count = NumElements(region);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, position = 0, stride = 1;
    for (size_t d = region.size(); d-- > 0;) {
      position += region[d].At(rest % region[d].size()) * stride;
      rest /= region[d].size();
      stride *= tensor.shape()[d];
    }
    fn(i, position);
  }
}

template <typename T>
TensorOr Filled(Context& context, const Layout& layout, const Dims& shape, int64_t salt) {
  const int64_t count = NumElements(shape);
  const std::unique_ptr<T[]> values(new T[count]);
  for (int64_t i = 0; i < count; ++i) values[i] = ValueAt<T>(i, salt);
  return Distribute<T>(context, layout, shape, absl::MakeConstSpan(values.get(), count));
}

absl::StatusOr<SavedTensors> Make(const SavedPlace& place,
                                  const std::function<TensorOr(const Layout&, const Kind&)>& make) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  SavedTensors tensors;
  for (const auto& [name, kind] : Kinds()) {
    DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(mesh, place.layouts.at(name)));
    DT_ASSIGN_OR_RETURN(tensors[name], make(layout, kind));
  }
  return tensors;
}

}  // namespace

const std::vector<SavedPlace>& SavedPlaces() {
  static const auto* const places = new std::vector<SavedPlace>{
      Place("tp=1", 1, "[] []", "[]", "[] []", "[] [] []", "[] []"),
      Place("tp=2", 2, "[tp] []", "[]", "[] [tp]", "[] [tp] []", "[tp] []"),
      Place("tp=3", 3, "[] [tp]", "[tp]", "[tp] []", "[tp] [] []", "[] [tp]"),
      Place("dp=4", 4, "[] []", "[]", "[] []", "[] [] []", "[] []"),
      Place("cp=4", 4, "[cp:zigzag] []", "[cp]", "[cp:zigzag] []", "[] [cp:zigzag] []",
            "[cp:zigzag] []"),
      Place("dp=2,tp=2", 4, "[dp,tp] []", "[tp]", "[dp] [tp]", "[tp] [dp] []", "[tp] [dp]"),
      Place("dp=2,tp=2", 4, "[tp,dp] []", "[dp]", "[tp] []", "[] [] [tp]", "[] [tp,dp]"),
      Place("dp=2,tp=3", 6, "[tp x 4] []", "[]", "[] [dp,tp]", "[dp] [tp] []", "[tp] []"),
      Place("cp=5", 5, "[_ x 4(cp)] []", "[cp]", "[cp] []", "[] [cp] []", "[_ x 3(cp)] []"),
      Place("dp=2,tp=4", 8, "[_ x 4(tp) x 3] []", "[dp,tp]", "[tp] [dp]", "[] [tp x 2] [dp]",
            "[dp,tp] []"),
      Place("a=7", 7, "[] [a]", "[a]", "[a] []", "[a] [] []", "[_ x 7(a) x 5] []"),
      Place("tp=2@1..2", 4, "[tp] []", "[tp]", "[] []", "[] [tp] []", "[] [tp:zigzag]"),
  };
  return *places;
}

absl::StatusOr<SavedTensors> MakeSavedTensors(Context& context, const SavedPlace& place,
                                              int64_t salt) {
  return Make(place, [&](const Layout& layout, const Kind& kind) {
    return VisitDType(kind.dtype, [&](auto zero) {
      return Filled<decltype(zero)>(context, layout, kind.shape, salt);
    });
  });
}

absl::StatusOr<SavedTensors> MakeEmptyTensors(Context& context, const SavedPlace& place) {
  return Make(place, [&](const Layout& layout, const Kind& kind) {
    return Full(context, layout, kind.shape, kind.dtype, 1);
  });
}

absl::Status CheckSavedTensors(const SavedTensors& tensors, int64_t salt) {
  for (const auto& named : tensors) {
    const std::string& name = named.first;
    const DistributedTensor& tensor = named.second;
    absl::Status status;
    VisitDType(tensor.dtype(), [&](auto zero) {
      using T = decltype(zero);
      const absl::StatusOr<std::vector<T>> found = ToHost<T>(tensor.local());
      status = found.status();
      if (!status.ok()) return;
      VisitLocal(tensor, [&](int64_t i, int64_t position) {
        const T expected = ValueAt<T>(position, salt);
        const T value = (*found)[i];
        if (std::memcmp(&value, &expected, sizeof(T)) == 0 || !status.ok()) return;
        status = absl::InternalError(absl::StrCat(name, ", ", tensor.ToString(), ": element ",
                                                  position, " of rank ", tensor.context().rank(),
                                                  " is another one"));
      });
    });
    DT_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

int64_t SavedBytes() {
  int64_t bytes = 0;
  for (const auto& [name, kind] : Kinds()) bytes += NumElements(kind.shape) * SizeOf(kind.dtype);
  return bytes;
}

}  // namespace dtensor
