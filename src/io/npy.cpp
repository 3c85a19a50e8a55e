#include "io/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"

namespace upweave {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxHeader = 65535;  // of the dictionary; NumPy itself refuses 10000 and more by default
constexpr size_t kMaxPrefix = 12 + kMaxHeader;

struct Header {
  Shape shape;
  Dtype dtype = Dtype::kF32;
  size_t offset = 0;  // of the data in the file
  size_t bytes = 0;   // of the data
};

// What a header says: a few characters of it.
std::string quoted(std::string_view text) {
  return fmt::format("'{}{}'", excerpt(text.substr(0, 24)), text.size() > 24 ? "..." : "");
}

// Reads the Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }: any order of its
// three keys, any white space, either kind of quotes.
class Dictionary {
 public:
  Dictionary(std::string_view text, std::string_view name) : text_(text), name_(name) { parse(); }

  std::string_view descr;
  bool fortran_order = false;
  Shape shape;

 private:
  void parse() {
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{', "a '{'");
    while (!accept('}')) {
      const std::string_view key = string("a key");
      expect(':', "a ':'");
      bool* const seen = key == "descr"           ? &has_descr
                         : key == "fortran_order" ? &has_order
                         : key == "shape"         ? &has_shape
                                                  : nullptr;
      if (!seen) throw invalid("{}: the header has the unknown key {}", name_, quoted(key));
      if (std::exchange(*seen, true)) throw invalid("{}: the header has the key '{}' twice", name_, key);
      if (seen == &has_descr) {
        if (accept('[')) throw invalid("{}: structured dtypes are not supported", name_);
        descr = string("a dtype string");
      } else if (seen == &has_order) {
        fortran_order = boolean();
      } else {
        shape = tuple();
      }
      if (!accept(',')) {
        expect('}', "a ',' or '}'");
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("nothing more");
    for (const auto& [seen, key] : {std::pair(has_descr, "descr"), std::pair(has_order, "fortran_order"),
                                    std::pair(has_shape, "shape")}) {
      if (!seen) throw invalid("{}: the header lacks the key '{}'", name_, key);
    }
  }

  [[noreturn]] void fail(std::string_view wanted) const {
    throw invalid("{}: the header is malformed: {} expected at byte {} of it", name_, wanted, at_);
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c, std::string_view what) {
    if (!accept(c)) fail(what);
  }

  std::string_view string(std::string_view what) {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(what);
    const size_t end = text_.find_first_of(std::string{quote, '\\', '\n'}, at_ + 1);
    if (end == text_.npos || text_[end] != quote) fail("the end of a plain string");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  std::string_view word() {  // letters, digits, signs and points, to see and to name a whole wrong value
    skip_space();
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:()[]{}'\"", at_), text_.size());
    return text_.substr(at_, end - at_);
  }

  bool boolean() {
    const std::string_view value = word();
    if (value != "True" && value != "False") fail("True or False");
    at_ += value.size();
    return value == "True";
  }

  Shape tuple() {
    Shape extents;
    expect('(', "a '('");
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fail("a ',' or ')'");
      extents.push_back(extent());
      comma = accept(',');
    }
    if (extents.size() == 1 && !comma) throw invalid("{}: the shape is a number, not a tuple", name_);
    return extents;
  }

  int64_t extent() {
    const std::string_view digits = word();
    if (digits.empty()) fail("an extent");
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool whole = end == digits.data() + digits.size();
    if (whole && error == std::errc::result_out_of_range) {
      throw invalid("{}: the shape's extent {} does not fit 64 bits", name_, quoted(digits));
    }
    if (!whole || error != std::errc() || (digits[0] == '0' && digits.size() > 1)) {
      throw invalid("{}: the shape's extent {} is not an integer", name_, quoted(digits));
    }
    if (value < 0 || digits[0] == '-') throw invalid("{}: the shape's extent {} is negative", name_, digits);
    at_ += digits.size();
    return value;
  }

  std::string_view text_, name_;
  size_t at_ = 0;
};

Dtype dtype_of(std::string_view descr, std::string_view name, std::optional<Dtype> as_u2) {
  if (descr == "<f4") return Dtype::kF32;
  if (descr == "<f2") return Dtype::kF16;
  if (descr == "<f8") return Dtype::kF64;
  if (descr == "|V2" || descr == "<V2") return Dtype::kBF16;
  if (descr == "<u2") {
    if (!as_u2 || size_of(*as_u2) != 2) {
      throw invalid("{}: dtype '<u2' holds bare 16-bit words: say whether they are f16 or bf16", name);
    }
    return *as_u2;
  }
  if (descr.starts_with('>')) throw invalid("{}: dtype {} is big-endian", name, quoted(descr));
  throw invalid("{}: dtype {} is not one of <f2, <f4, <f8, V2 (bfloat16)", name, quoted(descr));
}

// The product of the extents other than 0 must fit too, as in NumPy: (2^62, 2^62, 0) is a lie.
size_t data_bytes(const Shape& shape, Dtype dtype, std::string_view name) {
  int64_t product = size_of(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    empty |= extent == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(extent, 1), &product)) {
      throw invalid("{}: the shape's size overflows 64 bits", name);
    }
  }
  return empty ? 0 : static_cast<size_t>(product);
}

// `bytes` is the start of a file: all of it, or kMaxPrefix of it.
Header parse_header(std::span<const std::byte> bytes, std::string_view name, std::optional<Dtype> as_u2) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) throw invalid("{}: not a .npy file", name);
  const auto byte = [&](size_t i) -> size_t {
    if (i >= text.size()) throw invalid("{}: truncated within its first {} bytes", name, i + 1);
    return static_cast<unsigned char>(text[i]);
  };
  const size_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    throw invalid("{}: version {}.{} of the format is not one of 1.0, 2.0, 3.0", name, major, minor);
  }
  const size_t start = major == 1 ? 10 : 12;
  size_t length = 0;
  for (size_t i = start; i-- > 8;) length = length << 8 | byte(i);
  if (length > kMaxHeader) {
    throw invalid("{}: the header claims to be {} bytes long, more than {}", name, length, kMaxHeader);
  }
  if (text.size() - start < length) {
    throw invalid("{}: truncated: its header has {} of {} bytes", name, text.size() - start, length);
  }
  Dictionary dictionary(text.substr(start, length), name);
  Header header;
  header.dtype = dtype_of(dictionary.descr, name, as_u2);
  if (dictionary.fortran_order) throw invalid("{}: the array is in Fortran order, not in C order", name);
  header.bytes = data_bytes(dictionary.shape, header.dtype, name);
  header.shape = std::move(dictionary.shape);
  header.offset = start + length;
  return header;
}

