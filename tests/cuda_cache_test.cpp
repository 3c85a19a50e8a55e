// What is in the cache's place on disk: an entry that is whole and the user's own, or nothing.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/cuda/disk_cache.h"

namespace upweave::cuda {
namespace {

namespace fs = std::filesystem;

class DiskCache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "upweave-cache-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    if (const char* before = std::getenv("UPWEAVE_CACHE")) before_ = before;
    ::setenv("UPWEAVE_CACHE", (folder_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    before_ ? ::setenv("UPWEAVE_CACHE", before_->c_str(), 1) : ::unsetenv("UPWEAVE_CACHE");
    fs::remove_all(folder_);
  }
  fs::path entry() const { return cache_path("key"); }

  fs::path folder_;
  std::optional<std::string> before_;
  const std::string content_ = std::string(
                                   "\x7f"
                                   "ELF") +
                               std::string(10000, 'x');
};

TEST_F(DiskCache, GivesBackWhatWasPutIn) {
  EXPECT_EQ(read_cache("key"), std::nullopt);
  write_cache("key", content_);
  EXPECT_EQ(read_cache("key"), content_);
  EXPECT_EQ(read_cache("another key"), std::nullopt);
}

TEST_F(DiskCache, DamageAnywhereIsSeen) {
  write_cache("key", content_);
  const auto bytes = static_cast<std::streamoff>(fs::file_size(entry()));
  for (const std::streamoff at : {std::streamoff{0}, bytes / 2, bytes - 70, bytes - 40, bytes - 1}) {
    write_cache("key", content_);
    {
      std::fstream file(entry(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(at);
      file.put('!');
    }
    EXPECT_EQ(read_cache("key"), std::nullopt) << at;
  }
  for (const std::streamoff length : {std::streamoff{0}, std::streamoff{63}, std::streamoff{64}, bytes - 1}) {
    write_cache("key", content_);
    fs::resize_file(entry(), static_cast<uintmax_t>(length));
    EXPECT_EQ(read_cache("key"), std::nullopt) << length;
  }
  // Another key's entry in this one's place.
  write_cache("another key", content_);
  fs::copy_file(cache_path("another key"), entry(), fs::copy_options::overwrite_existing);
  EXPECT_EQ(read_cache("key"), std::nullopt);
}

TEST_F(DiskCache, OnlyTheUsersOwnRegularFilesCount) {
  write_cache("key", content_);
  for (const mode_t mode : {0620, 0602, 0666}) {
    ASSERT_EQ(::chmod(entry().c_str(), mode), 0);
    EXPECT_EQ(read_cache("key"), std::nullopt) << mode;
  }
  ASSERT_EQ(::chmod(entry().c_str(), 0600), 0);
  EXPECT_EQ(read_cache("key"), content_);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(entry().c_str(), 1, 1), 0);
    EXPECT_EQ(read_cache("key"), std::nullopt);
  }
  fs::remove(entry());
  write_cache("another key", content_);
  fs::create_symlink(cache_path("another key"), entry());
  EXPECT_EQ(read_cache("key"), std::nullopt);
}

// Neither hangs nor throws.
TEST_F(DiskCache, OtherThingsInItsPlace) {
  write_cache("another key", content_);
  fs::create_directories(entry() / "within");
  EXPECT_EQ(read_cache("key"), std::nullopt);
  write_cache("key", content_);
  EXPECT_EQ(read_cache("key"), std::nullopt);
  fs::remove_all(entry());
  ASSERT_EQ(::mkfifo(entry().c_str(), 0600), 0);
  EXPECT_EQ(read_cache("key"), std::nullopt);
  write_cache("key", content_);
  EXPECT_EQ(read_cache("key"), content_);
  // No file of the attempts is left.
  EXPECT_EQ(std::distance(fs::directory_iterator(entry().parent_path()), fs::directory_iterator()), 2);
  fs::remove_all(folder_ / "cache");
  std::ofstream(folder_ / "cache") << "a file where the folder should be";
  write_cache("key", content_);
  EXPECT_EQ(read_cache("key"), std::nullopt);
}

TEST_F(DiskCache, TheFolderIsTheUsersAloneUnderAnyUmask) {
  for (const mode_t mask : {0000, 0022, 0077}) {
    fs::remove_all(folder_ / "cache");
    const mode_t before = ::umask(mask);
    write_cache("key", content_);
    ::umask(before);
    struct stat info;
    ASSERT_EQ(::stat((folder_ / "cache").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u) << mask;
    ASSERT_EQ(::stat(entry().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << mask;
  }
}

}  // namespace
}  // namespace upweave::cuda
