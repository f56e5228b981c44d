// Four processes of one mpirun. The test itself initializes and finalizes MPI.
#include "dtensor/mpi/join_mpi.h"

#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/net/socket.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

int RankIn(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int duplicates = 0;  // communicators that MPI_Comm_idup has made, and MPI_Comm_free not freed

// Gathers a tensor of which each rank has a part; `seed` tells worlds apart.
absl::Status Gather(Context& context, int seed, int64_t n = 50000) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.world_size())));
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(seed + i % 1000);
  DT_ASSIGN_OR_RETURN(const auto x, Distribute<float>(context, mesh, {Shard(0)}, {n}, values));
  DT_ASSIGN_OR_RETURN(const auto all, ToGlobal<float>(x));
  return all == values ? absl::OkStatus() : absl::DataLossError("other values came");
}

// All ranks have the same.
void ExpectSame(const absl::Status& status) {
  std::string mine = status.ToString();
  int size = static_cast<int>(mine.size()), most = 0;
  MPI_Allreduce(&size, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  mine.resize(most);
  std::string rank0s = mine;
  MPI_Bcast(rank0s.data(), most, MPI_CHAR, 0, MPI_COMM_WORLD);
  EXPECT_EQ(mine, rank0s);
}

TEST(JoinMpi, TheWholeWorld) {
  const auto world = JoinWorld(MPI_COMM_WORLD);
  DT_ASSERT_OK(world);
  Context& context = (*world)->context();
  EXPECT_EQ(context.rank(), RankIn(MPI_COMM_WORLD));
  EXPECT_EQ(context.world_size(), 4);
  EXPECT_EQ((*world)->local_rank(), context.rank());  // all are on this host
  for (int i = 0; i < 5; ++i) DT_EXPECT_OK(Gather(context, i));
  DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
}

// Two worlds at once, whose ranks are not in the order of mpirun's.
TEST(JoinMpi, TwoWorldsAtOnce) {
  const int me = RankIn(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, -me, &half);
  const auto world = JoinWorld(half);
  DT_ASSERT_OK(world);
  EXPECT_EQ((*world)->context().rank(), me < 2 ? 1 : 0);
  EXPECT_EQ((*world)->context().world_size(), 2);
  for (int i = 0; i < 20; ++i) DT_EXPECT_OK(Gather((*world)->context(), me % 2 * 100));
  DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
  MPI_Comm_free(&half);
}

// In one world and in a part of it, in turns, while the caller sends by the same communicator.
TEST(JoinMpi, AWorldWithinAWorldBesideTheCallersMessages) {
  const int me = RankIn(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, me / 2, me, &half);
  const auto whole = JoinWorld(MPI_COMM_WORLD);
  DT_ASSERT_OK(whole);
  const auto part = JoinWorld(half);
  DT_ASSERT_OK(part);
  std::vector<int> sent(1000, me), got(1000, -1);
  const int next = (me + 1) % 4, last = (me + 3) % 4;
  MPI_Request requests[2];
  MPI_Irecv(got.data(), 1000, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(sent.data(), 1000, MPI_INT, next, 0, MPI_COMM_WORLD, &requests[1]);
  for (int i = 0; i < 5; ++i) {
    DT_EXPECT_OK(Gather((*whole)->context(), 7));
    DT_EXPECT_OK(Gather((*part)->context(), 100 + me / 2));
  }
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  EXPECT_EQ(got, std::vector<int>(1000, last));
  DT_EXPECT_OK((*part)->Leave(absl::OkStatus()));
  DT_EXPECT_OK((*whole)->Leave(absl::OkStatus()));
  MPI_Comm_free(&half);
}

TEST(JoinMpi, AWorldOfOne) {
  const auto world = JoinWorld(MPI_COMM_SELF);
  DT_ASSERT_OK(world);
  EXPECT_EQ((*world)->context().world_size(), 1);
  DT_EXPECT_OK(Gather((*world)->context(), 1));
  DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
}

TEST(JoinMpi, OptionsThatSayTheSame) {
  JoinOptions options;
  options.rank = RankIn(MPI_COMM_WORLD);
  options.size = 4;
  options.local_rank = 3 - *options.rank;
  int port = FreePort();
  MPI_Bcast(&port, 1, MPI_INT, 0, MPI_COMM_WORLD);
  options.address = absl::StrCat("127.0.0.1:", port);
  if (options.rank == 0) options.secret = "rank 0 alone says so";
  options.job = "job";
  const auto world = JoinWorld(MPI_COMM_WORLD, options);
  DT_ASSERT_OK(world);
  EXPECT_EQ((*world)->local_rank(), 3 - *options.rank);
  DT_EXPECT_OK(Gather((*world)->context(), 1));
}

TEST(JoinMpi, OptionsThatContradict) {
  const auto refused = [](int rank, const char* text, auto set) {
    JoinOptions options;
    if (RankIn(MPI_COMM_WORLD) == rank) set(options);
    const auto world = JoinWorld(MPI_COMM_WORLD, options);
    EXPECT_THAT(world.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(absl::StrCat("rank ", rank)), HasSubstr(text))));
    ExpectSame(world.status());
  };
  refused(2, "options give rank 1, where the communicator says 2", [](auto& o) { o.rank = 1; });
  refused(0, "options give size 3, where the communicator says 4", [](auto& o) { o.size = 3; });
  refused(1, "local_rank 4, in a world of 4", [](auto& o) { o.local_rank = 4; });
  refused(3, "gives another secret than rank 0", [](auto& o) { o.secret = "x"; });
  refused(1, "gives another address than rank 0", [](auto& o) { o.address = "localhost:9"; });
  refused(2, "gives another job than rank 0", [](auto& o) { o.job = "x"; });
  refused(1, "device is meta", [](auto& o) { o.device = Device::Kind::kMeta; });
  refused(3, "options give gpu, and the device is cpu", [](auto& o) { o.gpu = 3; });
}

