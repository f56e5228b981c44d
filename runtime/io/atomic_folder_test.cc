#include "dtensor/runtime/io/atomic_folder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/io/temporary_name.h"
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
using ::testing::Pair;

bool Nothing(absl::string_view) { return false; }

// The machine's, but for what a test says of changing places.
class ExchangingFiles final : public FileSystem {
 public:
  explicit ExchangingFiles(std::function<absl::Status(const std::string& place)> before)
      : before_(std::move(before)) {}

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    const absl::Status asked = before_(b);
    return asked.ok() ? files_.Exchange(a, b) : asked;
  }
  absl::Status MakeFolder(const std::string& path) override { return files_.MakeFolder(path); }
  absl::StatusOr<std::unique_ptr<OutputFile>> CreateFile(const std::string& path) override {
    return files_.CreateFile(path);
  }
  absl::StatusOr<std::unique_ptr<InputFile>> OpenFile(const std::string& path) override {
    return files_.OpenFile(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return files_.List(folder);
  }
  absl::Status SyncFolder(const std::string& folder) override { return files_.SyncFolder(folder); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return files_.Remove(path); }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return files_.Link(from, to);
  }
  absl::Status CopyPermissions(const std::string& from, const std::string& to) override {
    return files_.CopyPermissions(from, to);
  }
  absl::StatusOr<std::string> Resolve(const std::string& path) override {
    return files_.Resolve(path);
  }

 private:
  FileSystem& files_ = FileSystem::OfThisMachine();
  const std::function<absl::Status(const std::string& place)> before_;
};

// Each test has a folder of its own, in which `place_` is what is replaced.
class AtomicFolderTest : public testing::Test {
 protected:
  AtomicFolderTest()
      : top_(fs::path(testing::TempDir()) /
             testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(top_);
    fs::create_directories(top_);
    place_ = top_ / "model.v1";
  }
  ~AtomicFolderTest() override { fs::remove_all(top_); }

  void Put(const fs::path& path, const std::string& text) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // Texts of all files, by path below `folder`.
  std::map<std::string, std::string> Files(const fs::path& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream(entry.path());
      files[fs::relative(entry.path(), folder).native()] =
          std::string(std::istreambuf_iterator<char>(stream), {});
    }
    return files;
  }
  static mode_t Mode(const fs::path& path) {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  // A new folder there that has one file.
  absl::Status Replace(const fs::path& place, const std::string& text,
                       bool (*drops)(absl::string_view) = Nothing) {
    return ReplaceIn(files_, place, text, drops);
  }
  static absl::Status ReplaceIn(FileSystem& files, const fs::path& place, const std::string& text,
                                bool (*drops)(absl::string_view) = Nothing) {
    absl::StatusOr<AtomicFolder> folder = AtomicFolder::Create(files, place.native());
    if (!folder.ok()) return folder.status();
    const absl::Status written = WriteText(files, folder->path() + "/weights", text);
    return written.ok() ? folder->Commit(drops) : written;
  }
  int Entries() const {
    return static_cast<int>(std::distance(fs::directory_iterator(top_), fs::directory_iterator()));
  }

  FileSystem& files_ = FileSystem::OfThisMachine();
  const fs::path top_;
  fs::path place_;
};

TEST_F(AtomicFolderTest, IsMadeWithThoseItLiesIn) {
  DT_ASSERT_OK(Replace(place_ / "a" / "b", "1"));
  EXPECT_THAT(Files(top_), ElementsAre(Pair("model.v1/a/b/weights", "1")));
  fs::create_directory(top_ / "empty");
  DT_ASSERT_OK(Replace(top_ / "empty/", "2"));
  EXPECT_THAT(Files(top_ / "empty"), ElementsAre(Pair("weights", "2")));
  EXPECT_EQ(Entries(), 2) << "nothing is left";
}

TEST_F(AtomicFolderTest, KeepsWhatIsNotItsOwn) {
  Put(place_ / "weights", "old");
  Put(place_ / "index", "old");
  Put(place_ / "README", "read me");
  Put(place_ / ".git/refs/head", "abc");
  Put(top_ / "elsewhere/file", "far");
  fs::create_directory_symlink(top_ / "elsewhere", place_ / "link");
  fs::create_symlink("nowhere", place_ / "broken");
  DT_ASSERT_OK(Replace(place_, "new", [](absl::string_view name) { return name == "index"; }));
  EXPECT_THAT(Files(place_), ElementsAre(Pair(".git/refs/head", "abc"), Pair("README", "read me"),
                                         Pair("weights", "new")));
  EXPECT_EQ(fs::read_symlink(place_ / "link"), top_ / "elsewhere");
  EXPECT_EQ(fs::read_symlink(place_ / "broken"), "nowhere");
  EXPECT_THAT(Files(top_ / "elsewhere"), ElementsAre(Pair("file", "far")))
      << "links are no folders";
  EXPECT_EQ(Entries(), 2) << "nothing is left";
}

