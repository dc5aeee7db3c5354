#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"

namespace quatrain {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("quatrain_file_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  int entries() const {
    return static_cast<int>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

std::string error_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(FileTest, WritesUnderTheFinalNameOnCommitOnly) {
  const fs::path path = folder_ / "a.bin";
  {
    AtomicFile file(path);
    file.write("0123456789");
    file.write_at(2, "xy", 2);
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(file.size(), 10u);
    EXPECT_NE(error_of([&] { file.write_at(9, "xy", 2); }).find("a.bin"), std::string::npos);
    EXPECT_NE(error_of([&] { file.write_at(SIZE_MAX, "xy", 2); }), "");
    file.commit();
  }
  EXPECT_EQ(read_file(path), "01xy456789");
  EXPECT_EQ(entries(), 1);
}

TEST_F(FileTest, WithoutCommitNothingChanges) {
  const fs::path path = folder_ / "a.bin";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_F(FileTest, ReadErrorsNameThePath) {
  EXPECT_NE(error_of([&] { read_file(folder_ / "absent"); }).find("absent"), std::string::npos);
  EXPECT_NE(error_of([&] { read_file(folder_); }).find("directory"), std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile(folder_ / "no" / "such"); }).find("such"), std::string::npos);
  EXPECT_NE(error_of([&] { MappedFile(folder_ / "absent"); }).find("absent"), std::string::npos);
  EXPECT_NE(error_of([&] { MappedFile{folder_}; }).find("is a directory"), std::string::npos);
  write_file(folder_ / "large", std::string(100, 'x'));
  EXPECT_NE(error_of([&] { read_file(folder_ / "large", 99); }).find("larger than 99"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "large", 100).size(), 100u);
}

// None of these ends by itself, or at all: they are refused without waiting for a byte.
TEST_F(FileTest, PipesDevicesAndSocketsAreRefusedAtOnce) {
  for (const char* name : {"pipe", "pipe.gz"}) ASSERT_EQ(mkfifo((folder_ / name).c_str(), 0600), 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fs::relative(folder_ / "socket").string();  // sun_path is short
  ASSERT_LT(name.size(), sizeof(address.sun_path));
  std::copy(name.begin(), name.end(), address.sun_path);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::pair<fs::path, const char*> cases[] = {{folder_ / "pipe", "is a pipe"},
                                                    {folder_ / "pipe.gz", "is a pipe"},
                                                    {folder_ / "socket", "is no regular file"},
                                                    {"/dev/zero", "is a device"},
                                                    {folder_, "is a directory"}};
  for (const auto& [path, said] : cases) {
    for (const std::string& error :
         {error_of([&] { read_file(path); }), error_of([&] { MappedFile{path}; })}) {
      EXPECT_NE(error.find(path.string()), std::string::npos) << error;
      EXPECT_NE(error.find(said), std::string::npos) << error;
    }
  }
  close(socket);
}

TEST_F(FileTest, MapsAndMoves) {
  write_file(folder_ / "a", "hello");
  write_file(folder_ / "empty", "");
  MappedFile map(folder_ / "a");
  MappedFile moved(std::move(map));
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>(moved.bytes()[4]), 'o');
  EXPECT_TRUE(map.bytes().empty());
  EXPECT_TRUE(MappedFile(folder_ / "empty").bytes().empty());
  moved = MappedFile(folder_ / "empty");
  EXPECT_TRUE(moved.bytes().empty());
}

TEST_F(FileTest, UnpacksGzipAndRefusesATruncatedOne) {
  const fs::path path = folder_ / "t.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  const std::string text(5000, 'q');
  gzwrite(file, text.data(), 5000);
  gzclose(file);
  EXPECT_EQ(read_file(path), text);
  EXPECT_NE(error_of([&] { read_file(path, 4999); }).find("unpacks to more than 4999"), std::string::npos);
  fs::resize_file(path, fs::file_size(path) - 6);
  EXPECT_NE(error_of([&] { read_file(path); }).find("t.gz"), std::string::npos);
}

TEST_F(FileTest, DirectoriesAppearWhole) {
  const fs::path path = folder_ / "out";
  {
    AtomicDirectory directory(path / "");  // "out/" is "out"
    write_file(directory.path() / "a", "1");
    EXPECT_FALSE(fs::exists(path));
    directory.commit();
  }
  EXPECT_EQ(read_file(path / "a"), "1");
  EXPECT_NE(error_of([&] { AtomicDirectory again(path); }).find("out"), std::string::npos);
  EXPECT_EQ(entries(), 1);
  {
    AtomicDirectory dropped(folder_ / "dropped");
    write_file(dropped.path() / "a", "1");
  }
  EXPECT_EQ(entries(), 1);
  fs::path kept;
  {
    AtomicDirectory directory(folder_ / "kept");
    kept = directory.path();
    directory.keep();
  }
  EXPECT_TRUE(fs::is_directory(kept));
}

TEST_F(FileTest, OnlyAFileIsReplacedByAFile) {
  EXPECT_NE(error_of([&] { AtomicFile{folder_}; }).find("is a directory"), std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile("/dev/null"); }).find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile(""); }).find("no name"), std::string::npos);
  EXPECT_FALSE(fs::exists("/dev/null.tmp"));
  EXPECT_EQ(entries(), 0);
  for (const char* name : {"", ".", "./", "..", "a/.."})
    EXPECT_NE(error_of([&] { AtomicDirectory{name}; }).find("no name"), std::string::npos) << name;
  fs::create_symlink(folder_ / "absent", folder_ / "link");
  EXPECT_NE(error_of([&] { AtomicDirectory(folder_ / "link"); }).find("exists"), std::string::npos);
}

TEST_F(FileTest, OneRunAtATimeWritesAName) {
  {
    AtomicFile first(folder_ / "a");
    first.write("first");
    EXPECT_NE(error_of([&] { AtomicFile(folder_ / "a"); }).find("another run"), std::string::npos);
    first.commit();
    AtomicDirectory directory(folder_ / "d");
    write_file(directory.path() / "x", "1");
    EXPECT_NE(error_of([&] { AtomicDirectory(folder_ / "d"); }).find("another run"), std::string::npos);
    directory.commit();
  }
  EXPECT_EQ(read_file(folder_ / "a"), "first");
  EXPECT_EQ(read_file(folder_ / "d" / "x"), "1");
}

TEST_F(FileTest, WhatAKilledRunLeftIsReplaced) {
  std::ofstream(folder_ / "a.tmp") << "a long line of an earlier run";
  write_file(folder_ / "a", "new");
  EXPECT_EQ(read_file(folder_ / "a"), "new");
  fs::create_directories(folder_ / "d.partial" / "sub");
  std::ofstream(folder_ / "d.partial" / "old") << "old";
  AtomicDirectory directory(folder_ / "d");
  directory.clear();
  directory.commit();
  EXPECT_TRUE(fs::is_empty(folder_ / "d"));
}

}  // namespace
}  // namespace quatrain
