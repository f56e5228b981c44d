#include "dtensor/layout/layout_orders.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/layout/layout_factors.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Kind = ShardOrder::Kind;

AxisSplit SplitOf(const Deal& deal) { return {deal.axis, deal.order.kind == Kind::kZigzag}; }

// Builds the factors, order by order. `sizes_` are the numbers of elements that ranks have so far.
class FactorsBuilder {
 public:
  FactorsBuilder(const DeviceMesh& mesh, int d, int64_t n, const std::vector<Deal>& deals)
      : mesh_(mesh), d_(d), n_(n), deals_(deals), sizes_({n}) {}

  absl::StatusOr<DimLayout> Build() {
    while (first_ < deals_.size() && IsPlain(deals_[first_].order)) ++first_;
    if (first_ == deals_.size()) return DimLayout{AllDeals()};
    const ShardOrder order = deals_[first_].order;
    for (const Deal& deal : deals_) {
      if (!IsPlain(deal.order) && deal.order != order) return Refuse(deals_[first_], deal);
    }
    if (order.kind == Kind::kUnit) return Unit(order.n);
    return order.kind == Kind::kCyclic ? Cyclic(order.n) : Block(order.n);
  }

 private:
  LayoutFactor AllDeals() const {
    LayoutFactor factor;
    for (const Deal& deal : deals_) factor.splits.push_back(SplitOf(deal));
    return factor;
  }

  // (n/unit : all axes, unit)
  absl::StatusOr<DimLayout> Unit(int64_t unit) {
    for (const Deal& deal : deals_) {
      if (IsPlain(deal.order)) DT_RETURN_IF_ERROR(CheckWhole(deal, unit));
      sizes_ = SharesOf(sizes_, deal.parts, SplitOf(deal).zigzag, unit);
    }
    return DimLayout{AllDeals(), {unit, {}}};
  }

  // (n/round : plain axes, round : cyclic axes). The plain axes come first, and must leave rounds
  // of one length. The last round may be short: by less than `rounds`, so a further cyclic axis
  // still finds rounds as long as its predecessor's share of a round.
  absl::StatusOr<DimLayout> Cyclic(int64_t rounds) {
    const auto length = [=](int64_t left) {
      return std::max<int64_t>(1, CeilDiv(left, rounds));  // at least 1, for empty dimensions
    };
    LayoutFactor round{.size = length(LeftByPlain())};
    for (size_t i = first_; i < deals_.size(); ++i) {
      if (IsPlain(deals_[i].order)) return Refuse(deals_[first_], deals_[i]);
      round.splits.push_back(SplitOf(deals_[i]));
    }
    LayoutFactor outermost;
    DT_RETURN_IF_ERROR(DealPlain(0, first_, round.size, outermost));
    const bool alike = absl::c_all_of(
        sizes_, [&](int64_t left) { return left == 0 || length(left) == round.size; });
    if (!alike) return Refuse(deals_.front(), deals_.back());
    return DimLayout{outermost, round};
  }

  // (rest : plain axes, .., P2 : second block axis, P1 : first block axis, block). A later axis
  // splits what an earlier one left, so its turns are longer. Plain axes may come before the block
  // axes or after them.
  absl::StatusOr<DimLayout> Block(int64_t block) {
    DimLayout turns = {{block, {}}};
    int64_t turn = block;  // elements that are dealt out until every rank has one block
    size_t after = first_;
    for (; after < deals_.size() && !IsPlain(deals_[after].order); ++after) {
      const Deal& deal = deals_[after];
      if (__builtin_mul_overflow(turn, deal.parts, &turn)) return Refuse(deals_[first_], deal);
      turns.insert(turns.begin(), LayoutFactor{deal.parts, {SplitOf(deal)}});
    }
    LayoutFactor outermost;
    DT_RETURN_IF_ERROR(DealPlain(0, first_, turn, outermost));
    if (after < deals_.size()) {
      if (n_ % turn != 0) return Refuse(deals_[first_], deals_[after]);
      for (int64_t& size : sizes_) size = size / turn * block;
      DT_RETURN_IF_ERROR(DealPlain(after, deals_.size(), block, outermost));
    }
    turns.insert(turns.begin(), outermost);
    return turns;
  }

  // The most elements that a rank has after the plain axes before the first axis that is not plain.
  int64_t LeftByPlain() const {
    ShareSizes sizes = {n_};
    for (size_t i = 0; i < first_; ++i) {
      sizes = SharesOf(sizes, deals_[i].parts, SplitOf(deals_[i]).zigzag);
    }
    return *absl::c_max_element(sizes);
  }