void check_size(const Header& header, size_t file_bytes, std::string_view name) {
  const size_t have = file_bytes - header.offset;
  if (have < header.bytes) {
    throw invalid("{}: truncated: its shape needs {} bytes of data and it has {}", name, header.bytes, have);
  }
  if (have > header.bytes) {
    throw invalid("{}: {} bytes too long: its shape needs {} bytes of data and it has {}", name,
                  have - header.bytes, header.bytes, have);
  }
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

void read_exactly(int fd, std::span<std::byte> out, size_t offset, const std::string& path) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw invalid("{}: cannot be read: {}", path, std::strerror(errno));
    if (n == 0) throw invalid("{}: became shorter while it was read", path);
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<size_t>(n);
  }
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view name, std::optional<Dtype> as_u2) {
  Header header = parse_header(bytes, name, as_u2);
  check_size(header, bytes.size(), name);
  const auto data = bytes.subspan(header.offset);
  return {std::move(header.shape), header.dtype, {data.begin(), data.end()}};
}

NpyArray read_npy(const std::string& path, std::optional<Dtype> as_u2) {
  // Nonblocking: a pipe that nobody writes to would not open otherwise.
  File file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info;
  if (file.fd() < 0 || ::fstat(file.fd(), &info) != 0) {
    throw invalid("{}: cannot be opened: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) throw invalid("{}: not a regular file", path);
  const auto size = static_cast<size_t>(info.st_size);
  try {
    std::vector<std::byte> prefix(std::min(size, kMaxPrefix));
    read_exactly(file.fd(), prefix, 0, path);
    Header header = parse_header(prefix, path, as_u2);
    check_size(header, size, path);
    NpyArray array{std::move(header.shape), header.dtype, std::vector<std::byte>(header.bytes)};
    read_exactly(file.fd(), array.data, header.offset, path);
    return array;
  } catch (const std::bad_alloc&) {
    throw fail(Status::kMemory, "{}: no memory for its {} bytes", path, size);
  }
}

std::string npy_header(const Shape& shape, Dtype dtype) {
  const char* const descr = dtype == Dtype::kF64   ? "<f8"
                            : dtype == Dtype::kF32 ? "<f4"
                            : dtype == Dtype::kF16 ? "<f2"
                                                   : "<V2";
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (", descr);
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  text += shape.size() == 1 ? ",), }" : "), }";
  const size_t start = 10;  // magic, version 1.0, two bytes of length; data begins at a multiple of 64
  text.append(63 - (start + text.size()) % 64, ' ');
  text += '\n';
  std::string header(kMagic);
  for (const size_t byte : {size_t{1}, size_t{0}, text.size() & 255, text.size() >> 8}) {
    header += static_cast<char>(byte);
  }
  return header + text;
}

namespace {

// A file that gets its name when it is whole. Where the file system can, it has no name until then, so that
// nothing is left of it if the process dies; elsewhere it is called `target`.N.part meanwhile.
class Nascent {
 public:
  Nascent(std::string target, mode_t mode) : target_(std::move(target)), mode_(mode), fd_(-1) {}
  ~Nascent() {
    if (fd_ >= 0) ::close(fd_);
    if (!part_.empty()) ::unlink(part_.c_str());
  }
  Nascent(const Nascent&) = delete;
  Nascent& operator=(const Nascent&) = delete;

  bool open(bool nameless) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    if (nameless) {
      const std::string folder = std::filesystem::path(target_).parent_path().string();
      fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, mode_);
      return fd_ >= 0;
    }
    return with_part_name([&](const char* name) {
      fd_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode_);
      return fd_ >= 0;
    });
  }
  bool keep_mode() { return ::fchmod(fd_, mode_) == 0; }  // whatever the umask
  bool write(std::span<const std::byte> bytes) { return write_all(fd_, bytes); }
  bool sync() { return ::fsync(fd_) == 0; }

  // Its name at last. A link cannot replace a file: there it gets one of its own first.
  bool appear() {
    const std::string self = fmt::format("/proc/self/fd/{}", fd_);
    const auto link = [&](const char* name) {
      return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
    };
    if (part_.empty()) {
      if (link(target_.c_str())) return ::close(std::exchange(fd_, -1)) == 0;
      if (errno != EEXIST || !with_part_name(link)) return false;
    }
    if (::close(std::exchange(fd_, -1)) != 0 || ::rename(part_.c_str(), target_.c_str()) != 0) return false;
    part_.clear();
    return true;
  }

 private:
  template <class F>
  bool with_part_name(F&& make) {
    for (int i = 0; i < 100; ++i) {
      const std::string name = fmt::format("{}.{}-{}.part", target_, ::getpid(), i);
      if (make(name.c_str())) {
        part_ = name;
        return true;
      }
      if (errno != EEXIST) break;
    }
    return false;
  }

  std::string target_, part_;
  mode_t mode_;
  int fd_;
};

// The file that `path` names, through links: they stay.
std::string behind_links(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path target = path;
  for (int i = 0; fs::is_symlink(target, error); ++i) {
    if (i == 40) throw invalid("{}: cannot be written: {}", path, std::strerror(ELOOP));
    target = target.parent_path() / fs::read_symlink(target, error);
    if (error) throw invalid("{}: cannot be written: {}", path, error.message());
  }
  return target.string();
}

}  // namespace

void write_npy(const std::string& path, const Shape& shape, Dtype dtype, const void* data,
               const std::function<void()>& confirm) {
  const std::string header = npy_header(shape, dtype);
  const std::span bytes(static_cast<const std::byte*>(data), data_bytes(shape, dtype, path));
  const std::string target = behind_links(path);
  struct stat old;
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {
    throw invalid("{}: cannot be written: not a regular file", path);  // nor replace /dev/null by one
  }
  const auto cannot = [&] { return invalid("{}: cannot be written: {}", path, std::strerror(errno)); };
  Nascent file(target, exists ? old.st_mode & 0777 : 0666);
  const auto fill = [&](bool nameless) {
    return file.open(nameless) && (!exists || file.keep_mode()) &&
           file.write(std::as_bytes(std::span(header))) && file.write(bytes) && file.sync();
  };
  // Not every file system has nameless files, and not every system a /proc to name them by.
  const bool named_late = fill(true);
  if (!named_late && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG)) throw cannot();
  if (!named_late && !fill(false)) throw cannot();
  if (confirm) confirm();
  if (!file.appear() && (!named_late || !fill(false) || !file.appear())) throw cannot();
}

}  // namespace upweave
