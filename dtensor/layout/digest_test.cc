#include "dtensor/layout/digest.h"

#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Parameters' first values depend on it: https://datatracker.ietf.org/doc/draft-eastlake-fnv
TEST(Fnv1a, HasThePublishedValues) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8);
  EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar"));
}

TEST(Digest, DependsOnWhereATextEnds) {
  const auto of = [](absl::string_view first, absl::string_view second) {
    Digest digest;
    digest.Add(first);
    digest.Add(second);
    return digest.value();
  };
  EXPECT_EQ(of("ab", "c"), of("ab", "c"));
  EXPECT_NE(of("ab", "c"), of("a", "bc"));
}

}  // namespace
}  // namespace dtensor
