#include "dtensor/runtime/comm/send_list.h"

#include <cstdint>
#include <vector>

#include "dtensor/runtime/core/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

// A ring of ranks 2, 5 and 7 in two parts: each receives element `rank` of the rank before it, and
// in the second part a sum of its own and its predecessor's.
class Ring final : public ExchangeBoxes {
 public:
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    ++asked;
    const int before = rank == 2 ? 7 : rank == 5 ? 2 : 5;
    ReceiveBox box{.dims = {{.src = rank, .length = 1}}};
    box.peers = part == 0 ? decltype(box.peers){before} : decltype(box.peers){before, rank};
    return {box};
  }
  uint64_t digest() const override { return 1; }
  bool may_repeat() const override { return repeats; }

  mutable int asked = 0;
  bool repeats = true;
};

const int kGroup[] = {2, 5, 7};

TEST(SendListTest, HasWhatOthersReceive) {
  const Ring ring;
  const Collective collective = {.group = kGroup, .boxes = &ring};
  EXPECT_THAT(SendListOf(collective, 2, 7),
              ElementsAre(FieldsAre(2, 0, 0, ElementsAre(MatchedRun{.src = 2, .length = 1})),
                          FieldsAre(2, 1, 0, ElementsAre(MatchedRun{.src = 2, .length = 1}))));
  EXPECT_THAT(SendListOf(collective, 0, 7), IsEmpty());
}

TEST(SendListTest, IsKept) {
  const Ring ring;
  const Collective collective = {.group = kGroup, .boxes = &ring};
  SendLists lists(5);
  EXPECT_EQ(lists.Of(collective, 2).size(), 2);
  const int asked = ring.asked;
  EXPECT_EQ(lists.Of(collective, 2)[0].receiver, 7);
  EXPECT_EQ(ring.asked, asked);
  EXPECT_EQ(lists.Of(collective, 1).size(), 1);
  EXPECT_GT(ring.asked, asked);
}

TEST(SendListTest, IsNotKeptOfWhatDoesNotRepeat) {
  Ring once;
  once.repeats = false;
  const Collective collective = {.group = kGroup, .boxes = &once};
  SendLists lists(5);
  EXPECT_EQ(lists.Of(collective, 2).size(), 2);
  const int asked = once.asked;
  EXPECT_EQ(lists.Of(collective, 2)[0].receiver, 7);
  EXPECT_EQ(once.asked, 2 * asked);
}

}  // namespace
}  // namespace dtensor
