#include "dtensor/runtime/net/handshake.h"

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const JobKey kKey = {"job 1", "a secret", 4};

struct Said {
  std::string listeners_nonce = RandomNonce();
  Hello hello = {LinkKind::kData, 3, RandomNonce()};
  std::string bytes(const JobKey& key = kKey) const { return hello.Encode(key, listeners_nonce); }
};

Verdict Judge(const std::string& bytes, const std::string& nonce, const JobKey& key = kKey) {
  Hello read;
  return ReadHello(bytes, key, nonce, read);
}

TEST(Hello, IsReadAsItWasSaid) {
  const Said said;
  EXPECT_EQ(said.bytes().size(), Hello::kBytes);
  Hello read;
  EXPECT_EQ(ReadHello(said.bytes(), kKey, said.listeners_nonce, read), Verdict::kWelcome);
  EXPECT_EQ(read.kind, LinkKind::kData);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.nonce, said.hello.nonce);
}

TEST(Hello, NoncesDiffer) {
  EXPECT_EQ(RandomNonce().size(), kNonceBytes);
  EXPECT_NE(RandomNonce(), RandomNonce());
}

TEST(Hello, OfAnotherJob) {
  const Said said;
  for (const JobKey& other : {JobKey{"job 1", "another", 4}, JobKey{"job 1", "", 4},
                              JobKey{"job 2", "a secret", 4}, JobKey{"", "a secret", 4},
                              JobKey{"job 1", "a secret ", 4}, JobKey{"job 1a", " secret", 4}}) {
    EXPECT_EQ(Judge(said.bytes(other), said.listeners_nonce), Verdict::kStranger)
        << other.job << ", " << other.secret;
    EXPECT_EQ(Judge(said.bytes(), said.listeners_nonce, other), Verdict::kStranger);
  }
}

// Without a secret it is the job that must be known.
TEST(Hello, WithoutASecret) {
  const Said said;
  const JobKey open = {"job 1", "", 4}, other = {"job 2", "", 4};
  EXPECT_EQ(Judge(said.bytes(open), said.listeners_nonce, open), Verdict::kWelcome);
  EXPECT_EQ(Judge(said.bytes(other), said.listeners_nonce, open), Verdict::kStranger);
}

TEST(Hello, OfAnotherSize) {
  const Said said;
  EXPECT_EQ(Judge(said.bytes({"job 1", "a secret", 5}), said.listeners_nonce), Verdict::kWrongSize);
}

