#include "dtensor/runtime/comm/testing/random_exchanges.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/test_random.h"

namespace dtensor::box_testing {
namespace {

// One tensor of an exchange, on every rank of a group. All ranks make it from the same seed, so
// that each knows what its peers hold.
struct GlobalPart {
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  std::vector<Backed> sources, results;  // by rank of the group; results before the exchange
  std::vector<std::vector<ReceiveBox>> receives;  // by rank of the group
};

ReduceOp RandomOp(TestRandom& random, DType dtype) {
  if (dtype == DType::kBool) return random.Chance(50) ? ReduceOp::kMax : ReduceOp::kMin;
  const ReduceOp op = static_cast<ReduceOp>(random.In(0, 4));
  return op == ReduceOp::kAvg && !IsFloat(dtype) ? ReduceOp::kSum : op;
}

Dims Max(const Dims& a, const Dims& b) {
  Dims larger = a;
  for (size_t d = 0; d < b.size(); ++d) {
    d < larger.size() ? void(larger[d] = std::max(a[d], b[d])) : larger.push_back(b[d]);
  }
  return larger;
}

std::vector<int> RandomPeers(TestRandom& random, absl::Span<const int> group, bool reduces) {
  std::vector<int> peers(group.begin(), group.end());
  for (size_t i = 1; i < peers.size(); ++i) std::swap(peers[i], peers[random.In(0, i)]);
  peers.resize(reduces ? random.In(1, group.size()) : 1);
  return peers;
}

GlobalPart RandomPart(TestRandom& random, Device& device, absl::Span<const int> group) {
  const DType dtype = random.Of<DType>(kAllDTypes);
  const int ndim = random.In(1, 3);
  GlobalPart part;
  part.op = RandomOp(random, dtype);
  if (IsFloat(dtype) && random.Chance(30)) part.scale = 0.25;
  part.receives.resize(group.size());
  std::vector<Dims> results(group.size(), Dims(ndim, 0));
  Dims source(ndim, 0);
  for (size_t me = 0; me < group.size(); ++me) {
    for (int64_t boxes = random.In(0, 3); boxes > 0; --boxes) {
      ReceiveBox box =
          RandomReceiveBox(random, ndim, RandomPeers(random, group, random.Chance(50)));
      box.dims[0].dst += results[me][0];  // below the boxes before it: disjoint
      results[me] = Max(results[me], DstShape(box));
      source = Max(source, SourceShape(box));
      part.receives[me].push_back(box);
    }
  }
  for (size_t me = 0; me < group.size(); ++me) {
    part.sources.push_back(RandomTensor(random, device, dtype, source));
    part.results.push_back(RandomTensor(random, device, dtype, results[me]));
  }
  return part;
}

std::vector<std::byte> Expected(const GlobalPart& part, absl::Span<const int> group, int me) {
  const Tensor& dst = part.results[me].tensor;
  std::vector<std::byte> bytes = part.results[me].bytes;
  for (const ReceiveBox& box : part.receives[me]) {
    std::vector<std::vector<const std::byte*>> terms(box.elements());
    for (int peer : box.peers) {
      const Backed& source =
          part.sources[std::find(group.begin(), group.end(), peer) - group.begin()];
      size_t i = 0;
      ForEachElement(box, dst, source.tensor,
                     [&](int64_t from, int64_t) { terms[i++].push_back(&source.bytes[from]); });
    }
    size_t i = 0;
    ForEachElement(box, dst, dst, [&](int64_t, int64_t to) {
      NaiveReduce(dst.dtype(), dst.dtype(), part.op, part.scale, terms[i++], &bytes[to]);
    });
  }
  return bytes;
}

// What all ranks of an exchange receive.
class PartsBoxes final : public ExchangeBoxes {
 public:
  PartsBoxes(absl::Span<const int> group, const std::vector<GlobalPart>& parts, uint64_t digest)
      : group_(group), parts_(parts), digest_(digest) {}
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    return parts_[part].receives[std::find(group_.begin(), group_.end(), rank) - group_.begin()];
  }
  uint64_t digest() const override { return digest_; }