TEST_F(AtomicFolderTest, KeepsPermissions) {
  Put(place_ / "weights", "old");
  fs::permissions(place_, fs::perms(0750));
  fs::permissions(place_ / "weights", fs::perms(0640));
  DT_ASSERT_OK_AND_ASSIGN(AtomicFolder folder, AtomicFolder::Create(files_, place_.native()));
  EXPECT_EQ(Mode(folder.path()), 0750) << "not only in the end";
  DT_ASSERT_OK(WriteText(files_, folder.path() + "/weights", "new"));
  DT_ASSERT_OK(folder.Commit(Nothing));
  EXPECT_EQ(Mode(place_), 0750);
  EXPECT_EQ(Mode(place_ / "weights"), 0640);
}

TEST_F(AtomicFolderTest, GoesWhereALinkLeads) {
  Put(top_ / "real/weights", "old");
  fs::create_directory_symlink("real", place_);
  DT_ASSERT_OK(Replace(place_, "new"));
  EXPECT_EQ(fs::read_symlink(place_), "real");
  EXPECT_THAT(Files(top_ / "real"), ElementsAre(Pair("weights", "new")));
}

TEST_F(AtomicFolderTest, GoesWhereALinkWillLead) {
  fs::create_directory_symlink("later/real", place_);
  DT_ASSERT_OK(Replace(place_, "new"));
  EXPECT_EQ(fs::read_symlink(place_), "later/real");
  EXPECT_THAT(Files(top_ / "later"), ElementsAre(Pair("real/weights", "new")));
}

// What took hours to write is not lost because it cannot take its place.
TEST_F(AtomicFolderTest, ThatCannotTakeItsPlaceIsKept) {
  Put(place_ / "weights", "old");
  Put(top_ / "model.v1.new/mine", "x");
  ExchangingFiles files([&](const std::string& place) {
    return place == place_ ? absl::UnavailableError("Device or resource busy") : absl::OkStatus();
  });
  const std::string kept = place_.native() + ".new-2";
  EXPECT_THAT(ReplaceIn(files, place_, "new"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("busy"), HasSubstr("all that is new is in '" + kept))));
  EXPECT_THAT(Files(top_),
              ElementsAre(Pair("model.v1.new-2/weights", "new"), Pair("model.v1.new/mine", "x"),
                          Pair("model.v1/weights", "old")));
}

TEST_F(AtomicFolderTest, AFileSystemThatCannotExchangeIsSaidAtOnce) {
  Put(place_ / "weights", "old");
  ExchangingFiles files(
      [](const std::string&) { return absl::UnavailableError("Invalid argument"); });
  EXPECT_THAT(AtomicFolder::Create(files, place_.native()).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("take a new folder")));
  EXPECT_EQ(Entries(), 1) << "nothing is left";
  DT_EXPECT_OK(ReplaceIn(files, top_ / "other", "new")) << "there is nothing to exchange";
}

// Nothing can be renamed over it, which would be found out at the end.
TEST_F(AtomicFolderTest, RefusesWhereSomethingIsMounted) {
  EXPECT_THAT(AtomicFolder::Create(files_, "/proc").status(),
              Refuses(AllOf(HasSubstr("'/proc' is where a file system is mounted"),
                            HasSubstr("name a folder in it"))));
}

TEST_F(AtomicFolderTest, RefusesAnEmptyFolderInWhichTheProcessRuns) {
  const fs::path before = fs::current_path();
  fs::create_directories(place_);
  fs::current_path(place_);
  EXPECT_THAT(Replace(".", "new"), Refuses(HasSubstr("in which this process runs")));
  EXPECT_THAT(Replace(place_, "new"), Refuses(HasSubstr("in which this process runs")));
  std::ofstream("report") << "x";
  EXPECT_TRUE(fs::exists(place_ / "report")) << "it is still the same folder";
  fs::current_path(before);
}

