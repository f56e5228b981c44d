#include "dtensor/tensor/check_replicas.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/read_bytes.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

constexpr const char* kOp = "CheckReplicas";

// A tensor that has replicas.
struct Replicated {
  const std::string* name;
  const DistributedTensor* tensor;
  AxisList axes;  // on which it is replicated
  uint64_t digest = 0;
};

std::string Describe(const std::string& name, const DistributedTensor& tensor) {
  return absl::StrCat("\"", name, "\" (", tensor.ToString(), ")");
}

absl::StatusOr<std::vector<Replicated>> ReplicatedOf(
    const Context& context, const std::map<std::string, DistributedTensor>& tensors) {
  std::vector<Replicated> found;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || &tensor.context() != &context) {
      return InvalidArgument({kOp, ": \"", name, "\" is ",
                              tensor.defined() ? "of another Context" : "undefined",
                              "; give tensors of this one"});
    }
    AxisList axes;
    for (const int axis : tensor.layout().replicated_axes()) {
      if (tensor.mesh().axis_size(axis) > 1) axes.push_back(axis);
    }
    if (!axes.empty()) found.push_back({&name, &tensor, std::move(axes)});
  }
  return found;
}

// Of all elements' bits, row-major.
absl::StatusOr<uint64_t> DigestOf(const Tensor& local) {
  Digest digest;
  DT_RETURN_IF_ERROR(kernels::ReadBytes(local, [&](const char* bytes, int64_t size) {
    for (int64_t i = 0; i < size; i += sizeof(int64_t)) {
      int64_t word = 0;
      std::memcpy(&word, bytes + i, std::min<int64_t>(sizeof(word), size - i));
      digest.Add(word);
    }
    return absl::OkStatus();
  }));
  return digest.value();
}

absl::Status AddDigests(Context& context, std::vector<Replicated>& tensors) {
  if (context.device().is_meta()) return absl::OkStatus();  // GatherBytes refuses it
  for (Replicated& one : tensors) {
    if (!one.tensor->spec().on_mesh) continue;
    DT_ASSIGN_OR_RETURN(one.digest, DigestOf(one.tensor->local()));
  }
  return absl::OkStatus();
}

// What every rank gave, by rank.
using Numbers = std::vector<uint64_t>;
absl::StatusOr<std::vector<Numbers>> Gather(Context& context, const Numbers& mine) {
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      GatherBytes(context,
                  {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(uint64_t)},
                  kOp));
  std::vector<Numbers> numbers;
  for (const std::string& bytes : all) {
    numbers.emplace_back(bytes.size() / sizeof(uint64_t));
    std::memcpy(numbers.back().data(), bytes.data(), bytes.size());
  }
  return numbers;
}

// The first ranks that have the same elements and other numbers; empty: there are none.
std::vector<int> Unlike(const Replicated& one, const std::function<uint64_t(int rank)>& number) {
  const DeviceMesh& mesh = one.tensor->mesh();
  for (int position = 0; position < mesh.size(); ++position) {
    std::vector<int> group = mesh.Group(mesh.RankOf(position), one.axes);
    if (group[0] != mesh.RankOf(position)) continue;  // it was seen
    if (absl::c_any_of(group, [&](int r) { return number(r) != number(group[0]); })) return group;
  }
  return {};
}

std::string RanksText(absl::Span<const int> ranks) {
  constexpr size_t kMost = 8;
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks.first(std::min(kMost, ranks.size())), ", "),
                      ranks.size() > kMost ? ", ..." : "");
}

// Finds the tensors whose bits differ. One does.
absl::Status Differing(Context& context, const std::vector<Replicated>& tensors) {
  Numbers mine;
  for (const Replicated& one : tensors) mine.push_back(one.digest);
  DT_ASSIGN_OR_RETURN(const std::vector<Numbers> all, Gather(context, mine));
  std::string text;
  int differ = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<int> group = Unlike(tensors[i], [&](int r) { return all[r][i]; });
    if (group.empty() || differ++ > 0) continue;
    std::vector<int> same, others;
    for (const int r : group) (all[r][i] == all[group[0]][i] ? same : others).push_back(r);
    text = absl::StrCat(Describe(*tensors[i].name, *tensors[i].tensor), ": ", RanksText(others),
                        others.size() == 1 ? " has" : " have", " other bits than ", RanksText(same),
                        " of the elements that all of them have");
  }
  return absl::DataLossError(absl::StrCat(
      kOp, ": ", text, "; so ", differ == 1 ? "does 1" : absl::StrCat("do ", differ), " of ",
      tensors.size(), " tensors that have replicas. Look for what ranks do otherwise, such as a ",
      "write to local() or a setting of denormals, and load the last checkpoint"));
}

}  // namespace

absl::Status CheckReplicas(Context& context,
                           const std::map<std::string, DistributedTensor>& tensors) {
  absl::StatusOr<std::vector<Replicated>> found = ReplicatedOf(context, tensors);
  DT_RETURN_IF_ERROR(AgreeOn(context, found.ok() ? AddDigests(context, *found) : found.status()));
  const std::vector<Replicated>& replicated = *found;
  // One number of all that have replicas on the same ranks.
  Digest names;
  std::map<std::string, std::pair<const Replicated*, Digest>> sets;
  for (const Replicated& one : replicated) {
    const DeviceMesh& mesh = one.tensor->mesh();
    names.Add(Describe(*one.name, *one.tensor));
    auto& [first, digest] = sets[absl::StrCat(mesh.ToString(), " ", mesh.AxisNames(one.axes))];
    first = &one;
    digest.Add(static_cast<int64_t>(one.digest));
  }
  Numbers mine = {names.value()};
  for (const auto& [where, set] : sets) mine.push_back(set.second.value());
  DT_ASSIGN_OR_RETURN(const std::vector<Numbers> all, Gather(context, mine));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == all[0][0]) continue;
    return InvalidArgument({kOp, ": rank ", absl::StrCat(rank),
                            " gives other tensors than rank 0; "
                            "give the same names, shapes, types and layouts on all ranks"});
  }
  size_t i = 0;
  for (const auto& [where, set] : sets) {
    ++i;
    if (Unlike(*set.first, [&](int r) { return all[r][i]; }).empty()) continue;
    return Differing(context, replicated);
  }
  return absl::OkStatus();
}

}  // namespace dtensor
