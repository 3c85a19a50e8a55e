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

// What a header says, made fit for a one-line message.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 24)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 24 ? "...'" : "'");
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
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

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
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
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

void write_npy(const std::string& path, const Shape& shape, Dtype dtype, const void* data) {
  namespace fs = std::filesystem;
  const std::string header = npy_header(shape, dtype);
  const size_t bytes = data_bytes(shape, dtype, path);
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw invalid("{}: cannot be written: not a regular file", path);  // nor replace /dev/null by one
  }
  fs::path target = path;  // a link stays one: the file that it names is replaced
  for (int i = 0; i < 40 && fs::is_symlink(target, ignored); ++i) {
    target = target.parent_path() / fs::read_symlink(target, ignored);
  }
  std::string temporary;
  int fd = -1;
  for (int i = 0; fd < 0 && i < 100; ++i) {
    temporary = fmt::format("{}.{}-{}.part", target.string(), ::getpid(), i);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) throw invalid("{}: cannot be written: {}", path, std::strerror(errno));
  File file(fd);
  if (!write_all(fd, std::as_bytes(std::span(header))) ||
      !write_all(fd, {static_cast<const std::byte*>(data), bytes}) || ::fsync(fd) != 0 || !file.close() ||
      ::rename(temporary.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw invalid("{}: cannot be written: {}", path, std::strerror(error));
  }
}

}  // namespace upweave