TEST_F(AtomicFolderTest, KeepsWhatComesWhileItTakesItsPlace) {
  Put(place_ / "weights", "old");
  Put(place_ / "in/old", "old");
  ExchangingFiles files([&](const std::string& place) {
    if (place != place_) return absl::OkStatus();
    Put(place_ / "log", "late");
    Put(place_ / "in/late", "late");
    Put(place_ / "folder/late", "late");
    Put(place_ / "index", "late");
    return absl::OkStatus();
  });
  DT_ASSERT_OK(
      ReplaceIn(files, place_, "new", [](absl::string_view name) { return name == "index"; }));
  EXPECT_THAT(Files(place_),
              ElementsAre(Pair("folder/late", "late"), Pair("in/late", "late"),
                          Pair("in/old", "old"), Pair("log", "late"), Pair("weights", "new")));
  EXPECT_EQ(Entries(), 1) << "nothing is left";
}

TEST_F(AtomicFolderTest, ThatIsDroppedLeavesNothing) {
  Put(place_ / "weights", "old");
  {
    DT_ASSERT_OK_AND_ASSIGN(const AtomicFolder folder,
                            AtomicFolder::Create(files_, place_.native()));
    Put(folder.path() + "/in/file", "new");
    EXPECT_EQ(Entries(), 2);
  }
  EXPECT_EQ(Entries(), 1);
  EXPECT_THAT(Files(place_), ElementsAre(Pair("weights", "old")));
}

TEST_F(AtomicFolderTest, RemovesWhatAKilledProcessLeft) {
  Put(place_ / "weights", "old");
  const pid_t child = fork();
  if (child == 0) {
    const auto folder = AtomicFolder::Create(FileSystem::OfThisMachine(), place_.native());
    std::ofstream(folder->path() + "/weights") << "half";
    _exit(0);  // no destructor
  }
  waitpid(child, nullptr, 0);
  Put(top_ / ".model.v1.0badcafe.1.1.tmp/weights", "of another machine");
  const fs::path mine = top_ / TemporaryName("model.v1");
  Put(mine / "weights", "in the making");
  EXPECT_EQ(Entries(), 4);
  DT_ASSERT_OK(Replace(place_, "new"));
  EXPECT_EQ(Entries(), 3);
  EXPECT_TRUE(fs::exists(mine));
  EXPECT_THAT(Files(place_), ElementsAre(Pair("weights", "new")));
}

TEST_F(AtomicFolderTest, RefusesWhatItCannotReplace) {
  Put(top_ / "file", "x");
  EXPECT_THAT(Replace(top_ / "file", "new"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("file")));
  EXPECT_THAT(Replace(top_ / "file" / "in", "new"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Replace("/", "new"), Refuses(HasSubstr("'/'")));
  const fs::path before = fs::current_path();
  fs::create_directories(place_ / "below");
  fs::current_path(place_ / "below");
  EXPECT_THAT(Replace(place_, "new"), Refuses(HasSubstr("in which this process runs")));
  Put(place_ / "below/weights", "old");
  EXPECT_THAT(Replace(".", "new"), Refuses(HasSubstr("in which this process runs")));
  DT_EXPECT_OK(Replace("new", "new")) << "a folder in it";
  fs::current_path(before);
  EXPECT_THAT(Files(place_),
              ElementsAre(Pair("below/new/weights", "new"), Pair("below/weights", "old")));
}

// A long name does not become too long, nor does one of many dots deceive.
TEST_F(AtomicFolderTest, MayHaveAnyName) {
  for (const std::string& name : {std::string(255, 'n'), std::string("a.b.1.2.tmp"),
                                  std::string(".hidden"), std::string("\xff\xfe x\n")}) {
    DT_EXPECT_OK(Replace(top_ / name, "1"));
    DT_EXPECT_OK(Replace(top_ / name, "2"));
    EXPECT_THAT(Files(top_ / name), ElementsAre(Pair("weights", "2")));
    EXPECT_FALSE(AbandonedName(TemporaryName(name))) << "this process is there";
  }
  EXPECT_EQ(Entries(), 4);
  for (const char* const name : {"", ".", "tmp", ".tmp", ".a.tmp", "....tmp", ".a.b.c.d.tmp"}) {
    EXPECT_FALSE(AbandonedName(name)) << name;
  }
}

}  // namespace
}  // namespace dtensor
