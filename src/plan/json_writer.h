#pragma once
// JSON as text, piece by piece. What fails in the middle (memory that cannot be had) leaves as an exception:
// nothing is built whose destruction could fail.
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace upweave {

class JsonWriter {
 public:
  void begin_object() { begin('{'); }
  void begin_array() { begin('['); }
  void end_object() { end('}'); }
  void end_array() { end(']'); }
  void key(std::string_view name) {
    next();
    quote(name);
    text_ += ": ";
    keyed_ = true;
  }
  void value(std::string_view text) {
    next();
    quote(text);
  }
  void value(double number) {
    next();
    text_ += std::isfinite(number) ? fmt::format("{}", number) : "null";
  }
  void value(int64_t number) {
    next();
    text_ += fmt::format("{}", number);
  }
  template <class T>
  void value(const std::vector<T>& items) {
    begin_array();
    for (const T& item : items) value(item);
    end_array();
  }
  template <class T>
  void member(std::string_view name, const T& item) {
    key(name);
    value(item);
  }
  std::string take() { return std::move(text_); }

 private:
  void begin(char bracket) {
    next();
    text_ += bracket;
    first_ = true;
    ++depth_;
  }
  void end(char bracket) {
    --depth_;
    if (!first_) line();
    text_ += bracket;
    first_ = false;
  }
  // What comes before a value or a key.
  void next() {
    if (!keyed_ && depth_ > 0) {
      if (!first_) text_ += ',';
      line();
    }
    first_ = keyed_ = false;
  }
  void line() {
    text_ += '\n';
    text_.append(2 * depth_, ' ');
  }
  void quote(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        text_ += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  size_t depth_ = 0;
  bool first_ = true, keyed_ = false;
};

}  // namespace upweave
