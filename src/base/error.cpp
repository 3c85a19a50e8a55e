#include "base/error.h"

namespace upweave {
namespace {

constexpr size_t kMaxExcerpt = 200;
constexpr size_t kMaxListed = 12;

// Bytes of the character that `text` begins with: 0 if it cannot be shown as it is.
size_t printable(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first >= 0xc2 && first < 0xe0) {
    return follows(1) && (first != 0xc2 || byte(1) >= 0xa0) ? 2 : 0;  // U+0080 to U+009F control terminals
  }
  if (first >= 0xe0 && first < 0xf0) {
    const bool fits = (first != 0xe0 || byte(1) >= 0xa0) && (first != 0xed || byte(1) < 0xa0);
    return follows(1) && follows(2) && fits ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool fits = (first != 0xf0 || byte(1) >= 0x90) && (first != 0xf4 || byte(1) < 0x90);
    return follows(1) && follows(2) && follows(3) && fits ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string excerpt(std::string_view text) {
  constexpr std::string_view kMore = "...";
  std::string out;
  size_t whole = 0;  // of `out`, where there is still room for the sign that something is left out
  for (size_t i = 0; i < text.size();) {
    const size_t n = printable(text.substr(i));
    const char c = text[i];
    if (n > 0) {
      out += text.substr(i, n);
    } else if (c == '\n' || c == '\t' || c == '\r') {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    if (out.size() > kMaxExcerpt) {
      out.resize(whole);
      return out += kMore;
    }
    if (out.size() <= kMaxExcerpt - kMore.size()) whole = out.size();
    i += n > 0 ? n : 1;
  }
  return out;
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) {
    out += (i > 0 ? ", " : "") + excerpt(names[i]);
  }
  if (names.size() > kMaxListed) out += fmt::format(" and {} more", names.size() - kMaxListed);
  return out;
}

}  // namespace upweave
