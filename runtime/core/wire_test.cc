#include "dtensor/runtime/core/wire.h"

#include <string>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

std::string Message() {
  WireWriter out;
  out.U8(255);
  out.U32(0x12345678);
  out.U64(0xfedcba9876543210);
  out.Text("");
  out.Text(std::string("a\0b", 3));
  out.Raw("tail");
  return out.bytes();
}

TEST(Wire, ReadsWhatWasWritten) {
  const std::string message = Message();
  WireReader in(message);
  EXPECT_EQ(in.U8(), 255);
  EXPECT_EQ(in.U32(), 0x12345678);
  EXPECT_EQ(in.U64(), 0xfedcba9876543210);
  EXPECT_EQ(in.Text(), "");
  EXPECT_EQ(in.Text(), std::string("a\0b", 3));
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.Raw(4), "tail");
  EXPECT_TRUE(in.done());
}

TEST(Wire, NumbersAreLittleEndian) { EXPECT_EQ(Message().substr(0, 5), "\xff\x78\x56\x34\x12"); }

// Whatever is missing, all that follows is missing too, and no text is longer than what there is.
TEST(Wire, WhatIsCutOffIsNotThere) {
  const std::string message = Message();
  for (size_t length = 0; length < message.size(); ++length) {
    WireReader in(absl::string_view(message).substr(0, length));
    in.U8();
    in.U32();
    in.U64();
    in.Text();
    in.Text();
    in.Raw(4);
    EXPECT_FALSE(in.ok()) << length;
    EXPECT_FALSE(in.done()) << length;
    EXPECT_EQ(in.U8(), 0);
    EXPECT_EQ(in.Text(), "");
  }
}

TEST(Wire, WhetherAndTheRest) {
  WireReader in(absl::string_view("\0\1rest", 6));
  EXPECT_FALSE(in.Bool());
  EXPECT_TRUE(in.Bool());
  EXPECT_EQ(in.Rest(), "rest");
  EXPECT_TRUE(in.done());
  EXPECT_EQ(in.Rest(), "");
  EXPECT_TRUE(in.done());
  WireReader neither("\2");
  EXPECT_FALSE(neither.Bool());
  EXPECT_FALSE(neither.ok());
}

TEST(Wire, ATextThatSaysItIsLongerThanTheMessage) {
  WireReader in("\xff\xff\xff\xff tail");
  EXPECT_EQ(in.Text(), "");
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.U8(), 0);
}

}  // namespace
}  // namespace dtensor
