// Hosts by their names, of which a test says here what they stand for.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/runtime/net/socket.h"
#include "dtensor/runtime/testing/socket_pair.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What getaddrinfo says of a name: an error (with errno), or addresses in digits, in this order.
struct Answer {
  int error = 0, system_error = 0;
  std::vector<std::string> addresses = {};
};
using Answers = std::function<Answer()>;

std::mutex mutex;
std::map<std::string, Answers>& Names() {
  static auto& names = *new std::map<std::string, Answers>;
  return names;
}

// For as long as it lives.
class Name {
 public:
  Name(std::string name, Answers answers) : name_(std::move(name)) {
    const std::lock_guard lock(mutex);
    Names()[name_] = std::move(answers);
  }
  Name(std::string name, std::vector<std::string> addresses)
      : Name(std::move(name), [=] { return Answer{.addresses = addresses}; }) {}
  ~Name() {
    const std::lock_guard lock(mutex);
    Names().erase(name_);
  }

 private:
  const std::string name_;
};

using Look = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
Look SystemsLook() { return reinterpret_cast<Look>(dlsym(RTLD_NEXT, "getaddrinfo")); }

int LookUp(const Answer& answer, const char* port, const addrinfo* hints, addrinfo** found) {
  if (answer.error != 0) {
    errno = answer.system_error;
    return answer.error;
  }
  addrinfo** last = found;
  for (const std::string& address : answer.addresses) {
    const int error = SystemsLook()(address.c_str(), port, hints, last);
    if (error != 0) return error;
    while (*last != nullptr) last = &(*last)->ai_next;
  }
  return 0;
}

}  // namespace
}  // namespace dtensor

// In place of the system's.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** found) {
  dtensor::Answers answers;
  if (host != nullptr && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    const std::lock_guard lock(dtensor::mutex);
    const auto known = dtensor::Names().find(host);
    if (known != dtensor::Names().end()) answers = known->second;
  }
  return answers ? dtensor::LookUp(answers(), port, hints, found)
                 : dtensor::SystemsLook()(host, port, hints, found);
}

namespace dtensor {
namespace {

bool Answers127001(const Socket& listener) {
  return ConnectTo({"127.0.0.1", PortOf(listener).value()}, In(0.3)).ok();
}

// As /etc/hosts of many a machine has it.
TEST(Names, AMachineThatIsItsOwnLoopbackListensAtAllAddresses) {
  for (const std::vector<std::string>& addresses : std::vector<std::vector<std::string>>{
           {"127.0.1.1"}, {"127.0.1.1", "198.51.100.1"}, {"198.51.100.1", "127.0.1.1"}}) {
    const Name name("node0", addresses);
    const auto listener = ListenAt({"node0", 0});
    DT_ASSERT_OK(listener);
    EXPECT_TRUE(Answers127001(*listener)) << addresses.size() << " " << addresses[0];
  }
}

TEST(Names, AnAddressInDigitsIsThatOneAlone) {
  const Socket reserved = ReservePort().value();  // at 127.0.0.1: no other program is given it
  const Socket listener = ListenAt({"127.0.1.1", PortOf(reserved).value()}).value();
  EXPECT_FALSE(Answers127001(listener));
}

TEST(Names, AnotherMachinesIsRefused) {
  const Name name("node1", {"198.51.100.1", "203.0.113.1"});
  EXPECT_THAT(ListenAt({"node1", 0}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("node1:0"), HasSubstr("an address of this machine"))));
}

// A caller would meet the other program, at the address that it tries first.
TEST(Names, APortThatIsTakenAtOneAddressIsTaken) {
  const Name name("localhost", {"127.0.0.2", "127.0.0.3"});
  const Socket stranger = ListenAt({"127.0.0.2", 0}).value();
  EXPECT_THAT(ListenAt({"localhost", PortOf(stranger).value()}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another program has that port")));
}

// Looking up reads files.
TEST(Names, NoDescriptorIsLeftToLookThemUp) {
  for (const int error : {EMFILE, ENFILE}) {
    const Name name("node0", [=] { return Answer{EAI_SYSTEM, error}; });
    const auto is_that =
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("node0"),
                       HasSubstr(error == EMFILE ? "(ulimit -n)" : "(sysctl fs.file-max)")));
    EXPECT_THAT(ListenAt({"node0", 0}), is_that);
    EXPECT_THAT(ConnectTo({"node0", 1}, In(5)), is_that);
  }
}

TEST(Names, LookingUpThatFailsForNow) {
  for (const int error : {EAI_MEMORY, EAI_SYSTEM, EAI_AGAIN}) {
    const Name name("node0", [=] { return Answer{error, ENOMEM}; });
    EXPECT_THAT(ListenAt({"node0", 0}), StatusIs(absl::StatusCode::kUnavailable,
                                                 HasSubstr("nobody knows node0 at the moment")));
  }
}

// As a container's is that has not started yet.
TEST(Names, AHostThatIsNotKnownYet) {
  const Socket listener = ListenAt({"127.0.0.1", 0}).value();
  for (const int error : {EAI_NONAME, EAI_NODATA, EAI_AGAIN}) {
    const auto known = In(0.5);
    const Name name("node0", [=] {
      return NetClock::now() < known ? Answer{error} : Answer{.addresses = {"127.0.0.1"}};
    });
    DT_EXPECT_OK(ConnectTo({"node0", PortOf(listener).value()}, In(20))) << error;
  }
}

TEST(Names, AHostThatNobodyEverKnows) {
  const auto unknown = [] { return Answer{EAI_NONAME}; };
  for (const char* host : {"no.such.host.invalid", "1.2.3.4.5"}) {
    const Name name(host, unknown);
    EXPECT_THAT(ConnectTo({host, 1}, In(0.1)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string("there is no host ") + host)));
  }
  // Unless it is given up before.
  const Name name("node0", unknown);
  const auto start = NetClock::now();
  EXPECT_THAT(ConnectTo({"node0", 1}, In(60), [] { return absl::AbortedError("given up"); }),
              StatusIs(absl::StatusCode::kAborted));
  EXPECT_LT(SecondsSince(start), 30);
}

}  // namespace
}  // namespace dtensor
