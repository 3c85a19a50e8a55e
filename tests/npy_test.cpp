#include "io/npy.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/dtype.h"

namespace upweave {
namespace {

namespace fs = std::filesystem;
using std::string_literals::operator""s;

std::string made_by_numpy(const std::string& name) { return std::string(UPWEAVE_TEST_DATA) + "/npy/" + name; }

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

NpyArray parse(std::string_view bytes, std::optional<Dtype> as_u2 = {}) {
  return parse_npy(std::as_bytes(std::span(bytes)), "x.npy", as_u2);
}

// A version 1 file with this dictionary, followed by `data`.
std::string file_with(std::string_view dictionary, std::string_view data = "") {
  std::string bytes = "\x93NUMPY\x01\x00"s;
  bytes += static_cast<char>(dictionary.size() & 255);
  bytes += static_cast<char>(dictionary.size() >> 8);
  return bytes.append(dictionary).append(data);
}

std::string file_of_shape(std::string_view shape, std::string_view data = "") {
  return file_with("{'descr': '<f4', 'fortran_order': False, 'shape': " + std::string(shape) + ", }", data);
}

// The sentence that the call throws: one line that names the file. "" if nothing is thrown.
template <class F>
std::string sentence(F&& call, std::string_view name = "x.npy") {
  try {
    call();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.status(), Status::kInvalid) << text;
    EXPECT_TRUE(text.starts_with(name)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  return "";
}

std::string refusal(const std::string& bytes) {
  return sentence([&] { parse(bytes); });
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "said: " << (text)

void expect_ramp(const NpyArray& array) {
  ASSERT_EQ(array.shape, (Shape{2, 3, 4}));
  ASSERT_EQ(array.data.size(), static_cast<size_t>(24 * size_of(array.dtype)));
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(load_element(array.data.data(), array.dtype, i), static_cast<double>(i) / 4 - 2) << i;
  }
}

TEST(Npy, ReadsWhatNumPyWrites) {
  const std::pair<const char*, Dtype> files[] = {{"f2.npy", Dtype::kF16}, {"f4.npy", Dtype::kF32},
                                                 {"f8.npy", Dtype::kF64}, {"v2.npy", Dtype::kF32},
                                                 {"v3.npy", Dtype::kF32}, {"bf16.npy", Dtype::kBF16}};
  for (const auto& [name, dtype] : files) {
    SCOPED_TRACE(name);
    const NpyArray array = read_npy(made_by_numpy(name));
    EXPECT_EQ(array.dtype, dtype);
    expect_ramp(array);
  }
}

TEST(Npy, ReadsScalarsVectorsAndEmptyArrays) {
  const NpyArray scalar = read_npy(made_by_numpy("scalar.npy"));
  EXPECT_EQ(scalar.shape, Shape{});
  ASSERT_EQ(scalar.data.size(), 4u);
  EXPECT_EQ(load_element(scalar.data.data(), Dtype::kF32, 0), 1.5);
  EXPECT_EQ(read_npy(made_by_numpy("vector.npy")).shape, Shape{1});
  const NpyArray empty = read_npy(made_by_numpy("empty.npy"));
  EXPECT_EQ(empty.shape, (Shape{0, 4}));
  EXPECT_TRUE(empty.data.empty());
}

TEST(Npy, WordsAreWhatTheCallerSays) {
  const std::string path = made_by_numpy("u2.npy");
  expect_ramp(read_npy(path, Dtype::kBF16));
  EXPECT_EQ(read_npy(path, Dtype::kF16).dtype, Dtype::kF16);
  EXPECT_SAYS(sentence([&] { read_npy(path); }, path), "f16 or bf16");
  EXPECT_SAYS(sentence([&] { read_npy(path, Dtype::kF32); }, path), "f16 or bf16");
  // and only of unsigned words: other types are what they say
  EXPECT_EQ(read_npy(made_by_numpy("f2.npy"), Dtype::kBF16).dtype, Dtype::kF16);
}

TEST(Npy, RefusesOtherLayoutsAndTypes) {
  const std::pair<const char*, const char*> files[] = {{"fortran.npy", "Fortran order"},
                                                       {"big_endian.npy", "'>f4' is big-endian"},
                                                       {"int32.npy", "'<i4' is not one of"},
                                                       {"object.npy", "'|O' is not one of"},
                                                       {"structured.npy", "structured"}};
  for (const auto& [name, part] : files) {
    const std::string path = made_by_numpy(name);
    EXPECT_SAYS(sentence([&] { read_npy(path); }, path), part);
  }
}

TEST(Npy, EveryTruncationIsRefused) {
  for (const char* name : {"f4.npy", "v2.npy"}) {
    const std::string bytes = bytes_of(made_by_numpy(name));
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_NE(refusal(bytes.substr(0, n)), "") << name << " " << n;
  }
  const std::string bytes = bytes_of(made_by_numpy("f4.npy"));
  EXPECT_SAYS(refusal(bytes.substr(0, bytes.size() - 1)), "needs 96 bytes of data and it has 95");
  EXPECT_SAYS(refusal(bytes.substr(0, 20)), "its header has 10 of 118 bytes");
}

TEST(Npy, RefusesTrailingBytes) {
  EXPECT_SAYS(refusal(bytes_of(made_by_numpy("f4.npy")) + "!"), "1 bytes too long");
}

TEST(Npy, RefusesLyingShapes) {
  EXPECT_EQ(refusal(file_of_shape("(1, 2)", "12345678")), "");
  EXPECT_SAYS(refusal(file_of_shape("(1, 3)", "12345678")), "needs 12 bytes");
  EXPECT_SAYS(refusal(file_of_shape("(-1,)")), "extent -1 is negative");
  EXPECT_SAYS(refusal(file_of_shape("(-0,)")), "negative");
  EXPECT_SAYS(refusal(file_of_shape("(1.5,)")), "'1.5' is not an integer");
  EXPECT_SAYS(refusal(file_of_shape("(1e3,)")), "not an integer");
  EXPECT_SAYS(refusal(file_of_shape("(True,)")), "'True' is not an integer");
  EXPECT_SAYS(refusal(file_of_shape("(007,)")), "not an integer");
  EXPECT_SAYS(refusal(file_of_shape("(2305843009213693952,)")), "overflows 64 bits");
  EXPECT_SAYS(refusal(file_of_shape("(4294967296, 4294967296, 0)")), "overflows 64 bits");
  EXPECT_SAYS(refusal(file_of_shape("(99999999999999999999,)")), "does not fit 64 bits");
  EXPECT_SAYS(refusal(file_of_shape("(2305843009213693951,)")), "truncated");  // and takes no memory first
  EXPECT_SAYS(refusal(file_of_shape("(3)")), "not a tuple");
  EXPECT_SAYS(refusal(file_of_shape("3")), "'(' expected");
  EXPECT_SAYS(refusal(file_of_shape("(3")), "malformed");
  EXPECT_SAYS(refusal(file_of_shape("(3 4)")), "malformed");
  EXPECT_SAYS(refusal(file_of_shape("(,)")), "malformed");
  EXPECT_SAYS(refusal(file_of_shape("(3,,4)")), "malformed");
}

TEST(Npy, RefusesLyingLengthsAndVersions) {
  const std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }";
  EXPECT_SAYS(refusal("\x93NUMPY\x02\x00\xff\xff\xff\xff"s + dictionary), "4294967295 bytes long");
  EXPECT_SAYS(refusal("\x93NUMPY\x01\x00\xff\xff"s + dictionary), "of 65535 bytes");
  EXPECT_SAYS(refusal("\x93NUMPY\x04\x00\x10\x00"s + dictionary), "version 4.0");
  EXPECT_SAYS(refusal("\x93NUMPY\x01\x01\x10\x00"s + dictionary), "version 1.1");
  EXPECT_SAYS(refusal("PK\x03\x04"), "not a .npy file");
  EXPECT_SAYS(refusal(""), "not a .npy file");
}

TEST(Npy, TheDictionaryMayBeWrittenInOtherWays) {
  for (const char* dictionary : {
           "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}",
           "{\"descr\":\"<f4\",\"fortran_order\":False,\"shape\":(2,)}",
           "  {\n 'descr' : '<f4' ,\t'fortran_order' : False , 'shape' : ( 2 , ) , }  \n\n",
       }) {
    EXPECT_EQ(parse(file_with(dictionary, "12345678")).shape, Shape{2}) << dictionary;
  }
  EXPECT_EQ(parse(file_of_shape("(1, 2,)", "12345678")).shape, (Shape{1, 2}));
}

TEST(Npy, MalformedDictionariesAreRefused) {
  EXPECT_SAYS(refusal(file_with("")), "'{' expected");
  EXPECT_SAYS(refusal(file_with("{}")), "lacks the key 'descr'");
  EXPECT_SAYS(refusal(file_with("{'descr': '<f4', 'shape': ()}")), "lacks the key 'fortran_order'");
  EXPECT_SAYS(refusal(file_with("{'descr': '<f4', 'fortran_order': False}")), "lacks the key 'shape'");
  EXPECT_SAYS(refusal(file_with("{'descr': '<f4', 'descr': '<f4'}")), "'descr' twice");
  EXPECT_SAYS(refusal(file_with("{'dtype': '<f4'}")), "unknown key 'dtype'");
  EXPECT_SAYS(refusal(file_with("{'descr': 4}")), "a dtype string expected");
  EXPECT_SAYS(refusal(file_with("{'descr': '<f4")), "malformed");
  EXPECT_SAYS(refusal(file_with("{'fortran_order': 0}")), "True or False expected");
  EXPECT_SAYS(refusal(file_with("{'descr' '<f4'}")), "':' expected");
  EXPECT_SAYS(refusal(file_of_shape("()} {", "1234")), "malformed");
  EXPECT_SAYS(refusal(file_with("{'a\x01\xff\n': 1}")), "malformed");
  EXPECT_SAYS(refusal(file_with("{'a\x01\xff': 1}")), R"('a\x01\xff')");
}

TEST(Npy, ParsingAndReadingAgree) {
  for (const fs::directory_entry& entry : fs::directory_iterator(made_by_numpy(""))) {
    const std::string path = entry.path();
    if (entry.path().extension() != ".npy") continue;
    const std::string bytes = bytes_of(path);
    NpyArray read, parsed;
    const auto said_reading = sentence([&] { read = read_npy(path); }, path);
    const auto said_parsing =
        sentence([&] { parsed = parse_npy(std::as_bytes(std::span(bytes)), path); }, path);
    EXPECT_EQ(said_reading, said_parsing);
    EXPECT_EQ(read.shape, parsed.shape);
    EXPECT_EQ(read.data, parsed.data);
  }
}

class NpyWrite : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "upweave-npy-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(NpyWrite, GivesTheBytesThatNumPyGives) {
  for (const char* name : {"f2.npy", "f4.npy", "f8.npy", "scalar.npy", "vector.npy", "empty.npy"}) {
    const NpyArray array = read_npy(made_by_numpy(name));
    const std::string path = folder_ / name;
    write_npy(path, array.shape, array.dtype, array.data.data());
    EXPECT_EQ(bytes_of(path), bytes_of(made_by_numpy(name))) << name;
  }
  const NpyArray array = read_npy(made_by_numpy("bf16.npy"));
  write_npy(folder_ / "bf16.npy", array.shape, array.dtype, array.data.data());
  const NpyArray again = read_npy(folder_ / "bf16.npy");
  EXPECT_EQ(again.dtype, Dtype::kBF16);
  expect_ramp(again);
}

TEST_F(NpyWrite, ReplacesAFileAndLeavesNothingElse) {
  const std::string path = folder_ / "y.npy";
  const float one = 1, two[2] = {2, 3};
  write_npy(path, {2}, Dtype::kF32, two);
  write_npy(path, {1}, Dtype::kF32, &one);
  EXPECT_EQ(read_npy(path).shape, Shape{1});
  EXPECT_EQ(files(), 1u);
}

TEST_F(NpyWrite, WritesThroughALink) {
  const float one = 1;
  fs::create_symlink("y.npy", folder_ / "link.npy");
  write_npy(folder_ / "link.npy", {1}, Dtype::kF32, &one);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.npy"));
  EXPECT_EQ(read_npy(folder_ / "y.npy").shape, Shape{1});
}

TEST_F(NpyWrite, FailureLeavesTheOldFileAndNoOther) {
  const float one = 1;
  const std::string path = folder_ / "y.npy";
  write_npy(path, {1}, Dtype::kF32, &one);
  const std::string before = bytes_of(path);
  // write() fails with EFAULT before a byte of the data is there, as a full disk would make it fail.
  EXPECT_SAYS(sentence([&] { write_npy(path, {4}, Dtype::kF32, nullptr); }, path), "cannot be written");
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_EQ(files(), 1u);
}

TEST_F(NpyWrite, RefusesPlacesThatAreNotFiles) {
  const float one = 1;
  const auto write = [&](const std::string& path) {
    return sentence([&] { write_npy(path, {1}, Dtype::kF32, &one); }, path);
  };
  EXPECT_SAYS(write(folder_), "not a regular file");
  EXPECT_SAYS(write("/dev/null"), "not a regular file");
  EXPECT_SAYS(write(folder_ / "no" / "y.npy"), "No such file or directory");
  EXPECT_EQ(files(), 0u);
}

TEST_F(NpyWrite, KeepsTheModeOfWhatItReplaces) {
  const float one = 1;
  const std::string path = folder_ / "y.npy";
  for (const mode_t mode : {0600, 0640, 0666, 0400}) {
    write_npy(path, {1}, Dtype::kF32, &one);
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    write_npy(path, {1}, Dtype::kF32, &one);
    struct stat info;
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
}

TEST_F(NpyWrite, ALoopOfLinksStaysOne) {
  const float one = 1;
  fs::create_symlink("b.npy", folder_ / "a.npy");
  fs::create_symlink("a.npy", folder_ / "b.npy");
  const std::string path = folder_ / "a.npy";
  EXPECT_SAYS(sentence([&] { write_npy(path, {1}, Dtype::kF32, &one); }, path), "symbolic links");
  EXPECT_TRUE(fs::is_symlink(folder_ / "a.npy"));
  EXPECT_EQ(files(), 2u);
}

// Killed at any moment, the file is there or not, and nothing else is.
TEST_F(NpyWrite, ADeathLeavesNothing) {
  if (const int fd = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0600); fd >= 0) {
    ::close(fd);
  } else {
    GTEST_SKIP() << "no nameless files here: " << std::strerror(errno);
  }
  const std::vector<float> data(1 << 20, 1.0f);
  const std::string path = folder_ / "y.npy";
  int unfinished = 0;
  for (int i = 0; i < 60; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      write_npy(path, {1 << 20}, Dtype::kF32, data.data());
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(100 * i));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const bool whole = fs::exists(path);
    unfinished += !whole;
    EXPECT_EQ(files(), whole ? 1u : 0u);
    if (whole) {
      EXPECT_EQ(read_npy(path).data.size(), 4u << 20);
    }
    fs::remove(path);
  }
  EXPECT_GT(unfinished, 0);
}

TEST_F(NpyWrite, WhatIsNotConfirmedDoesNotAppear) {
  const float one = 1;
  const std::string path = folder_ / "y.npy";
  const auto refuse = [&] {
    EXPECT_FALSE(fs::exists(path));
    throw Error(Status::kInvalid, path + " is not wanted");
  };
  EXPECT_SAYS(sentence([&] { write_npy(path, {1}, Dtype::kF32, &one, refuse); }, path), "not wanted");
  EXPECT_EQ(files(), 0u);
}

TEST_F(NpyWrite, ReadingRefusesPlacesThatAreNotFiles) {
  const auto read = [&](const std::string& path) { return sentence([&] { read_npy(path); }, path); };
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_SAYS(read(folder_ / "pipe"), "not a regular file");  // at once, though nobody writes to it
  EXPECT_SAYS(read(folder_), "not a regular file");
  EXPECT_SAYS(read("/dev/zero"), "not a regular file");
  EXPECT_SAYS(read(folder_ / "no.npy"), "cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace upweave
