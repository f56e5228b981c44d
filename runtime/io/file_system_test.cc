#include "dtensor/runtime/io/file_system.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

namespace fs = std::filesystem;

// Each test has a folder of its own.
class FileSystemTest : public testing::Test {
 protected:
  FileSystemTest()
      : top_(fs::canonical(testing::TempDir()) /
             testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(top_);
    fs::create_directories(top_);
  }
  ~FileSystemTest() override { fs::remove_all(top_); }

  void Put(const fs::path& path) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  }

  FileSystem& files_ = FileSystem::OfThisMachine();
  const fs::path top_;
};

TEST_F(FileSystemTest, RemoveFolderTakesAllThatIsInIt) {
  Put(top_ / "a/b/c/file");
  Put(top_ / "a/file");
  fs::create_directory(top_ / "a/empty");
  DT_EXPECT_OK(RemoveFolder(files_, top_ / "a"));
  EXPECT_TRUE(fs::is_empty(top_));
  DT_EXPECT_OK(RemoveFolder(files_, top_ / "a")) << "what is gone is no error";
}

TEST_F(FileSystemTest, RemoveFolderRemovesLinksAndNotWhatTheyLeadTo) {
  Put(top_ / "far/in/file");
  fs::create_directory_symlink("far", top_ / "link");
  fs::create_directories(top_ / "a/b");
  fs::create_directory_symlink(top_ / "far", top_ / "a/b/link");
  fs::create_symlink("nowhere", top_ / "a/broken");
  DT_EXPECT_OK(RemoveFolder(files_, top_ / "link"));
  DT_EXPECT_OK(RemoveFolder(files_, top_ / "a"));
  EXPECT_FALSE(fs::is_symlink(top_ / "link"));
  EXPECT_FALSE(fs::exists(top_ / "a"));
  EXPECT_TRUE(fs::exists(top_ / "far/in/file"));
}

TEST_F(FileSystemTest, ALimitOfFilesIsAnError) {
  DT_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<OutputFile> file, files_.CreateFile(top_ / "a"));
  const std::string text(600, 'x');
  std::signal(SIGXFSZ, SIG_DFL);  // which would end the process
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status first = file->Append(text.data(), text.size());
  const absl::Status second = file->Append(text.data(), text.size());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  DT_EXPECT_OK(first);
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kUnavailable,
                               testing::AllOf(testing::HasSubstr("cannot write '"),
                                              testing::HasSubstr("File too large"))));
}

TEST_F(FileSystemTest, ResolveFollowsLinksThatLeadNowhere) {
  fs::create_symlink("b", top_ / "a");
  fs::create_symlink(top_ / "c/d", top_ / "b");
  EXPECT_THAT(files_.Resolve(top_ / "a"), IsOkAndHolds((top_ / "c/d").native()));
  EXPECT_THAT(files_.Resolve(top_ / "a/in/"), IsOkAndHolds((top_ / "c/d/in").native()));
  EXPECT_THAT(files_.Resolve(top_ / "none"), IsOkAndHolds((top_ / "none").native()));
  fs::create_symlink("round", top_ / "round");
  EXPECT_THAT(files_.Resolve(top_ / "round"), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace dtensor
