#include "dtensor/rules/op_rule.h"

#include <string>
#include <vector>

#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

DeviceMesh Mesh(absl::string_view text) { return *DeviceMesh::Parse(text); }

RuleOperand Operand(const DeviceMesh& mesh, absl::string_view layout, bool pinned = false) {
  return {*Layout::Parse(mesh, layout), DType::kF32, pinned};
}

BoundRule Bound(absl::string_view text, std::vector<Dims> shapes, const LetterSizes& sizes = {}) {
  auto bound = BoundRule::Bind("Op", *OpRule::Parse(text), shapes, sizes);
  EXPECT_TRUE(bound.ok()) << bound.status();
  return *std::move(bound);
}

// "operands -> results | gradients", as layout texts.
std::string Decided(const BoundRule& rule, RuleLinearity linearity,
                    std::vector<RuleOperand> operands) {
  auto solved = ChooseAssignment("Op", rule, linearity, operands);
  if (!solved.ok()) return std::string(solved.status().message());
  const auto join = [](const std::vector<Layout>& layouts) {
    std::string out;
    for (const Layout& layout : layouts) out += (out.empty() ? "" : ", ") + layout.ToString();
    return out;
  };
  return join(solved->operands) + " -> " + join(solved->results) + " | " + join(solved->gradients);
}

TEST(OpRuleText, ParsesBack) {
  for (const char* text :
       {"m k, k n -> m n", "..., ... -> ...", "... d!, d! -> ... d!", "... @v, v d -> ... d",
        "b s (h g) d, b t h d -> b s (h g) d", "... v^, ... -> ..., ...", "a k:max -> a", "a b -> ",
        " -> a", "() m, m () -> () m", "a^!:min @v!, v! -> a^!:min",
        "b s (h g) d!, b t~s h d! -> b s (h g) d!", "t~s, s -> s",
        "... i!, ... c @e<..., ... c, e<... f i!, e<... d f -> ... d", "... a!:max<... -> ..."}) {
    DT_ASSERT_OK_AND_ASSIGN(const OpRule rule, OpRule::Parse(text));
    EXPECT_EQ(std::string(rule.ToString()), text);
    EXPECT_THAT(OpRule::Parse(rule.ToString()), IsOkAndHolds(rule));
  }
}

// A letter with random marks: they are the letter's, wherever it is written.
std::string RandomWord(TestRandom& random) {
  std::string word(1, static_cast<char>('a' + random.Below(5)));
  if (random.Below(8) == 0) word += "^";
  if (random.Below(8) == 0) word += "!";
  if (random.Below(8) == 0) word += ":max";
  if (word[0] == 'a' && random.Below(4) == 0) return word + "~b";
  if (word[0] == 'e' && random.Below(4) == 0) word += "<...";
  return word;
}

std::string RandomTerm(TestRandom& random) {
  std::string term = random.Coin() ? "..." : "";
  if (random.Below(4) == 0) term += " @" + RandomWord(random);
  for (int d = random.Below(4); d > 0; --d) {
    if (random.Below(3) > 0) {
      term += " " + RandomWord(random);
      continue;
    }
    std::string inside;
    for (int i = random.Below(4); i > 0; --i)
      inside += (inside.empty() ? "" : " ") + RandomWord(random);
    term += " (" + inside + ")";
  }
  return term;
}

TEST(OpRuleText, ParsesWhatRandomRulesPrint) {
  TestRandom random;
  for (int round = 0; round < 2000; ++round) {
    std::string text = RandomTerm(random);
    for (int i = random.Below(3); i > 0; --i) text += "," + RandomTerm(random);
    text += "->" + RandomTerm(random);
    for (int i = random.Below(2); i > 0; --i) text += "," + RandomTerm(random);
    DT_ASSERT_OK_AND_ASSIGN(const OpRule rule, OpRule::Parse(text));
    EXPECT_THAT(OpRule::Parse(rule.ToString()), IsOkAndHolds(rule)) << text;
  }
}

TEST(OpRuleText, LikeRulesAreEqualHoweverTheirLettersAreNumbered) {
  const auto rule = [](absl::string_view text) { return *OpRule::Parse(text); };
  EXPECT_EQ(rule("@v a, v d -> a d"), rule("a @v, v d -> a d"));
  EXPECT_EQ(rule("a! b, a -> b"), rule("a b, a! -> b"));
  EXPECT_EQ(rule("(a) -> a"), rule("a -> a"));
  for (absl::string_view other :
       {"a b -> b", "b a -> a", "a! b -> a", "a b^ -> a", "a b:max -> a", "(a b) -> a",
        "... a b -> a", "a b, a -> a", "a b -> ()", "a b -> a, a", "a b~a -> a", "a b<... -> a"}) {
    EXPECT_FALSE(rule("a b -> a") == rule(other)) << other;
  }
}

