#include "dtensor/runtime/device/cuda/deferred_queue.h"

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

bool Never() { return false; }

TEST(DeferredQueue, RunsInOrderWhatIsDone) {
  DeferredQueue queue;
  std::string ran;
  bool done = false;
  queue.Push([&] { return done; }, [&] { ran += 'a'; });
  queue.Push([] { return true; }, [&] { ran += 'b'; });
  queue.Run();
  EXPECT_EQ(ran, "") << "b is not before a";
  done = true;
  queue.Run();
  EXPECT_EQ(ran, "ab");
  EXPECT_TRUE(queue.empty());
}

// A thread defers while another one waits for the stream: that work may not be done.
TEST(DeferredQueue, AWaitIsForWhatCameBeforeIt) {
  DeferredQueue queue;
  std::string ran;
  queue.Push(nullptr, [&] { ran += 'a'; });
  queue.Push(Never, [&] { ran += 'b'; });
  const uint64_t end = queue.End();
  queue.Push(Never, [&] { ran += 'c'; });
  queue.Push(nullptr, [&] { ran += 'd'; });
  queue.RunBefore(end);
  EXPECT_EQ(ran, "ab");
  queue.RunBefore(end);
  EXPECT_EQ(ran, "ab") << "the same wait counts once";
  queue.RunBefore(queue.End());
  EXPECT_EQ(ran, "abcd");
}

// Another thread may run what is done before the one that waits comes to it.
TEST(DeferredQueue, WhatRanMeanwhileIsNotMadeUpFor) {
  DeferredQueue queue;
  std::string ran;
  queue.Push([] { return true; }, [&] { ran += 'a'; });
  const uint64_t end = queue.End();
  queue.Run();
  queue.Push(Never, [&] { ran += 'b'; });
  queue.RunBefore(end);
  EXPECT_EQ(ran, "a");
}

TEST(DeferredQueue, AFunctionMayPush) {
  DeferredQueue queue;
  std::string ran;
  queue.Push(nullptr, [&] {
    ran += 'a';
    queue.Push([] { return true; }, [&] { ran += 'b'; });
    queue.Push(Never, [&] { ran += 'c'; });
  });
  queue.RunBefore(queue.End());
  EXPECT_EQ(ran, "ab");
  EXPECT_FALSE(queue.empty());
}

}  // namespace
}  // namespace dtensor