TEST(JoinMpi, NowhereToListen) {
  JoinOptions options;
  options.address = "127.0.0.1";
  const auto world = JoinWorld(MPI_COMM_WORLD, options);
  EXPECT_THAT(world.status().message(), HasSubstr("127.0.0.1"));
  ExpectSame(world.status());
}

// Rank 0 cannot listen where its options say: all hear so, at once.
TEST(JoinMpi, ThePortIsTaken) {
  const Socket taken = ListenAt({"127.0.0.1", 0}).value();
  JoinOptions options;
  int port = PortOf(taken).value();
  MPI_Bcast(&port, 1, MPI_INT, 0, MPI_COMM_WORLD);
  options.address = absl::StrCat("127.0.0.1:", port);
  options.timeout_seconds = 20;
  const auto world = JoinWorld(MPI_COMM_WORLD, options);
  EXPECT_THAT(world.status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0: cannot listen at"), HasSubstr("another program"))));
  ExpectSame(world.status());
}

class Transport {
 public:
  explicit Transport(const char* name) { setenv("DTENSOR_TRANSPORT", name, 1); }
  ~Transport() { setenv("DTENSOR_TRANSPORT", "mpi", 1); }
};

TEST(JoinMpi, ATransportThatIsNone) {
  const Transport one_ranks(RankIn(MPI_COMM_WORLD) == 2 ? "rdma" : "mpi");
  const auto world = JoinWorld(MPI_COMM_WORLD);
  EXPECT_THAT(world.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("rank 2: DTENSOR_TRANSPORT is rdma")));
  ExpectSame(world.status());
}

TEST(JoinMpi, TcpIsTcp) {
  const Transport transport("tcp");
  const int before = duplicates;
  const auto world = JoinWorld(MPI_COMM_WORLD);
  DT_ASSERT_OK(world);
  DT_EXPECT_OK(Gather((*world)->context(), 1));
  DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
  EXPECT_EQ(duplicates, before);
}

// Ranks that share memory send nothing, and a world that was refused never does.
TEST(JoinMpi, NoCommunicatorIsLeftBehind) {
  const int before = duplicates;
  {
    const Transport memory("");
    const auto world = JoinWorld(MPI_COMM_WORLD);
    DT_ASSERT_OK(world);
    DT_EXPECT_OK(Gather((*world)->context(), 1));
  }
  JoinOptions options;
  if (RankIn(MPI_COMM_WORLD) == 1) options.rank = 2;
  EXPECT_THAT(JoinWorld(MPI_COMM_WORLD, options).status(), testing::Not(IsOk()));
  EXPECT_EQ(duplicates, before);
  {
    const auto world = JoinWorld(MPI_COMM_WORLD);
    DT_EXPECT_OK(world);
    EXPECT_EQ(duplicates, before + 1);
  }
  EXPECT_EQ(duplicates, before);
}