// With shapes, "..." has become letters and dimensions without one.
TEST(OpRuleText, ParsesWhatBoundRulesPrint) {
  const BoundRule rule = Bound("... d!, ... d! -> ... d!", {{2, 1, 4, 7}, {3, 1, 7}});
  EXPECT_EQ(rule.rule().ToString(), "_0 () _2 d!, _1 () d! -> _0 _1 _2 d!");
  EXPECT_THAT(OpRule::Parse(rule.rule().ToString()), IsOkAndHolds(rule.rule()));
}

TEST(OpRuleText, RefusesWhatItCannotRead) {
  for (const char* text : {"a b",
                           "a -> b -> c",
                           "(a -> a",
                           "a) -> a",
                           "a ... -> a",
                           "! -> a",
                           "a:most -> a",
                           "a$ -> a",
                           "(a @v) -> a",
                           "@v @w -> v",
                           "( ) -> ",
                           "(() a) -> a",
                           "a~a -> a",
                           "s r, t~s, t~r -> s",
                           "t~ -> t",
                           "e<.. -> e",
                           "... e<...<... -> e",
                           "..., e<...~s, s -> s",
                           "<... -> a",
                           "a<b, b -> b",
                           "a<...< -> a",
                           "a<... a~b, b -> b",
                           "a<... b<... -> a"}) {
    EXPECT_THAT(OpRule::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
}

TEST(OpRuleText, RefusesChainsOfStreamedLettersAndLongTexts) {
  const auto refused = [](absl::string_view words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(words)));
  };
  EXPECT_THAT(OpRule::Parse("a~b~c, b, c -> c"), refused("streamed itself"));
  EXPECT_THAT(OpRule::Parse("a~b, b~c, c -> c"), refused("streamed itself"));
  EXPECT_THAT(OpRule::Parse("a~b, b~a -> a"), refused("streamed itself"));
  std::string chain = "a";
  while (chain.size() + 10 < OpRule::kMaxText) chain += "~b";
  EXPECT_THAT(OpRule::Parse(chain + " -> b"), refused("streamed itself"));
  std::string sent = "e";
  while (sent.size() + 10 < OpRule::kMaxText) sent += "<...";
  EXPECT_THAT(OpRule::Parse(sent + " -> b"), refused("strange letter"));
  for (int i = 0; i < 100'000; ++i) chain += "~b";
  const absl::Status status = OpRule::Parse(chain + " -> b").status();
  EXPECT_THAT(status, refused("at most 65536"));
  EXPECT_LT(status.message().size(), 300u);
}

TEST(BoundRule, WritesEllipsesOutAndBroadcasts) {
  const BoundRule rule = Bound("..., ... -> ...", {{2, 1, 4}, {3, 1}});
  EXPECT_EQ(rule.result_shapes()[0], (Dims{2, 3, 4}));
  EXPECT_TRUE(rule.rule().operands()[0].dims[1].empty());  // size 1 against 3: no letter
  EXPECT_TRUE(rule.rule().operands()[1].dims[1].empty());
}

TEST(BoundRule, FindsSizesOfFactors) {
  const BoundRule rule = Bound("b (h g), b h -> b (h g), g", {{2, 12}, {2, 4}});
  EXPECT_EQ(rule.letter_size(rule.LetterIndex("g")), 3);
  EXPECT_EQ(rule.result_shapes()[1], (Dims{3}));
}

TEST(BoundRule, RefusesShapesThatDoNotFit) {
  const auto bind = [](absl::string_view text, std::vector<Dims> shapes) {
    return BoundRule::Bind("Op", *OpRule::Parse(text), shapes).status();
  };
  EXPECT_THAT(bind("m k, k n -> m n", {{2, 3}, {4, 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Op: operand 1 has size 4 where 'k' is 3")));
  EXPECT_THAT(bind("..., ... -> ...", {{5, 3}, {4}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Op: operand 1 has size 4 where 'dimension 1 of ...' is 3")));
  EXPECT_THAT(bind("m k, k n -> m n", {{2, 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("takes 2")));
  EXPECT_THAT(bind("m () -> m", {{2, 3}}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("size 3 where the rule has '()'")));
  EXPECT_THAT(bind("m k -> m", {{2, 3, 4}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 dimensions")));
  EXPECT_THAT(bind("(h g), h -> g", {{10}, {4}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("10 of operand 0 is no multiple of 4")));
  EXPECT_THAT(bind("..., ... -> ...", {{2, 3}, {2, 4}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[2, 4]")));
}

TEST(BoundRule, RefusesLettersWithoutASize) {
  const auto bind = [](absl::string_view text, std::vector<Dims> shapes, LetterSizes sizes = {}) {
    return BoundRule::Bind("Op", *OpRule::Parse(text), shapes, sizes).status();
  };
  const auto refused = [](absl::string_view words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(words)));
  };
  EXPECT_THAT(bind("m k -> m q", {{2, 3}}), refused("Op: nothing says how large 'q' is"));
  EXPECT_THAT(bind("(h g) -> h g", {{12}}), refused("how large 'h' is"));
  EXPECT_THAT(bind("(h g) -> ", {{12}}), refused("how large 'h' is"));
  EXPECT_THAT(bind("t @v -> t", {{12}}), refused("how large 'v' is"));
  EXPECT_THAT(bind("(h g) -> h g", {{12}}, {{"h", 4}}), IsOk());
  EXPECT_THAT(bind("m -> m", {{2}}, {{"q", 4}}), refused("size of 'q', which the rule lacks"));
  EXPECT_THAT(bind("m -> m q", {{2}}, {{"q", -4}}), refused("size -4 of 'q'"));
  const int64_t large = int64_t{1} << 40;
  EXPECT_THAT(bind("a b -> (a b)", {{large, large}}), refused("Op"));
  EXPECT_THAT(bind("(a b), a, b -> a", {{1}, {large}, {large}}), refused("operand 0"));
}

TEST(BoundRule, RefusesMoreDimensionsAndOperandsThanItsLimits) {
  const auto bind = [](absl::string_view text, std::vector<Dims> shapes) {
    return BoundRule::Bind("Op", *OpRule::Parse(text), shapes).status();
  };
  const auto refused = [](absl::string_view words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(words)));
  };
  const Dims most(Layout::kMaxDims, 1);
  EXPECT_THAT(bind("..., ... -> ...", {most, most}), IsOk());
  EXPECT_THAT(bind("..., v -> ... v", {most, {5}}), refused("result 0 has 33 dimensions"));
  const Dims more(Layout::kMaxDims + 1, 1);
  EXPECT_THAT(bind("... -> ...", {more}), refused("operand 0 has 33 dimensions"));
  std::string operands;
  for (size_t i = 0; i <= OpRule::kMaxOperands; ++i) operands += i > 0 ? ", m" : "m";
  EXPECT_THAT(OpRule::Parse(operands + " -> m").status(), refused("33 operands; at most 32"));
}

// As SplitTensor makes them: a letter for each part, too many for a search that goes one deeper
// with each.
TEST(ChooseAssignment, TakesThousandsOfLetters) {
  const DeviceMesh mesh = Mesh("tp=2");
  std::string text = "d a! -> ", parts, gradients;
  LetterSizes sizes;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "p" + std::to_string(i);
    text += (i > 0 ? ", d " : "d ") + name + "!";
    parts += i > 0 ? ", [tp] []" : "[tp] []";
    sizes.push_back({name, 1});
  }
  EXPECT_EQ(
      Decided(Bound(text, {{4, 5000}}, sizes), RuleLinearity::kView, {Operand(mesh, "[tp] []")}),
      "[tp] [] -> " + parts + " | [tp] []");
}

// 33 letters: the last dimension's is not k.
TEST(ChooseAssignment, TellsManyLettersApart) {
  const DeviceMesh mesh = Mesh("tp=2");
  std::string whole;
  for (int d = 0; d < Layout::kMaxDims; ++d) whole += d > 0 ? " []" : "[]";
  const BoundRule sum = Bound("..., k -> ...", {Dims(Layout::kMaxDims, 2), {2}});
  EXPECT_EQ(Decided(sum, RuleLinearity::kMulti, {Operand(mesh, whole), Operand(mesh, "[tp]")}),
            whole + ", [tp] -> " + whole + " P(sum: tp) | " + whole + " P(sum: tp), [tp]");
}

TEST(ChooseAssignment, TakesWhatMovesNothing) {
  const DeviceMesh mesh = Mesh("dp=2,tp=2");
  const BoundRule matmul = Bound("m k, k n -> m n", {{8, 4}, {4, 8}});
  EXPECT_EQ(
      Decided(matmul, RuleLinearity::kMulti, {Operand(mesh, "[dp] []"), Operand(mesh, "[] [tp]")}),
      "[dp] [], [] [tp] -> [dp] [tp] | [dp] [] P(sum: tp), [] [tp] P(sum: dp)");
  EXPECT_EQ(Decided(matmul, RuleLinearity::kMulti,
                    {Operand(mesh, "[dp] [tp]"), Operand(mesh, "[tp] []")}),
            "[dp] [tp], [tp] [] -> [dp] [] P(sum: tp) | [dp] [tp], [tp] [] P(sum: dp)");
}

TEST(ChooseAssignment, PartialPassesWhereTheOperatorIsLinear) {
  const DeviceMesh mesh = Mesh("tp=2");
  const BoundRule pointwise = Bound("..., ... -> ...", {{4, 4}, {4, 4}});
  const RuleOperand partial = Operand(mesh, "[] [] P(sum: tp)"), whole = Operand(mesh, "[] []");
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kJoint, {partial, partial}),
            "[] [] P(sum: tp), [] [] P(sum: tp) -> [] [] P(sum: tp) | [] [], [] []");
  // A + B with A Partial and B whole is not (sum of A) + B on each rank: A is reduced first.
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kJoint, {partial, whole}),
            "[] [], [] [] -> [] [] | [] [], [] []");
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kMulti, {partial, whole}),
            "[] [] P(sum: tp), [] [] -> [] [] P(sum: tp) | [] [], [] [] P(sum: tp)");
  // The mean of products: the gradient of the whole factor is a mean too, perhaps beside a sum over
  // another axis.
  const RuleOperand mean = Operand(mesh, "[] [] P(avg: tp)");
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kMulti, {mean, whole}),
            "[] [] P(avg: tp), [] [] -> [] [] P(avg: tp) | [] [], [] [] P(avg: tp)");
  const DeviceMesh both = Mesh("dp=2,tp=2");
  EXPECT_EQ(Decided(Bound("m k, k -> m k", {{4, 4}, {4}}), RuleLinearity::kMulti,
                    {Operand(both, "[dp] [] P(avg: tp)"), Operand(both, "[]")}),
            "[dp] [] P(avg: tp), [] -> [dp] [] P(avg: tp) | [dp] [], [] P(sum: dp) P(avg: tp)");
  // A product of two sums is not the sum of products.
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kMulti, {partial, partial}),
            "[] [], [] [] -> [] [] | [] [], [] []");
  EXPECT_EQ(Decided(pointwise, RuleLinearity::kNone, {partial, whole}),
            "[] [], [] [] -> [] [] | [] [], [] []");
}

TEST(ChooseAssignment, ExtremaPassMonotoneOperators) {
  const DeviceMesh mesh = Mesh("tp=2");
  const BoundRule unary = Bound("... -> ...", {{4}});
  EXPECT_EQ(Decided(unary, RuleLinearity::kIncreasing, {Operand(mesh, "[] P(max: tp)")}),
            "[] P(max: tp) -> [] P(max: tp) | []");
  EXPECT_EQ(Decided(unary, RuleLinearity::kDecreasing, {Operand(mesh, "[] P(max: tp)")}),
            "[] P(max: tp) -> [] P(min: tp) | []");
  EXPECT_EQ(Decided(unary, RuleLinearity::kIncreasing, {Operand(mesh, "[] P(sum: tp)")}),
            "[] -> [] | []");
}

TEST(ChooseAssignment, DoesNotMoveWhatIsPinned) {
  const DeviceMesh mesh = Mesh("tp=2");
  // tp splits the tokens of x (large) and the outputs of w (small): gathering w would be cheaper.
  const BoundRule linear = Bound("... k, n k -> ... n", {{2, 64, 8}, {8, 8}});
  const RuleOperand x = Operand(mesh, "[] [tp] []");
  EXPECT_EQ(Decided(linear, RuleLinearity::kMulti, {x, Operand(mesh, "[tp] []")}),
            "[] [tp] [], [] [] -> [] [tp] [] | [] [tp] [], [] [] P(sum: tp)");
  EXPECT_EQ(Decided(linear, RuleLinearity::kMulti, {x, Operand(mesh, "[tp] []", /*pinned=*/true)}),
            "[] [] [], [tp] [] -> [] [] [tp] | [] [] [] P(sum: tp), [tp] []");
}

TEST(ChooseAssignment, GivesUpOneAxisOfTwo) {
  const DeviceMesh mesh = Mesh("dp=2,tp=2");
  const BoundRule linear = Bound("... k, n k -> ... n", {{4, 8}, {64, 8}});
  EXPECT_EQ(Decided(linear, RuleLinearity::kMulti,
                    {Operand(mesh, "[dp,tp] []"), Operand(mesh, "[tp] []", true)}),
            "[dp] [], [tp] [] -> [dp] [tp] | [dp] [] P(sum: tp), [tp] [] P(sum: dp)");
}

TEST(ChooseAssignment, WholeLettersAreGathered) {
  const DeviceMesh mesh = Mesh("tp=2");
  const BoundRule norm = Bound("... d!, d! -> ... d!", {{4, 8}, {8}});
  EXPECT_EQ(Decided(norm, RuleLinearity::kNone, {Operand(mesh, "[] [tp]"), Operand(mesh, "[]")}),
            "[] [], [] -> [] [] | [] [], []");
  // The weight of a norm whose tokens are split gets a Partial gradient: the bug that sequence
  // parallelism breeds.
  EXPECT_EQ(Decided(norm, RuleLinearity::kNone, {Operand(mesh, "[tp] []"), Operand(mesh, "[]")}),
            "[tp] [], [] -> [tp] [] | [tp] [], [] P(sum: tp)");
}

TEST(ChooseAssignment, MergedLettersMakeNoPartial) {
  const DeviceMesh mesh = Mesh("tp=2");
  const BoundRule loss = Bound("... v^, ... -> ...", {{4, 8}, {4}});
  EXPECT_EQ(Decided(loss, RuleLinearity::kNone, {Operand(mesh, "[] [tp]"), Operand(mesh, "[]")}),
            "[] [tp], [] -> [] | [] [tp], [] P(sum: tp)");
}

// One axis may split s and t; then nothing is Partial, for the operator brings each shard of t to
// each shard of s, and the gradients home. Where an axis splits one of them alone, they are letters
// like others; t is then merged by the operator, like a merged one.
TEST(ChooseAssignment, StreamedLettersShareTheAxesOfTheirFellow) {
  const DeviceMesh mesh = Mesh("cp=2,tp=2");
  const BoundRule rule = Bound("s h, t~s h -> s h, s", {{8, 4}, {12, 4}});
  const auto decided = [&](absl::string_view q, absl::string_view k) {
    return Decided(rule, RuleLinearity::kNone, {Operand(mesh, q), Operand(mesh, k)});
  };
  EXPECT_EQ(decided("[cp:zigzag] [tp]", "[cp] [tp]"),
            "[cp:zigzag] [tp], [cp] [tp] -> [cp:zigzag] [tp], [cp:zigzag] P(sum: tp) | "
            "[cp:zigzag] [tp], [cp] [tp]");
  EXPECT_EQ(decided("[cp] []", "[] []"),
            "[cp] [], [] [] -> [cp] [], [cp] | [cp] [], [] [] P(sum: cp)");
  EXPECT_EQ(decided("[] []", "[cp] []"), "[] [], [cp] [] -> [] [], [] | [] [] P(sum: cp), [cp] []");
  EXPECT_EQ(decided("[tp] []", "[cp] []"),
            "[tp] [], [cp] [] -> [tp] [], [tp] | [tp] [] P(sum: cp), [cp] [] P(sum: tp)");
  // All of s's axes or none: part of them moves something, here the fewest bytes.
  EXPECT_EQ(decided("[cp,tp] []", "[cp] []"),
            "[cp] [], [cp] [] -> [cp] [], [cp] | [cp] [], [cp] []");
  // Not past h: an axis that splits it is taken.
  EXPECT_EQ(decided("[] [cp]", "[cp] []"), decided("[] [cp]", "[] [cp]"));
}

// An axis may split e and what "..." stands for; then nothing is Partial on it. Where it splits e
// alone, e is a letter like others. It may split only some of what "..." stands for.
TEST(ChooseAssignment, ReachedLettersShareTheAxesOfWhatIsSentToThem) {
  const DeviceMesh mesh = Mesh("dp=2,ep=2");
  const BoundRule rule = Bound("... i!, e<... d i! -> ... d", {{8, 4, 4}, {6, 4, 4}});
  const auto decided = [&](absl::string_view x, absl::string_view w) {
    return Decided(rule, RuleLinearity::kNone, {Operand(mesh, x), Operand(mesh, w)});
  };
  EXPECT_EQ(decided("[ep] [] []", "[ep] [] []"),
            "[ep] [] [], [ep] [] [] -> [ep] [] [] | [ep] [] [], [ep] [] []");
  EXPECT_EQ(decided("[dp,ep] [] []", "[ep] [] []"),
            "[dp,ep] [] [], [ep] [] [] -> [dp,ep] [] [] | [dp,ep] [] [], [ep] [] [] P(sum: dp)");
  EXPECT_EQ(decided("[dp] [ep:zigzag] []", "[ep,dp] [] []"),
            "[dp] [ep:zigzag] [], [ep,dp] [] [] -> [dp] [ep:zigzag] [] | "
            "[dp] [ep:zigzag] [], [ep,dp] [] []");
  EXPECT_EQ(decided("[] [] []", "[ep] [] []"),
            "[] [] [], [ep] [] [] -> [] [] [] P(sum: ep) | [] [] [] P(sum: ep), [ep] [] []");
  EXPECT_EQ(decided("[dp] [] []", "[ep,dp] [] []"),
            "[dp] [] [], [ep,dp] [] [] -> [dp] [] [] P(sum: ep) | "
            "[dp] [] [] P(sum: ep), [ep,dp] [] []");
  // Not d: an axis that splits it splits nothing else.
  EXPECT_EQ(decided("[] [] []", "[ep] [dp] []"),
            "[] [] [], [ep] [dp] [] -> [] [] [dp] P(sum: ep) | "
            "[] [] [] P(sum: dp,ep), [ep] [dp] []");
}

TEST(ChooseAssignment, FactorsFollowUnits) {
  const DeviceMesh mesh = Mesh("tp=2");
  // 8 query heads in 4 groups: q's heads in units of 2, k's one by one.
  const BoundRule attention =
      Bound("b s! (h g) d!, b t! h d! -> b s! (h g) d!", {{1, 4, 8, 2}, {1, 4, 4, 2}});
  EXPECT_EQ(
      Decided(attention, RuleLinearity::kNone,
              {Operand(mesh, "[] [] [tp x 2] []"), Operand(mesh, "[] [] [tp] []")}),
      "[] [] [tp x 2] [], [] [] [tp] [] -> [] [] [tp x 2] [] | [] [] [tp x 2] [], [] [] [tp] []");
}

TEST(ChooseAssignment, RefusesUnlikeMeshes) {
  const BoundRule rule = Bound("..., ... -> ...", {{4}, {4}});
  EXPECT_THAT(Decided(rule, RuleLinearity::kJoint,
                      {Operand(Mesh("tp=2"), "[tp]"), Operand(Mesh("dp=2"), "[dp]")}),
              HasSubstr("unlike meshes"));
}

TEST(ReshapeRule, NestsFactors) {
  const auto rule = [](Dims from, Dims to) {
    LetterSizes sizes;
    auto text = ReshapeRule(from, to, &sizes);
    if (!text.ok()) return std::string(text.status().message());
    // Binding proves that the text says the target shape.
    auto bound = BoundRule::Bind("Reshape", *OpRule::Parse(*text), {from}, sizes);
    EXPECT_TRUE(bound.ok()) << bound.status();
    EXPECT_EQ(bound->result_shapes()[0], to);
    return *text;
  };
  EXPECT_EQ(rule({2, 6}, {2, 2, 3}), "d0 (d2 d1) -> d0 d2 d1");
  EXPECT_EQ(rule({2, 2, 3}, {2, 6}), "d0 d2 d1 -> d0 (d2 d1)");
  EXPECT_EQ(rule({6, 4}, {3, 8}), "(d2 d1) d0 -> d2 (d1 d0)");
  EXPECT_EQ(rule({2, 3}, {3, 2}), "d0! d1! -> d2! d3!");  // boundaries do not nest
  EXPECT_EQ(rule({4}, {1, 4}), "d0 -> d1! d0");
  EXPECT_EQ(rule({1, 6}, {1, 2, 3}), "d0 (d2 d1) -> d0 d2 d1");  // a batch of one stays split
  EXPECT_EQ(rule({1}, {}), "d0! -> ");
  EXPECT_EQ(rule({0, 2}, {0}), "d0! d1! -> d2!");
  EXPECT_THAT(rule({2, 3}, {7}), HasSubstr("cannot become [7]"));
}

}  // namespace
}  // namespace dtensor