TEST(Hello, OfARankThatIsNone) {
  Said said;
  for (const uint32_t rank : {4u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    said.hello.rank = rank;
    EXPECT_EQ(Judge(said.bytes(), said.listeners_nonce), Verdict::kWrongRank) << rank;
  }
}

TEST(Hello, SaidAgainToAnotherListener) {
  const Said said;
  EXPECT_EQ(Judge(said.bytes(), RandomNonce()), Verdict::kStranger);
}

TEST(Hello, AnyByteThatIsChanged) {
  const Said said;
  for (size_t i = 0; i < Hello::kBytes; ++i) {
    for (const int bit : {0, 7}) {
      std::string bytes = said.bytes();
      bytes[i] = static_cast<char>(bytes[i] ^ 1 << bit);
      EXPECT_EQ(Judge(bytes, said.listeners_nonce), Verdict::kStranger) << i << " bit " << bit;
    }
  }
}

TEST(Hello, CutOffOrTooLong) {
  const Said said;
  for (size_t length = 0; length < Hello::kBytes; ++length) {
    EXPECT_EQ(Judge(said.bytes().substr(0, length), said.listeners_nonce), Verdict::kStranger);
  }
  EXPECT_EQ(Judge(said.bytes() + "x", said.listeners_nonce), Verdict::kStranger);
}

// A listener's proof is no caller's, of no other talk, and of no other job.
TEST(Hello, WhatTheListenerProves) {
  const Said said;
  const std::string proof = WelcomeProof(kKey, said.hello, said.listeners_nonce);
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_NE(proof, said.bytes().substr(Hello::kBytes - kProofBytes));
  EXPECT_NE(proof, WelcomeProof(kKey, said.hello, RandomNonce()));
  EXPECT_NE(proof, WelcomeProof(kKey, Said().hello, said.listeners_nonce));
  EXPECT_NE(proof, WelcomeProof({"job 1", "another", 4}, said.hello, said.listeners_nonce));
}

// What a caller meets at a listener that answers its hello like that. No answer: it closes.
using Answer = std::function<std::string(const Hello& hello, const std::string& nonce)>;
absl::Status Meet(const Answer& answer, const JobKey& listeners = kKey) {
  auto [near, far] = SocketPair();
  std::thread listener([&, far = std::move(far)]() mutable {
    const std::string nonce = RandomNonce();
    DT_ASSERT_OK(SendAll(far, BytesOf(nonce), In(10)));
    std::string said(Hello::kBytes, '\0');
    DT_ASSERT_OK(ReceiveAll(far, BytesOf(said), In(10)));
    Hello hello;
    EXPECT_EQ(ReadHello(said, listeners, nonce, hello), Verdict::kWelcome);
    DT_ASSERT_OK(SendAll(far, BytesOf(answer(hello, nonce)), In(10)));
  });
  const absl::Status met = Introduce(near, LinkKind::kControl, 2, kKey, In(10));
  listener.join();
  return met;
}

std::string Say(Verdict verdict) { return std::string(1, static_cast<char>(verdict)); }

TEST(Introduce, IsLetIn) {
  DT_EXPECT_OK(Meet([](const Hello& hello, const std::string& nonce) {
    EXPECT_EQ(hello.kind, LinkKind::kControl);
    EXPECT_EQ(hello.rank, 2);
    return Say(Verdict::kWelcome) + WelcomeProof(kKey, hello, nonce);
  }));
}

TEST(Introduce, SaysWhyItIsNotLetIn) {
  const auto meet = [](Verdict verdict) { return Meet([=](auto&&...) { return Say(verdict); }); };
  EXPECT_THAT(meet(Verdict::kStranger), StatusIs(absl::StatusCode::kPermissionDenied,
                                                 HasSubstr("another job, or has another secret")));
  EXPECT_THAT(meet(Verdict::kWrongSize),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not 4 ranks")));
  EXPECT_THAT(meet(Verdict::kWrongRank),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a rank 2 already")));
  EXPECT_THAT(meet(static_cast<Verdict>(77)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no rank of this library")));
}

TEST(Introduce, AListenerThatLiesAboutItsProof) {
  const auto lies = [](const Answer& proof) {
    EXPECT_THAT(Meet([&](const Hello& hello, const std::string& nonce) {
                  return Say(Verdict::kWelcome) + proof(hello, nonce);
                }),
                StatusIs(absl::StatusCode::kPermissionDenied));
  };
  lies([](auto&&...) { return std::string(kProofBytes, '\0'); });
  lies([](const Hello& hello, const std::string&) {
    return WelcomeProof(kKey, hello, RandomNonce());
  });
  lies([](const Hello& hello, const std::string& nonce) {
    return WelcomeProof({"job 1", "guessed", 4}, hello, nonce);
  });
  lies([](const Hello& hello, const std::string& nonce) {  // what the caller said itself
    return hello.Encode(kKey, nonce).substr(Hello::kBytes - kProofBytes);
  });
}

TEST(Introduce, AListenerThatCloses) {
  EXPECT_THAT(Meet([](auto&&...) { return ""; }), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Meet([](auto&&...) { return Say(Verdict::kWelcome) + "half"; }),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(Introduce, AListenerThatSaysNothing) {
  auto [near, far] = SocketPair();
  const auto start = NetClock::now();
  EXPECT_THAT(Introduce(near, LinkKind::kControl, 2, kKey, In(0.1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("says nothing")));
  EXPECT_LT(SecondsSince(start), 5);
}

TEST(Connecting, SaysWhichListenerSaysNothing) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const int port = PortOf(listener).value();
  EXPECT_THAT(ConnectAs(LinkKind::kControl, 1, kKey, {"127.0.0.1", port}, In(0.2)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(absl::StrCat("what listens at 127.0.0.1:", port)),
                             HasSubstr("says nothing"), HasSubstr("has been stopped"))));
}

// A peer that was stopped in the midst of it does not keep others' failures from us.
TEST(Connecting, IsGivenUpWhileTheListenerSaysNothing) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  const auto start = NetClock::now();
  const GivenUp soon = [&] {
    return SecondsSince(start) < 0.3 ? absl::OkStatus() : absl::UnavailableError("rank 3 refuses");
  };
  EXPECT_THAT(
      ConnectAs(LinkKind::kData, 1, kKey, {"127.0.0.1", PortOf(listener).value()}, In(8), soon),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 3 refuses")));
}

}  // namespace
}  // namespace dtensor