// A rank of another build, say: it gives what is no card.
TEST(JoinMpi, CardsThatAreNone) {
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  if (RankIn(MPI_COMM_WORLD) != 3) {
    EXPECT_THAT(JoinWorld(other).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read")));
  } else {
    const char card[] = "what is this";
    int size = sizeof(card), sizes[4], begins[4] = {};
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Request request;
    MPI_Comm_idup(other, &own, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Iallgather(&size, 1, MPI_INT, sizes, 1, MPI_INT, own, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int rank = 1; rank < 4; ++rank) begins[rank] = begins[rank - 1] + sizes[rank - 1];
    std::string all(begins[3] + sizes[3], '\0');
    MPI_Iallgatherv(card, size, MPI_BYTE, all.data(), sizes, begins, MPI_BYTE, own, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Comm_free(&other);
}

TEST(JoinMpi, NoCommunicator) {
  EXPECT_THAT(JoinWorld(MPI_COMM_NULL).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MPI_COMM_NULL")));
  JoinOptions options;
  options.timeout_seconds = 0;
  EXPECT_THAT(JoinWorld(MPI_COMM_WORLD, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout_seconds")));
  const int me = RankIn(MPI_COMM_WORLD);
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, me / 2, me, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, me < 2 ? 2 : 0, 1, &between);
  EXPECT_THAT(JoinWorld(between).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MPI_Intercomm_merge")));
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

// Only MPI_THREAD_SERIALIZED lets other threads in.
TEST(JoinMpi, AnotherThread) {
  std::thread([] {
    EXPECT_THAT(JoinWorld(MPI_COMM_WORLD).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("the thread alone that initialized it")));
  }).join();
}

TEST(JoinMpi, NotAllRanksCall) {
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  JoinOptions options;
  options.timeout_seconds = 0.5;
  if (RankIn(MPI_COMM_WORLD) == 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return;
  }
  EXPECT_THAT(JoinWorld(other, options).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("not all ranks of the communicator have called JoinWorld")));
}

// Until it is there: however often the others have tried, and it has.
TEST(JoinMpi, ARankIsLate) {
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  for (int late = 0; late < 4; ++late) {
    JoinOptions options;
    options.timeout_seconds = 0.2;
    if (RankIn(MPI_COMM_WORLD) == late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
    } else {
      EXPECT_THAT(JoinWorld(other, options).status(),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not all ranks")));
    }
    options.timeout_seconds = 20;
    const auto world = JoinWorld(other, options);
    DT_ASSERT_OK(world);
    DT_EXPECT_OK(Gather((*world)->context(), late));
    DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
  }
}

// One that sends by MPI waits in MPI for the others.
TEST(JoinMpi, SaysWhoDoesNotReturn) {
  const int me = RankIn(MPI_COMM_WORLD);
  JoinOptions options;
  options.timeout_seconds = 2;
  std::vector<std::string> told;
  options.report = [&](const absl::Status& trouble) {
    told.push_back(std::string(trouble.message()));
  };
  const auto world = JoinWorld(MPI_COMM_WORLD, options);
  DT_ASSERT_OK(world);
  DT_EXPECT_OK(Gather((*world)->context(), 1));
  if (me == 2) std::this_thread::sleep_for(std::chrono::seconds(4));
  DT_EXPECT_OK((*world)->Leave(absl::OkStatus()));
  const std::vector<std::string> report = {
      "rank 2 has not returned 2 s after rank 0, and the world waits for that"};
  EXPECT_EQ(told, me == 0 ? report : std::vector<std::string>());
}

TEST(JoinMpi, ATraceThatCannotBeWritten) {
  EXPECT_THAT(JoinWorld(MPI_COMM_WORLD, {}, {.trace_file = "/nowhere/trace.json"}).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nowhere/trace")));
}

// After a world that failed with messages under way, the caller's MPI goes on; so do new worlds.
TEST(JoinMpi, TheCallersMpiOutlivesAFailedWorld) {
  for (int i = 0; i < 3; ++i) {
    auto world = JoinWorld(MPI_COMM_WORLD);
    DT_ASSERT_OK(world);
    Context& context = (*world)->context();
    absl::Status status = absl::OkStatus();
    while (status.ok()) {
      if (context.rank() == i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        status = absl::DataLossError("the dog ate it");
      } else {
        status = Gather(context, i, 2000000);
      }
    }
    EXPECT_THAT((*world)->Leave(status),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("rank ", i, ": "))));
    *world = nullptr;
    std::vector<int> values(1 << 20, RankIn(MPI_COMM_WORLD));
    MPI_Allreduce(MPI_IN_PLACE, values.data(), 1 << 20, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EXPECT_EQ(values, std::vector<int>(1 << 20, 6));
  }
  DT_EXPECT_OK(JoinWorld(MPI_COMM_WORLD));
}

// Last of all, as MPI is over then.
class AtTheEnd : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(JoinMpi, AtTheEnd, testing::Values(0));

TEST_P(AtTheEnd, MpiIsFinalizedTooEarly) {
  auto world = JoinWorld(MPI_COMM_WORLD);
  DT_ASSERT_OK(world);
  DT_EXPECT_OK(Gather((*world)->context(), 1));
  MPI_Finalize();
  EXPECT_THAT(Gather((*world)->context(), 1), testing::Not(IsOk()));
  EXPECT_THAT((*world)->Leave(absl::OkStatus()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("MPI_Finalize was called before the world ended")));
  *world = nullptr;
  EXPECT_THAT(JoinWorld(MPI_COMM_WORLD).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace dtensor

// In MPI's place, as MPI lets a program do.
extern "C" int MPI_Comm_idup(MPI_Comm comm, MPI_Comm* made, MPI_Request* request) {
  ++dtensor::duplicates;
  return PMPI_Comm_idup(comm, made, request);
}
extern "C" int MPI_Comm_free(MPI_Comm* comm) {
  --dtensor::duplicates;
  return PMPI_Comm_free(comm);
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Messages alone: ranks of one host share memory otherwise.
  setenv("DTENSOR_TRANSPORT", "mpi", 1);
  MPI_Init(&argc, &argv);
  return RUN_ALL_TESTS();
}
