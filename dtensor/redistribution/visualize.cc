#include "dtensor/redistribution/visualize.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/layout/picture.h"
#include "dtensor/layout/visualize.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr size_t kMostRanks = 64;
using Matrix = std::vector<std::vector<int64_t>>;

absl::Status CheckRanks(const RedistributionPlan& plan) {
  const size_t ranks = plan.Ranks().size();
  if (ranks <= kMostRanks) return absl::OkStatus();
  return InvalidArgument({"a picture of ", plan.ToString(), ": ", absl::StrCat(ranks),
                          " ranks, and 64 are the most; draw a smaller mesh"});
}

std::string TableText(const std::vector<int>& ranks, const Matrix& bytes) {
  size_t width = 1;
  for (const int rank : ranks) width = std::max(width, absl::StrCat(rank).size());
  for (const auto& row : bytes) {
    for (const int64_t cell : row) width = std::max(width, absl::StrCat(cell).size());
  }
  const auto cell = [&](absl::string_view text) {
    return absl::StrFormat(" %*s", static_cast<int>(width), std::string(text));
  };
  std::string text = "to \\ from";
  for (const int rank : ranks) text += cell(absl::StrCat(rank));
  text += '\n';
  for (size_t to = 0; to < ranks.size(); ++to) {
    text += absl::StrFormat("%9d", ranks[to]);
    for (const int64_t count : bytes[to]) text += cell(count == 0 ? "." : absl::StrCat(count));
    text += '\n';
  }
  return text;
}

SvgPanel TableSvg(const std::vector<int>& ranks, const Matrix& bytes) {
  constexpr double kCell = 18;
  int64_t most = 1;
  for (const auto& row : bytes) most = std::max(most, *std::max_element(row.begin(), row.end()));
  SvgPanel panel = {.width = kCell * (ranks.size() + 1.0), .height = kCell * (ranks.size() + 1.0)};
  const auto label = [&](double x, double y, int rank) {
    absl::StrAppendFormat(&panel.svg,
                          "<text x=\"%g\" y=\"%g\" font-size=\"9\" fill=\"black\" stroke=\"none\" "
                          "text-anchor=\"middle\">%d</text>\n",
                          x + kCell / 2, y + kCell / 2 + 3, rank);
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    label(kCell * (i + 1.0), 0, ranks[i]);
    label(0, kCell * (i + 1.0), ranks[i]);
    for (size_t j = 0; j < ranks.size(); ++j) {
      const double lightness = 96 - 56 * static_cast<double>(bytes[i][j]) / most;
      absl::StrAppendFormat(&panel.svg,
                            "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" "
                            "fill=\"hsl(210,60%%,%.0f%%)\"><title>rank %d receives %d B from rank "
                            "%d</title></rect>\n",
                            kCell * (j + 1.0), kCell * (i + 1.0), kCell, kCell, lightness, ranks[i],
                            bytes[i][j], ranks[j]);
    }
  }
  return panel;
}

}  // namespace

std::string RoundText(const RedistributionPlan& plan, int round) {
  const RedistributionRound& said = plan.rounds()[round];
  return absl::StrCat(ToString(said.kind), "(",
                      said.across ? "across" : plan.to().mesh().AxisNames(said.axes), ")");
}

std::vector<std::vector<int64_t>> BytesBetweenRanks(const RedistributionPlan& plan, int round) {
  const std::vector<int> ranks = plan.Ranks();
  std::unordered_map<int, size_t> place;
  for (size_t i = 0; i < ranks.size(); ++i) place[ranks[i]] = i;
  const DType sent = plan.rounds()[round].from_source ? plan.dtype() : plan.result_dtype();
  Matrix bytes(ranks.size(), std::vector<int64_t>(ranks.size()));
  for (size_t to = 0; to < ranks.size(); ++to) {
    for (const ReceiveBox& box : plan.Receives(round, ranks[to])) {
      for (const int peer : box.peers) {
        if (peer != ranks[to]) bytes[to][place.at(peer)] += box.elements() * SizeOf(sent);
      }
    }
  }
  return bytes;
}

absl::StatusOr<std::string> VisualizeRedistribution(const RedistributionPlan& plan, bool colour) {
  DT_RETURN_IF_ERROR(CheckRanks(plan));
  DT_ASSIGN_OR_RETURN(const std::string before, VisualizeLayout(plan.from(), plan.shape(), colour));
  DT_ASSIGN_OR_RETURN(const std::string after, VisualizeLayout(plan.to(), plan.shape(), colour));
  std::string text = absl::StrCat(plan.ToString(), "\nbefore:\n", before);
  for (int s = 0; s < static_cast<int>(plan.rounds().size()); ++s) {
    absl::StrAppend(&text, RoundText(plan, s), ", bytes:\n",
                    TableText(plan.Ranks(), BytesBetweenRanks(plan, s)));
  }
  return absl::StrCat(text, "after:\n", after);
}

absl::StatusOr<std::string> VisualizeRedistributionSvg(const RedistributionPlan& plan) {
  DT_RETURN_IF_ERROR(CheckRanks(plan));
  std::vector<std::string> headings;
  std::vector<SvgPanel> panels;
  const auto add_layout = [&](absl::string_view when, const Layout& layout) -> absl::Status {
    DT_RETURN_IF_ERROR(CheckRegions(layout, plan.shape()));
    DT_ASSIGN_OR_RETURN(SvgPanel panel,
                        PictureSvg(plan.shape(), HolderParts(layout, plan.shape())));
    headings.push_back(absl::StrCat(when, layout.ToString()));
    panels.push_back(std::move(panel));
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(add_layout("from ", plan.from()));
  for (int s = 0; s < static_cast<int>(plan.rounds().size()); ++s) {
    headings.push_back(RoundText(plan, s));
    panels.push_back(TableSvg(plan.Ranks(), BytesBetweenRanks(plan, s)));
  }
  DT_RETURN_IF_ERROR(add_layout("to ", plan.to()));
  return SvgDocument(plan.ToString(), headings, panels);
}

}  // namespace dtensor
