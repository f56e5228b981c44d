// Applies a rule to shapes: expands ellipses, and finds the sizes of letters.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr int64_t kUnknown = -1;

std::string ShapesText(absl::Span<const Dims> shapes) {
  return absl::StrJoin(shapes, ", ", [](std::string* out, const Dims& shape) {
    absl::StrAppend(out, DimsToString(shape));
  });
}

}  // namespace

// Finds letter sizes from the operands' dimensions, until no further size can be found.
class RuleBinder {
 public:
  RuleBinder(absl::string_view op, absl::Span<const Dims> shapes) : op_(op), shapes_(shapes) {}

  absl::Status Error(absl::string_view why) const {
    return InvalidArgument({op_, ": ", why, " (shapes ", ShapesText(shapes_), ")"});
  }

  absl::Status TooManyDims(absl::string_view term, size_t i, size_t dims) const {
    return Error(
        absl::StrCat(term, " ", i, " has ", dims, " dimensions; at most ", Layout::kMaxDims));
  }

  // Replaces "..." by letters in every term. Adds as many letters as the longest "..." needs.
  absl::Status ExpandEllipses(std::vector<RuleLetter>& letters, std::vector<RuleTerm>& operands,
                              std::vector<RuleTerm>& results) {
    int longest = 0;
    for (size_t i = 0; i < operands.size(); ++i) {
      const int extra =
          static_cast<int>(shapes_[i].size()) - static_cast<int>(operands[i].dims.size());
      if (shapes_[i].size() > Layout::kMaxDims) return TooManyDims("operand", i, shapes_[i].size());
      if (extra < 0 || (extra > 0 && !operands[i].ellipsis)) {
        return Error(absl::StrCat("operand ", i, " has ", shapes_[i].size(),
                                  " dimensions where the rule has ", operands[i].dims.size(),
                                  operands[i].ellipsis ? " or more" : ""));
      }
      longest = std::max(longest, extra);
    }
    const int first = static_cast<int>(letters.size());
    std::vector<int64_t> sizes(longest, 1);
    for (size_t i = 0; i < operands.size(); ++i) {
      const int extra =
          static_cast<int>(shapes_[i].size()) - static_cast<int>(operands[i].dims.size());
      for (int d = 0; d < extra; ++d) {
        int64_t& size = sizes[longest - extra + d];
        if (size == 1) size = shapes_[i][d];
      }
    }
    for (int j = 0; j < longest; ++j) {
      letters.push_back({.name = absl::StrCat("_", j), .rest = true});
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      const int extra =
          static_cast<int>(shapes_[i].size()) - static_cast<int>(operands[i].dims.size());
      std::vector<absl::InlinedVector<int, 2>> leading;
      for (int d = 0; d < extra; ++d) {
        const int j = longest - extra + d;
        const bool broadcast = shapes_[i][d] == 1 && sizes[j] != 1;
        leading.push_back(broadcast ? absl::InlinedVector<int, 2>{}
                                    : absl::InlinedVector<int, 2>{first + j});
      }
      Prepend(operands[i], std::move(leading));
    }
    for (RuleTerm& term : results) {
      if (!term.ellipsis) continue;
      std::vector<absl::InlinedVector<int, 2>> leading;
      for (int j = 0; j < longest; ++j) leading.push_back({first + j});
      Prepend(term, std::move(leading));
    }
    for (size_t r = 0; r < results.size(); ++r) {
      if (results[r].dims.size() > Layout::kMaxDims)
        return TooManyDims("result", r, results[r].dims.size());
    }
    return absl::OkStatus();
  }

  // Sets the sizes of letters that the caller gives.
  absl::Status Take(const std::vector<RuleLetter>& letters, const LetterSizes& given,
                    std::vector<int64_t>& sizes) {
    HashMap<absl::string_view, size_t> indices;
    for (size_t l = 0; l < letters.size(); ++l) indices.try_emplace(letters[l].name, l);
    for (const auto& [name, size] : given) {
      const auto it = indices.find(name);
      if (it == indices.end())
        return Error(absl::StrCat("is given the size of '", name, "', which the rule lacks"));
      if (size < 0) return Error(absl::StrCat("is given the size ", size, " of '", name, "'"));
      sizes[it->second] = size;
    }
    return absl::OkStatus();
  }

  absl::Status CheckKnown(const std::vector<RuleLetter>& letters,
                          const std::vector<int64_t>& sizes) {
    for (size_t l = 0; l < letters.size(); ++l) {
      if (sizes[l] != kUnknown) continue;
      return Error(absl::StrCat("nothing says how large '", letters[l].name,
                                "' is; let it be a dimension of an operand, or give its size"));
    }
    return absl::OkStatus();
  }

