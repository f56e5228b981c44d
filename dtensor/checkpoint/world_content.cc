#include "dtensor/checkpoint/world_content.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/rank_content.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

using Texts = std::map<std::string, std::string>;

uint64_t DigestOf(const std::string& folder, const CheckpointContent& content) {
  Digest digest;
  digest.Add(folder);
  digest.Add(content.step);
  for (const auto& [name, tensor] : content.tensors) {
    digest.Add(name);
    digest.Add(tensor.ToString());
  }
  digest.Add(static_cast<int64_t>(content.tensors.size()));
  for (const auto* texts : {&content.aliases, &content.entries}) {
    for (const auto& [name, text] : *texts) {
      digest.Add(name);
      digest.Add(text);
    }
    digest.Add(static_cast<int64_t>(texts->size()));
  }
  return digest.value();
}

RankContent ContentOf(const Context& context, const std::string& folder,
                      const CheckpointContent& content) {
  RankContent said = {.folder = folder,
                      .step = content.step,
                      .entries = content.entries,
                      .aliases = content.aliases,
                      .tensors = {}};
  for (const auto& [name, tensor] : content.tensors) {
    NamedTensor& named = said.tensors[name];
    std::string text = tensor.ToString();
    Digest digest;
    digest.Add(text);
    named.digest = digest.value();
    named.first = tensor.mesh().RankOf(0);
    if (context.rank() != named.first) continue;
    named.described = {std::move(text), {tensor.layout(), tensor.shape(), tensor.dtype()}};
  }
  return said;
}

// The name of an entry that differs between two ranks; nullopt if there is none.
std::optional<std::string> UnlikeEntry(const Texts& a, const Texts& b) {
  for (const Texts* one : {&a, &b}) {
    for (const auto& [name, text] : *one) {
      const auto in_a = a.find(name), in_b = b.find(name);
      if (in_a == a.end() || in_b == b.end() || in_a->second != in_b->second) return name;
    }
  }
  return std::nullopt;
}

class Merger {
 public:
  explicit Merger(std::vector<RankContent> ranks) : ranks_(std::move(ranks)) {}

  absl::StatusOr<WorldContent> Merge() && {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      DT_RETURN_IF_ERROR(CheckCommon(rank));
      for (const auto& [name, said] : ranks_[rank].tensors) {
        DT_RETURN_IF_ERROR(AddTensor(rank, name, said));
      }
    }
    for (const auto& [name, tensor] : out_.tensors) DT_RETURN_IF_ERROR(CheckHolders(name, tensor));
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const auto& [alias, of] : ranks_[rank].aliases) {
        DT_RETURN_IF_ERROR(AddAlias(rank, alias, of));
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status CheckCommon(size_t rank) const {
    const RankContent &first = ranks_[0], &mine = ranks_[rank];
    const auto unlike = [&](absl::string_view what) {
      return InvalidArgument({"rank ", absl::StrCat(rank), " saves ", what, " than rank 0; all ",
                              "ranks save into one folder, of one step, with the same entries"});
    };
    if (mine.folder != first.folder) return unlike("into another folder");
    if (mine.step != first.step) return unlike("another step");
    const std::optional<std::string> entry = UnlikeEntry(mine.entries, first.entries);
    if (!entry) return absl::OkStatus();
    return unlike(absl::StrCat("another text as entry '", *entry, "'"));
  }

  absl::Status AddTensor(size_t rank, const std::string& name, const NamedTensor& said) {
    const auto [at, is_new] = first_.try_emplace(name, rank);
    if (!is_new) {
      if (ranks_[at->second].tensors.at(name).digest == said.digest) return absl::OkStatus();
      return InvalidArgument({"tensor '", name, "' is ", TextOf(name, at->second), " on rank ",
                              absl::StrCat(at->second), ", and ", TextOf(name, rank), " on rank ",
                              absl::StrCat(rank), "; give unlike tensors unlike names"});
    }
    const DescribedTensor* const told = ToldOf(name, rank);
    if (told == nullptr) return NotNamed(name, rank, said.first);
    out_.tensors[name] = told->tensor;
    return absl::OkStatus();
  }

  // How the first rank of its mesh describes a tensor that `rank` names; null if it does not.
  const DescribedTensor* ToldOf(const std::string& name, size_t rank) const {
    const NamedTensor& said = ranks_[rank].tensors.at(name);
    const auto& tensors = ranks_[said.first].tensors;
    const auto told = tensors.find(name);
    const bool is_same = told != tensors.end() && told->second.digest == said.digest;
    return is_same && told->second.described ? &*told->second.described : nullptr;
  }
  std::string TextOf(const std::string& name, size_t rank) const {
    const DescribedTensor* const told = ToldOf(name, rank);
    return told == nullptr ? "another one" : told->text;
  }

  // Every rank of a tensor's mesh must name it; otherwise no rank would write its elements.
  absl::Status CheckHolders(const std::string& name, const PlannedTensor& tensor) const {
    const DeviceMesh& mesh = tensor.layout.mesh();
    for (int position = 0; position < mesh.size(); ++position) {
      const int rank = mesh.RankOf(position);
      if (ranks_[rank].tensors.contains(name)) continue;
      return NotNamed(name, first_.at(name), rank);
    }
    return absl::OkStatus();
  }

  // The error for a tensor that rank `who` names and `rank` does not.
  absl::Status NotNamed(const std::string& name, size_t who, size_t rank) const {
    const bool is_told = ToldOf(name, who) != nullptr;
    return InvalidArgument(
        {"tensor '", name, "', ", is_told ? TextOf(name, who) : "", is_told ? ", " : "",
         "which rank ", absl::StrCat(who), " saves, lies on rank ", absl::StrCat(rank),
         " as well, which does not name it; each rank names all that lie on ", "it"});
  }

  absl::Status AddAlias(size_t rank, const std::string& alias, const std::string& of) {
    const auto [at, is_new] = out_.aliases.try_emplace(alias, of);
    if (out_.tensors.contains(alias)) {
      return InvalidArgument({"'", alias, "' is a tensor of some ranks, and on rank ",
                              absl::StrCat(rank), " another name of '", of, "'"});
    }
    if (at->second == of) return absl::OkStatus();
    return InvalidArgument({"'", alias, "' is another name of '", at->second, "' on some ranks, ",
                            "and of '", of, "' on rank ", absl::StrCat(rank)});
  }

  std::vector<RankContent> ranks_;       // what each rank names
  std::map<std::string, size_t> first_;  // the first rank that names a tensor
  WorldContent out_;
};

}  // namespace

absl::StatusOr<WorldContent> GatherContent(Context& context, const std::string& folder,
                                           const CheckpointContent& content) {
  DT_ASSIGN_OR_RETURN(const auto digests, GatherValues(context, DigestOf(folder, content)));
  bool alike = true;
  for (const uint64_t digest : digests) alike = alike && digest == digests[0];
  if (alike) {
    WorldContent same{.tensors = {}, .aliases = content.aliases};
    for (const auto& [name, tensor] : content.tensors) {
      same.tensors[name] = {tensor.layout(), tensor.shape(), tensor.dtype()};
    }
    return same;
  }
  DT_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherBytes(context, Encode(ContentOf(context, folder, content)), "SaveCheckpoint"));
  std::vector<RankContent> ranks;
  for (const std::string& text : texts) {
    DT_ASSIGN_OR_RETURN(ranks.emplace_back(), ReadRankContent(text, context.world_size()));
  }
  return Merger(std::move(ranks)).Merge();
}

}  // namespace dtensor
