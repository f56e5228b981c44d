#include "dtensor/hugging_face/fp8_weights.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"

namespace dtensor {
namespace internal {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

// The value of a byte: a sign, 4 bits of exponent (bias 7) and 3 of mantissa; 0x7f and 0xff are
// NaN, and there are no infinities (Micikevicius et al. 2022, "FP8 formats for deep learning").
float FromE4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)  // subnormal
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return byte & 0x80 ? -magnitude : magnitude;
}

const std::array<float, 256>& E4m3Values() {
  static const auto* const values = [] {
    auto* const all = new std::array<float, 256>;
    for (int byte = 0; byte < 256; ++byte) (*all)[byte] = FromE4m3(static_cast<uint8_t>(byte));
    return all;
  }();
  return *values;
}

// Those blocks of one dimension that have indices of a set.
struct TouchedBlocks {
  IndexSet blocks;          // an interval
  std::vector<int64_t> at;  // of each index, the position of its block in the interval
  int64_t size() const { return blocks.size(); }
};

TouchedBlocks BlocksOf(const IndexSet& indices, int64_t block) {
  const int64_t first = indices.At(0) / block, last = indices.At(indices.size() - 1) / block;
  TouchedBlocks touched = {IndexSet::Interval(first, last + 1), {}};
  touched.at.reserve(indices.size());
  for (const IndexRun& run : indices.runs()) {
    for (int64_t j = 0; j < run.count; ++j) {
      for (int64_t i = 0; i < run.length; ++i) {
        touched.at.push_back((run.begin + j * run.stride + i) / block - first);
      }
    }
  }
  return touched;
}

absl::StatusOr<std::vector<float>> ReadFloats(const SafetensorsFolder::Tensor& tensor,
                                              const std::string& name,
                                              absl::Span<const IndexSet> region) {
  int64_t n = 1;
  for (const IndexSet& indices : region) n *= indices.size();
  std::vector<std::byte> bytes(n * SizeOf(*tensor.info->dtype));
  DT_RETURN_IF_ERROR(tensor.file->ReadRegion(name, region, bytes.data()));
  std::vector<float> values(n);
  VisitDType(*tensor.info->dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < n; ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<float>(value);
    }
  });
  return values;
}

class Fp8Weight : public QuantizedWeight {
 public:
  static absl::StatusOr<QuantizedWeightPtr> Find(const SafetensorsFolder& folder,
                                                 const std::string& name,
                                                 absl::Span<const int64_t> block);
  const Dims& shape() const override { return stored_.info->shape; }
  const Dims& block() const override { return block_; }
  absl::StatusOr<int64_t> ReadRegion(absl::Span<const IndexSet> region, float* out) const override;

 private:
  std::string name_, scales_name_;
  SafetensorsFolder::Tensor stored_, scales_;
  Dims block_;
};

absl::StatusOr<QuantizedWeightPtr> Fp8Weight::Find(const SafetensorsFolder& folder,
                                                   const std::string& name,
                                                   absl::Span<const int64_t> block) {
  const auto found = std::make_shared<Fp8Weight>();
  Fp8Weight& weight = *found;
  weight.name_ = name;
  weight.stored_ = folder.tensors().find(name)->second;
  weight.scales_name_ = Fp8ScalesName(name);
  const Dims& shape = weight.stored_.info->shape;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"'", weight.stored_.file->path(), "': tensor ", absl::string_view(name),
                            " ", DimsToString(shape), " is in FP8, ", why});
  };
  if (shape.size() < 2) return refuse("and only matrices can be: they have blocks");
  const auto scales = folder.tensors().find(weight.scales_name_);
  if (scales == folder.tensors().end()) {
    return refuse(absl::StrCat("and has no scales: ", weight.scales_name_, " is missing"));
  }
  weight.scales_ = scales->second;
  weight.block_ = Dims(shape.size(), 1);
  Dims count = shape;
  for (size_t i = 0; i < 2; ++i) {
    const size_t d = shape.size() - 2 + i;
    weight.block_[d] = block[i];
    count[d] = (shape[d] + block[i] - 1) / block[i];
  }
  const SafetensorsInfo& info = *weight.scales_.info;
  if (info.shape != count || !info.dtype || !IsFloat(*info.dtype)) {
    return refuse(absl::StrCat("and its scales are ", info.type, " ", DimsToString(info.shape),
                               "; with blocks of ", DimsToString(block), " they are floats ",
                               DimsToString(count)));
  }
  return found;
}

absl::StatusOr<int64_t> Fp8Weight::ReadRegion(absl::Span<const IndexSet> region, float* out) const {
  std::vector<TouchedBlocks> touched;
  std::vector<IndexSet> blocks;
  int64_t n = 1;
  for (size_t d = 0; d < region.size(); ++d) {
    n *= region[d].size();
    touched.push_back(BlocksOf(region[d], block_[d]));
    blocks.push_back(touched[d].blocks);
  }
  std::vector<uint8_t> bytes(n);
  DT_RETURN_IF_ERROR(
      stored_.file->ReadRegion(name_, region, reinterpret_cast<std::byte*>(bytes.data())));
  DT_ASSIGN_OR_RETURN(const std::vector<float> scales, ReadFloats(scales_, scales_name_, blocks));
  const std::array<float, 256>& values = E4m3Values();
  const std::vector<int64_t>& column_block = touched.back().at;
  const int64_t columns = static_cast<int64_t>(column_block.size());
  for (int64_t row = 0; row * columns < n; ++row) {
    int64_t rest = row, first = 0, stride = touched.back().size();
    for (size_t d = touched.size() - 1; d-- > 0;) {
      const int64_t size = static_cast<int64_t>(touched[d].at.size());
      first += touched[d].at[rest % size] * stride;
      stride *= touched[d].size();
      rest /= size;
    }
    for (int64_t i = 0; i < columns; ++i) {
      out[row * columns + i] = values[bytes[row * columns + i]] * scales[first + column_block[i]];
    }
  }
  return n + static_cast<int64_t>(scales.size()) * SizeOf(*scales_.info->dtype);
}

}  // namespace

bool IsFp8(const SafetensorsInfo& info) { return info.type == "F8_E4M3"; }
std::string Fp8ScalesName(absl::string_view name) { return absl::StrCat(name, "_scale_inv"); }

absl::StatusOr<Dims> ReadFp8Block(const std::string& config_path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kMaxConfigBytes));
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse(config_path, text));
  const std::vector<int64_t> block = json.Fp8Block();
  DT_RETURN_IF_ERROR(json.status());
  if (!block.empty()) return Dims(block.begin(), block.end());
  return InvalidArgument({config_path,
                          ": there is no quantization_config, which weights in FP8 "
                          "need for the size of their blocks"});
}

absl::StatusOr<QuantizedWeightPtr> FindFp8(const SafetensorsFolder& folder, const std::string& name,
                                           absl::Span<const int64_t> block) {
  return Fp8Weight::Find(folder, name, block);
}

}  // namespace internal
}  // namespace dtensor