  absl::Status Learn(const std::vector<RuleLetter>& letters, const std::vector<RuleTerm>& operands,
                     std::vector<int64_t>& sizes) {
    for (bool learnt = true; learnt;) {
      learnt = false;
      for (size_t i = 0; i < operands.size(); ++i) {
        for (size_t d = 0; d < operands[i].dims.size(); ++d) {
          DT_ASSIGN_OR_RETURN(const bool here,
                              LearnDim(letters, operands[i].dims[d], shapes_[i][d], i, sizes));
          learnt |= here;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static void Prepend(RuleTerm& term, std::vector<absl::InlinedVector<int, 2>> leading) {
    term.dims.insert(term.dims.begin(), leading.begin(), leading.end());
    term.ellipsis = false;
  }

  absl::StatusOr<bool> LearnDim(const std::vector<RuleLetter>& letters,
                                const absl::InlinedVector<int, 2>& dim, int64_t size,
                                size_t operand, std::vector<int64_t>& sizes) {
    int unknown = -1, unknowns = 0;
    Dims known_sizes;
    for (int letter : dim) {
      if (sizes[letter] == kUnknown) {
        unknown = letter;
        ++unknowns;
      } else {
        known_sizes.push_back(sizes[letter]);
      }
    }
    const int64_t known = NumElements(known_sizes);
    if (dim.empty() && size != 1) {
      return Error(
          absl::StrCat("operand ", operand, " has size ", size, " where the rule has '()'"));
    }
    if (dim.empty() || unknowns > 1) return false;
    if (unknowns == 0) {
      if (known == size) return false;
      return Error(absl::StrCat("operand ", operand, " has size ", size, " where '",
                                Names(letters, dim), "' is ", known,
                                "; they have to be equal: Reshape, Slice or Expand an operand"));
    }
    if (known == 0 && size == 0) return false;  // any size would do; another operand may say it
    if (known == 0 || size % known != 0) {
      return Error(absl::StrCat("size ", size, " of operand ", operand, " is no multiple of ",
                                known, " ('", Names(letters, dim), "')"));
    }
    sizes[unknown] = size / known;
    return true;
  }

  static std::string Names(const std::vector<RuleLetter>& letters,
                           const absl::InlinedVector<int, 2>& dim) {
    return absl::StrJoin(dim, " ", [&](std::string* out, int letter) {
      const RuleLetter& named = letters[letter];  // "_1" is dimension 1 of "..."
      absl::StrAppend(out, named.rest ? absl::StrCat("dimension ", named.name.substr(1), " of ...")
                                      : named.name);
    });
  }

  absl::string_view op_;
  absl::Span<const Dims> shapes_;
};

absl::StatusOr<BoundRule> BoundRule::Bind(absl::string_view op, const OpRule& rule,
                                          absl::Span<const Dims> operand_shapes,
                                          const LetterSizes& sizes) {
  RuleBinder binder(op, operand_shapes);
  if (operand_shapes.size() != rule.operands_.size()) {
    return binder.Error(
        absl::StrCat("takes ", rule.operands_.size(), " operands, got ", operand_shapes.size()));
  }
  BoundRule bound;
  bound.rule_ = rule;
  bound.operand_shapes_.assign(operand_shapes.begin(), operand_shapes.end());
  DT_RETURN_IF_ERROR(
      binder.ExpandEllipses(bound.rule_.letters_, bound.rule_.operands_, bound.rule_.results_));
  const std::vector<RuleLetter>& letters = bound.rule_.letters_;
  bound.sizes_.assign(letters.size(), kUnknown);
  DT_RETURN_IF_ERROR(binder.Take(letters, sizes, bound.sizes_));
  DT_RETURN_IF_ERROR(binder.Learn(letters, bound.rule_.operands_, bound.sizes_));
  DT_RETURN_IF_ERROR(binder.CheckKnown(letters, bound.sizes_));
  for (const RuleTerm& term : bound.rule_.results_) {
    Dims& shape = bound.result_shapes_.emplace_back();
    for (const auto& dim : term.dims) {
      Dims factors;
      for (int letter : dim) factors.push_back(bound.sizes_[letter]);
      shape.push_back(NumElements(factors));
    }
    DT_RETURN_IF_ERROR(CheckedNumElements(op, shape).status());
  }
  return bound;
}

int BoundRule::LetterIndex(absl::string_view name) const {
  for (size_t i = 0; i < rule_.letters_.size(); ++i) {
    if (rule_.letters_[i].name == name) return static_cast<int>(i);
  }
  DT_CHECK(false && "no such letter");
  return -1;
}

namespace {

// Writes the rule of one group of dimensions with equal products on both sides.
class ReshapeGroups {
 public:
  void Add(absl::Span<const int64_t> from, absl::Span<const int64_t> to) {
    if (from.size() == 1 && to.size() == 1) {  // the same dimension, of size 1 too
      const std::string letter = Fresh(from[0], "");
      operand_.push_back(letter);
      result_.push_back(letter);
      return;
    }
    std::vector<int64_t> cuts;
    if (Cuts(from, to, &cuts)) {
      std::vector<std::string> letters;  // innermost first: sizes cuts[i] / cuts[i - 1]
      for (size_t i = 1; i < cuts.size(); ++i) letters.push_back(Fresh(cuts[i] / cuts[i - 1], ""));
      AppendComposite(from, cuts, letters, operand_);
      AppendComposite(to, cuts, letters, result_);
    } else {
      for (int64_t size : from) operand_.push_back(Fresh(size, "!"));
      for (int64_t size : to) result_.push_back(Fresh(size, "!"));
    }
  }

  std::string Text() const {
    return absl::StrCat(absl::StrJoin(operand_, " "), " -> ", absl::StrJoin(result_, " "));
  }
  LetterSizes TakeSizes() { return std::move(sizes_); }

 private:
  std::string Fresh(int64_t size, absl::string_view mark) {
    std::string name = absl::StrCat("d", sizes_.size());
    sizes_.push_back({name, size});
    return absl::StrCat(name, mark);
  }

  // Sets `cuts` to the suffix products of both sides, ascending from 1. Returns false unless each
  // divides the next, or if a size is 0. Sizes of 1 give no cut: such dimensions become letters of
  // their own.
  static bool Cuts(absl::Span<const int64_t> from, absl::Span<const int64_t> to,
                   std::vector<int64_t>* cuts) {
    cuts->push_back(1);
    for (absl::Span<const int64_t> side : {from, to}) {
      int64_t product = 1;
      for (size_t i = side.size(); i-- > 0;) {
        if (side[i] == 0) return false;
        product *= side[i];
        cuts->push_back(product);
      }
    }
    std::sort(cuts->begin(), cuts->end());
    cuts->erase(std::unique(cuts->begin(), cuts->end()), cuts->end());
    for (size_t i = 1; i < cuts->size(); ++i) {
      if ((*cuts)[i] % (*cuts)[i - 1] != 0) return false;
    }
    return true;
  }

  void AppendComposite(absl::Span<const int64_t> side, const std::vector<int64_t>& cuts,
                       const std::vector<std::string>& letters, std::vector<std::string>& out) {
    std::vector<std::string> words;  // innermost dimension first
    int64_t below = 1;
    for (size_t i = side.size(); i-- > 0;) {
      if (side[i] == 1) {
        words.push_back(Fresh(1, "!"));
        continue;
      }
      std::vector<std::string> inside;  // outermost letter first
      for (size_t c = 1; c < cuts.size(); ++c) {
        if (cuts[c] > below && cuts[c] <= below * side[i])
          inside.insert(inside.begin(), letters[c - 1]);
      }
      words.push_back(inside.size() > 1 ? absl::StrCat("(", absl::StrJoin(inside, " "), ")")
                                        : inside[0]);
      below *= side[i];
    }
    out.insert(out.end(), words.rbegin(), words.rend());
  }

  std::vector<std::string> operand_, result_;
  LetterSizes sizes_;
};

}  // namespace

absl::StatusOr<std::string> ReshapeRule(absl::Span<const int64_t> from,
                                        absl::Span<const int64_t> to, LetterSizes* sizes) {
  DT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements("Reshape", from));
  DT_ASSIGN_OR_RETURN(const int64_t wanted, CheckedNumElements("Reshape", to));
  if (elements != wanted) {
    return InvalidArgument({"Reshape: ", DimsToString(from), " has ", absl::StrCat(elements),
                            " elements and cannot become ", DimsToString(to), " with ",
                            absl::StrCat(wanted), "; give a shape with as many elements"});
  }
  ReshapeGroups groups;
  if (elements == 0) {
    groups.Add(from, to);
  } else {
    size_t i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      const size_t i0 = i, j0 = j;
      int64_t left = i < from.size() ? from[i++] : 1, right = j < to.size() ? to[j++] : 1;
      while (left != right) {
        if (left < right)
          left *= from[i++];
        else
          right *= to[j++];
      }
      groups.Add(from.subspan(i0, i - i0), to.subspan(j0, j - j0));
    }
  }
  *sizes = groups.TakeSizes();
  return groups.Text();
}

}  // namespace dtensor
