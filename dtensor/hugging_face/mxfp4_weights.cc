#include "dtensor/hugging_face/mxfp4_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace internal {
namespace {

constexpr int64_t kBlock = 32, kBlockBytes = kBlock / 2;

// A sign, 2 bits of exponent (bias 1) and one of mantissa.
constexpr std::array<float, 16> kE2m1 = {0,    .5F,  1,  1.5F,  2,  3,  4,  6,
                                         -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};

float FromE8m0(uint8_t byte) {
  return byte == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, byte - 127);
}

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const SafetensorsFolder::Tensor& tensor,
                                               const std::string& name,
                                               absl::Span<const IndexSet> region) {
  int64_t n = 1;
  for (const IndexSet& indices : region) n *= indices.size();
  std::vector<uint8_t> bytes(n);
  DT_RETURN_IF_ERROR(
      tensor.file->ReadRegion(name, region, reinterpret_cast<std::byte*>(bytes.data())));
  return bytes;
}

class Mxfp4Weight : public QuantizedWeight {
 public:
  Mxfp4Weight(const std::string& name, SafetensorsFolder::Tensor blocks,
              SafetensorsFolder::Tensor scales)
      : blocks_name_(Mxfp4BlocksName(name)),
        scales_name_(Mxfp4ScalesName(name)),
        blocks_(std::move(blocks)),
        scales_(std::move(scales)) {
    const Dims& packed = blocks_.info->shape;
    shape_ = {packed[0], packed[2] * kBlock, packed[1]};
  }
  const Dims& shape() const override { return shape_; }
  const Dims& block() const override { return block_; }

  absl::StatusOr<int64_t> ReadRegion(absl::Span<const IndexSet> region, float* out) const override {
    const IndexSet &experts = region[0], &in = region[1], &columns = region[2];
    const int64_t first = in.At(0) / kBlock, groups = in.At(in.size() - 1) / kBlock + 1 - first;
    const IndexSet touched = IndexSet::Interval(first, first + groups);
    DT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                        ReadBytes(blocks_, blocks_name_,
                                  {experts, columns, touched, IndexSet::Interval(0, kBlockBytes)}));
    DT_ASSIGN_OR_RETURN(const std::vector<uint8_t> exponents,
                        ReadBytes(scales_, scales_name_, {experts, columns, touched}));
    std::vector<float> scales(exponents.size());
    std::transform(exponents.begin(), exponents.end(), scales.begin(), FromE8m0);
    for (int64_t i = 0; i < in.size(); ++i) {
      const int64_t element = in.At(i) - first * kBlock, shift = element % 2 * 4;
      for (int64_t e = 0; e < experts.size(); ++e) {
        for (int64_t c = 0; c < columns.size(); ++c) {
          const int64_t row = e * columns.size() + c;
          const uint8_t byte = bytes[row * groups * kBlockBytes + element / 2];
          out[(e * in.size() + i) * columns.size() + c] =
              kE2m1[byte >> shift & 15] * scales[row * groups + element / kBlock];
        }
      }
    }
    return static_cast<int64_t>(bytes.size() + scales.size());
  }

 private:
  const std::string blocks_name_, scales_name_;
  const SafetensorsFolder::Tensor blocks_, scales_;
  Dims shape_;
  const Dims block_ = {1, kBlock, 1};
};

}  // namespace

std::string Mxfp4BlocksName(absl::string_view name) { return absl::StrCat(name, "_blocks"); }
std::string Mxfp4ScalesName(absl::string_view name) { return absl::StrCat(name, "_scales"); }

absl::StatusOr<QuantizedWeightPtr> FindMxfp4(const SafetensorsFolder& folder,
                                             const std::string& name) {
  const SafetensorsFolder::Tensor& blocks = folder.tensors().find(Mxfp4BlocksName(name))->second;
  const Dims& packed = blocks.info->shape;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"'", blocks.file->path(), "': tensor ", Mxfp4BlocksName(name), " is ",
                            blocks.info->type, " ", DimsToString(packed), ", ", why});
  };
  if (blocks.info->type != "U8" || packed.size() != 4 || packed[3] != kBlockBytes) {
    return refuse("and in MXFP4 it is U8 [experts, out, in / 32, 16]");
  }
  const auto scales = folder.tensors().find(Mxfp4ScalesName(name));
  if (scales == folder.tensors().end()) {
    return refuse(absl::StrCat("and has no scales: ", Mxfp4ScalesName(name), " is missing"));
  }
  const SafetensorsInfo& info = *scales->second.info;
  const Dims wanted(packed.begin(), packed.end() - 1);
  if (info.type != "U8" || info.shape != wanted) {
    return refuse(absl::StrCat("and its scales are ", info.type, " ", DimsToString(info.shape),
                               "; in MXFP4 they are U8 ", DimsToString(wanted)));
  }
  return std::make_shared<Mxfp4Weight>(name, blocks, scales->second);
}

}  // namespace internal
}  // namespace dtensor