  // Adds the deals [begin, end) to `factor`. They must be plain and leave groups of `group` whole.
  absl::Status DealPlain(size_t begin, size_t end, int64_t group, LayoutFactor& factor) {
    for (size_t i = begin; i < end; ++i) {
      const Deal& deal = deals_[i];
      if (!IsPlain(deal.order)) return Refuse(deals_[begin], deal);
      DT_RETURN_IF_ERROR(CheckWhole(deal, group));
      sizes_ = SharesOf(sizes_, deal.parts, SplitOf(deal).zigzag);
      factor.splits.push_back(SplitOf(deal));
    }
    return absl::OkStatus();
  }

  absl::Status CheckWhole(const Deal& deal, int64_t group) const {
    if (DealsWholeGroups(sizes_, deal.parts, SplitOf(deal).zigzag, group)) return absl::OkStatus();
    return InvalidArgument({Describe(deal), " would cut groups of ", absl::StrCat(group),
                            " that \"", mesh_.axis_name(deals_[first_].axis), "\" as ",
                            Shard(d_, deals_[first_].order).ToString(), " deals whole; ",
                            Remedy()});
  }

  absl::Status Refuse(const Deal& a, const Deal& b) const {
    return InvalidArgument({Describe(a), " and \"", mesh_.axis_name(b.axis), "\" as ",
                            Shard(d_, b.order).ToString(),
                            " deal it in a way that no layout says exactly; ", Remedy()});
  }

  std::string Describe(const Deal& deal) const {
    return absl::StrCat("dimension ", d_, " of size ", n_, " on the mesh ", mesh_.ToString(),
                        ": \"", mesh_.axis_name(deal.axis), "\" as ",
                        Shard(d_, deal.order).ToString());
  }

  static absl::string_view Remedy() {
    return "give the axes that shard this dimension the same order, sizes that divide it, or "
           "shard another dimension";
  }

  const DeviceMesh& mesh_;
  const int d_;
  const int64_t n_;
  const std::vector<Deal>& deals_;
  size_t first_ = 0;  // the first deal that is not plain
  ShareSizes sizes_;
};

// Whether `dim` deals out blocks in turn: each inner factor is split by one axis of the factor's
// size, except the last, which may be the block.
bool IsBlocks(const DeviceMesh& mesh, const DimLayout& dim) {
  const size_t end = dim.back().splits.empty() ? dim.size() - 1 : dim.size();
  return std::all_of(dim.begin() + 1, dim.begin() + end, [&](const LayoutFactor& factor) {
    return factor.splits.size() == 1 && mesh.axis_size(factor.splits[0].axis) == factor.size;
  });
}

// The order of the axes that split inner factors: block, or else cyclic.
ShardOrder InnerOrder(const DeviceMesh& mesh, const DimLayout& dim, int64_t n) {
  if (IsBlocks(mesh, dim))
    return ShardOrder::Block(dim.back().splits.empty() ? dim.back().size : 1);
  ShareSizes sizes = {n};
  for (const AxisSplit& split : dim[0].splits) {
    sizes = SharesOf(sizes, mesh.axis_size(split.axis), split.zigzag);
  }
  // A single round would be contiguous order.
  return ShardOrder::Cyclic(
      std::max<int64_t>(2, CeilDiv(*absl::c_max_element(sizes), dim[1].size)));
}

}  // namespace

absl::StatusOr<DimLayout> FactorsOf(const DeviceMesh& mesh, int d, int64_t n,
                                    const std::vector<Deal>& deals) {
  return FactorsBuilder(mesh, d, n, deals).Build();
}

std::vector<Deal> OrdersOf(const DeviceMesh& mesh, const DimLayout& dim, int64_t n) {
  std::vector<Deal> deals;
  const bool unit = dim.size() == 2 && dim[1].splits.empty();
  for (size_t i = 0; i < dim.size(); ++i) {
    ShardOrder order = i > 0 ? InnerOrder(mesh, dim, n) : ShardOrder::Contiguous();
    if (unit) order = ShardOrder::Unit(dim[1].size);
    for (const AxisSplit& split : dim[i].splits) {
      deals.push_back(
          {split.axis, mesh.axis_size(split.axis), split.zigzag ? ShardOrder::Zigzag() : order});
    }
  }
  return deals;
}

}  // namespace dtensor