 private:
  const absl::Span<const int> group_;
  const std::vector<GlobalPart>& parts_;
  const uint64_t digest_;
};

// The memory of a vector, which the tensor keeps.
Tensor Adopted(Device& device, const Backed& backed) {
  const auto memory = std::make_shared<std::vector<std::byte>>(backed.bytes);
  return Tensor::Adopt(device, memory->data(), backed.tensor.dtype(), backed.tensor.shape(),
                       backed.tensor.strides(), [memory] {});
}

// A copy of `backed` that a kernel makes, as late as the device likes.
absl::StatusOr<Tensor> Upload(Device& device, const Backed& backed) {
  const int64_t elements =
      static_cast<int64_t>(backed.bytes.size()) / SizeOf(backed.tensor.dtype());
  DT_ASSIGN_OR_RETURN(Tensor flat, Tensor::Empty(device, backed.tensor.dtype(), {elements}));
  void* to = flat.raw();
  if (device.kind() == Device::Kind::kCuda) {
    const auto size = static_cast<int64_t>(backed.bytes.size());
    DT_RETURN_IF_ERROR(device.CopyFromHost(to, backed.bytes.data(), size));
    return flat.View(backed.tensor.shape(), backed.tensor.strides(), 0);
  }
  DT_RETURN_IF_ERROR(device.Launch(
      "Upload", [to, bytes = backed.bytes] { std::memcpy(to, bytes.data(), bytes.size()); }));
  return flat.View(backed.tensor.shape(), backed.tensor.strides(), 0);
}

// Makes one exchange of `parts` on this rank, ruins the sources at once, and compares.
absl::Status ExchangeAndCompare(Communicator& communicator, Device& device,
                                absl::Span<const int> group, const std::vector<GlobalPart>& parts,
                                bool adopts, uint64_t digest) {
  const int me =
      static_cast<int>(std::find(group.begin(), group.end(), communicator.rank()) - group.begin());
  std::vector<Tensor> sources, results;
  for (const GlobalPart& part : parts) {
    Tensor src = Adopted(device, part.sources[me]);
    if (!adopts) {
      DT_ASSIGN_OR_RETURN(src, Upload(device, part.sources[me]));
    }
    DT_ASSIGN_OR_RETURN(Tensor dst, Upload(device, part.results[me]));
    sources.push_back(std::move(src));
    results.push_back(std::move(dst));
  }
  std::vector<ExchangePart> mine;
  for (size_t i = 0; i < parts.size(); ++i) {
    mine.push_back({sources[i], results[i], parts[i].receives[me], parts[i].op, parts[i].scale});
  }
  const PartsBoxes boxes(group, parts, digest);
  const Collective collective = {
      .axes = "x", .op = "Random", .group = group, .digest = parts.size(), .boxes = &boxes};
  DT_RETURN_IF_ERROR(communicator.Exchange(collective, absl::MakeSpan(mine)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto size = static_cast<int64_t>(parts[i].sources[me].bytes.size());
    // Null: no elements.
    if (void* data = sources[i].raw(); data != nullptr) {
      DT_RETURN_IF_ERROR(device.FillBytes(data, 0x5a, size));
    }
    sources[i] = Tensor();
  }
  DT_RETURN_IF_ERROR(device.Synchronize());
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto expected = Expected(parts[i], group, me);
    const Tensor& dst = results[i];
    if (dst.raw() == nullptr) continue;  // no elements
    std::vector<std::byte> found(expected.size());
    DT_RETURN_IF_ERROR(
        device.CopyToHost(found.data(), dst.raw(), static_cast<int64_t>(found.size())));
    DT_RETURN_IF_ERROR(device.Synchronize());
    if (!SameElements(dst.dtype(), expected, found)) {
      return absl::InternalError(absl::StrCat("wrong values in part ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RandomExchanges(Communicator& communicator, Device& device, uint64_t seed, int rounds,
                             bool adopts) {
  TestRandom random(seed);
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> group;
    for (int rank = 0; rank < communicator.size(); ++rank) {
      if (random.Chance(70)) group.push_back(rank);
    }
    if (group.empty()) group.push_back(0);
    std::vector<GlobalPart> parts;
    for (int64_t i = random.In(0, 3); i > 0; --i)
      parts.push_back(RandomPart(random, device, group));
    if (!std::binary_search(group.begin(), group.end(), communicator.rank())) continue;
    absl::Status status = ExchangeAndCompare(communicator, device, group, parts, adopts,
                                             seed * 1000003 + static_cast<uint64_t>(round));
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("round ", round, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtensor::box_testing
