#include "dtensor/runtime/io/atomic_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "dtensor/runtime/testing/interruptions.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

// Each test has a folder of its own.
class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  std::string At(const std::string& name) const { return folder_ / name; }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  const fs::path folder_;
};

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

mode_t Mode(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

constexpr int kNoMounts = 77;

// What `run` returns in a child, whose mounts nobody else sees.
int InMountsOfItsOwn(const std::function<int()>& run) {
  const pid_t child = fork();
  if (child == 0) {
    const bool own = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    const bool alone = own && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    _exit(alone ? run() : kNoMounts);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(AtomicFileTest, MakesAndReplaces) {
  for (const std::string text : {"new", "another, and longer", "", "short"}) {
    DT_ASSERT_OK(WriteFileAtomically(At("a"), text));
    EXPECT_EQ(ReadText(At("a")), text);
  }
  EXPECT_THAT(Files(), ElementsAre("a"));
}

// As a container's file of the host: a name that nothing can be renamed over.
TEST_F(AtomicFileTest, AMountedFileIsWrittenInPlace) {
  WriteText(At("host"), "old, and longer");
  WriteText(At("a"), "");
  const int status = InMountsOfItsOwn([this] {
    if (mount(At("host").c_str(), At("a").c_str(), nullptr, MS_BIND, nullptr) != 0)
      return kNoMounts;
    const bool asked = CheckWritable(At("a")).ok() && ReadText(At("a")) == "old, and longer";
    const bool written = WriteFileAtomically(At("a"), "new").ok();
    return asked && written ? 0 : 1;
  });
  if (status == kNoMounts) GTEST_SKIP() << "the system lets nobody mount here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadText(At("host")), "new");
  EXPECT_THAT(Files(), ElementsAre("a", "host")) << "nothing is left";
}

TEST_F(AtomicFileTest, UntilCommitThereIsTheOldFile) {
  WriteText(At("a"), "old");
  DT_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(At("a")));
  const std::string large(1 << 20, 'x');
  DT_ASSERT_OK(file.Write(large.data(), large.size()));
  EXPECT_EQ(ReadText(At("a")), "old");
  DT_ASSERT_OK(file.Write("y", 1));
  DT_ASSERT_OK(file.Commit());
  EXPECT_EQ(ReadText(At("a")), large + "y");
}

TEST_F(AtomicFileTest, WhatIsDroppedLeavesNothingBehind) {
  WriteText(At("a"), "old");
  {
    DT_ASSERT_OK_AND_ASSIGN(AtomicFile file, AtomicFile::Create(At("a")));
    DT_ASSERT_OK(file.Write("new", 3));
    const AtomicFile moved = std::move(file);
    EXPECT_EQ(Files().size(), 2);
  }
  EXPECT_EQ(ReadText(At("a")), "old");
  EXPECT_THAT(Files(), ElementsAre("a"));
}

// A limit on files stands for a disk that is full.
TEST_F(AtomicFileTest, AFullDiskLeavesTheOldFile) {
  WriteText(At("a"), "old");
  std::signal(SIGXFSZ, SIG_DFL);  // which would end the process
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status few = WriteFileAtomically(At("a"), std::string(1001, 'x'));
  const absl::Status many = WriteFileAtomically(At("a"), std::string(1 << 20, 'x'));
  const absl::Status most = WriteFileAtomically(At("b"), std::string(1000, 'x'));
  const int log = open(At("b").c_str(), O_WRONLY);
  const absl::Status more = WriteFileAtomically("/proc/self/fd/" + std::to_string(log), "y");
  close(log);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(few, StatusIs(kUnavailable, HasSubstr("cannot write '" + At("a") + "'")));
  EXPECT_THAT(many, StatusIs(kUnavailable, HasSubstr("cannot write '" + At("a") + "'")));
  DT_EXPECT_OK(most);
  EXPECT_THAT(more, StatusIs(kUnavailable, HasSubstr("File too large")));
  EXPECT_EQ(ReadText(At("a")), "old");
  EXPECT_EQ(ReadText(At("b")), std::string(1000, 'x'));
  EXPECT_THAT(Files(), ElementsAre("a", "b"));
}

TEST_F(AtomicFileTest, PermissionsStay) {
  WriteText(At("a"), "old");
  for (const mode_t mode : {0600, 0640, 0775}) {
    ASSERT_EQ(chmod(At("a").c_str(), mode), 0);
    DT_ASSERT_OK(WriteFileAtomically(At("a"), "new"));
    EXPECT_EQ(Mode(At("a")), mode);
  }
  const mode_t mask = umask(027);
  DT_EXPECT_OK(WriteFileAtomically(At("b"), "new"));
  umask(mask);
  EXPECT_EQ(Mode(At("b")), 0640);
}

TEST_F(AtomicFileTest, LinksStayAndTheirTargetsAreWritten) {
  fs::create_directory(At("folder"));
  WriteText(At("folder/a"), "old");
  fs::create_symlink("folder/a", At("relative"));
  fs::create_symlink(At("relative"), At("twice"));
  fs::create_symlink("folder/none", At("dangling"));
  DT_ASSERT_OK(WriteFileAtomically(At("twice"), "new"));
  DT_ASSERT_OK(WriteFileAtomically(At("dangling"), "made"));
  for (const char* link : {"relative", "twice", "dangling"}) {
    EXPECT_TRUE(fs::is_symlink(At(link))) << link;
  }
  EXPECT_EQ(ReadText(At("folder/a")), "new");
  EXPECT_EQ(ReadText(At("folder/none")), "made");
  EXPECT_THAT(Files(), ElementsAre("dangling", "folder", "relative", "twice"));
  fs::create_symlink("loop", At("loop"));
  EXPECT_THAT(WriteFileAtomically(At("loop"), "x"), StatusIs(kUnavailable, HasSubstr("loop")));
}

TEST_F(AtomicFileTest, DevicesAndPipesAreWrittenInPlace) {
  DT_EXPECT_OK(WriteFileAtomically("/dev/null", "x"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(WriteFileAtomically("/dev/full", "x"),
              StatusIs(kUnavailable, HasSubstr("cannot write '/dev/full'")));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  DT_EXPECT_OK(WriteFileAtomically("/proc/self/fd/" + std::to_string(ends[1]), "through"));
  char text[8] = {};
  EXPECT_EQ(read(ends[0], text, 7), 7);
  EXPECT_STREQ(text, "through");
  close(ends[0]), close(ends[1]);
}

// While the pipe has no reader yet, and while that reads nothing.
TEST_F(AtomicFileTest, SignalsDoNotEndIt) {
  ASSERT_EQ(mkfifo(At("pipe").c_str(), 0666), 0);
  const std::string large(1 << 20, 'x');  // more than a pipe holds
  std::string got;
  std::atomic<bool> written = false;
  const Interruptions interruptions;
  std::thread reader([&] {
    Interruptions::AwaitSome();
    const int file = open(At("pipe").c_str(), O_RDONLY | O_NONBLOCK);
    Interruptions::AwaitSome();
    for (char piece[4096]; !written || got.size() < large.size();) {
      const ssize_t size = read(file, piece, sizeof(piece));
      if (size > 0) got.append(piece, size);
      if (size == 0 && written) break;
    }
    close(file);
  });
  DT_EXPECT_OK(WriteFileAtomically(At("pipe"), large));
  written = true;
  reader.join();
  EXPECT_EQ(got.size(), large.size());
}

// As `--report=/dev/stdout >log`: replacing the log would lose what is printed afterwards.
TEST_F(AtomicFileTest, AnOpenFileIsAppendedTo) {
  const int log = open(At("log").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_EQ(write(log, "one ", 4), 4);
  fs::create_symlink("/proc/self/fd/" + std::to_string(log), At("link"));
  DT_EXPECT_OK(WriteFileAtomically(At("link"), "two"));
  close(log);
  EXPECT_EQ(ReadText(At("log")), "one two");
}

TEST_F(AtomicFileTest, RefusesWhereNoFileCanBe) {
  EXPECT_THAT(AtomicFile::Create("/nowhere/a").status(),
              StatusIs(kUnavailable, AllOf(HasSubstr("cannot write '/nowhere/a'"),
                                           HasSubstr("no file can be made in '/nowhere'"))));
  EXPECT_THAT(AtomicFile::Create(At(".")).status(),
              StatusIs(kUnavailable, HasSubstr("it is a folder")));
  EXPECT_THAT(AtomicFile::Create("").status(), StatusIs(kUnavailable, HasSubstr("names no file")));
  EXPECT_THAT(AtomicFile::Create(At("a/")).status(), StatusIs(kUnavailable));
  EXPECT_THAT(AtomicFile::Create(At(std::string(256, 'a'))).status(), StatusIs(kUnavailable));
  EXPECT_THAT(Files(), IsEmpty());
  DT_EXPECT_OK(WriteFileAtomically(At(std::string(255, 'a')), "x"));
}

TEST_F(AtomicFileTest, LookingChangesNothing) {
  for (const char* stream : {"/dev/null", "/dev/fd/1", "/proc/self/fd/1"}) {
    EXPECT_TRUE(IsStream(stream)) << stream;
  }
  WriteText(At("a"), "old");
  const auto time = fs::last_write_time(At("a"));
  ASSERT_EQ(mkfifo(At("pipe").c_str(), 0666), 0);
  DT_EXPECT_OK(CheckWritable(At("a")));
  DT_EXPECT_OK(CheckWritable(At("b")));
  DT_EXPECT_OK(CheckWritable(At("pipe")));  // without a reader
  DT_EXPECT_OK(CheckWritable("/dev/full"));
  EXPECT_TRUE(IsStream(At("pipe")));
  EXPECT_FALSE(IsStream(At("a")) || IsStream(At("b")) || IsStream(testing::TempDir()));
  EXPECT_EQ(fs::last_write_time(At("a")), time);
  EXPECT_THAT(Files(), ElementsAre("a", "pipe"));
  EXPECT_THAT(CheckWritable("/nowhere/a"), StatusIs(kUnavailable, HasSubstr("/nowhere/a")));
  EXPECT_THAT(CheckWritable(testing::TempDir()), StatusIs(kUnavailable, HasSubstr("a folder")));
}

}  // namespace
}  // namespace dtensor
