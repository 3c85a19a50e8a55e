// The pipelines that come with the library: pipelines/*.upw, embedded by the build.
//
//   title: ConvTranspose3D LayerNorm GELU Scaling
//   input: 32x32x16x32x32
//   set: stride=2 padding=1 output_padding=0 scaling_factor=1
//   text: conv_transpose kernel 64 k4 s$stride p$padding op$output_padding
//     | layer_norm channel | gelu | mul $scaling_factor
#include <charconv>

#include "api/catalog_files.h"
#include "base/error.h"
#include "graph/operation.h"
#include "upweave_version.h"

namespace upweave {
namespace {

std::string_view trim(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\r");
  return first == s.npos ? std::string_view() : s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

Shape parse_shape(std::string_view text) {
  Shape shape;
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(p, end, extent);
    if (error != std::errc() || (next != end && *next != 'x'))
      throw invalid("shape '{}' is not like 2x3x4", text);
    shape.push_back(extent);
    p = next + 1;
  }
  return shape;
}

// "a=1 b=2": calls f(name, value) for each.
template <class F>
void for_each_pair(std::string_view words, F&& f) {
  while (!(words = trim(words)).empty()) {
    const std::string_view word = words.substr(0, words.find_first_of(" \t"));
    const size_t equals = word.find('=');
    if (equals == word.npos) throw invalid("'{}' is not like name=value", word);
    f(std::string(word.substr(0, equals)), word.substr(equals + 1));
    words.remove_prefix(word.size());
  }
}

CatalogEntry parse_entry(std::string_view slug, std::string_view content) {
  CatalogEntry entry;
  entry.slug = slug;
  std::string key;
  for (std::string_view rest = content; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (trim(line).empty() || trim(line)[0] == '#') continue;
    if (line[0] == ' ' || line[0] == '\t') {  // goes on
      if (key != "text") throw invalid("{}.upw: only a text goes on over several lines", slug);
      entry.text.append(" ").append(trim(line));
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == line.npos) throw invalid("{}.upw: line '{}' is not like key: value", slug, line);
    key = line.substr(0, colon);
    const std::string_view value = trim(line.substr(colon + 1));
    if (key == "title") {
      entry.title = value;
    } else if (key == "text") {
      entry.text = value;
    } else if (key == "input") {
      entry.shapes["input"] = parse_shape(value);
    } else if (key == "set") {
      for_each_pair(
          value, [&](const std::string& name, std::string_view v) { entry.settings[name] = std::string(v); });
    } else if (key == "shape") {
      for_each_pair(
          value, [&](const std::string& name, std::string_view v) { entry.shapes[name] = parse_shape(v); });
    } else {
      throw invalid("{}.upw: key '{}' is not known", slug, key);
    }
  }
  if (entry.text.empty() || !entry.shapes.contains("input")) {
    throw invalid("{}.upw: text and input are needed", slug);
  }
  return entry;
}

}  // namespace

const std::vector<CatalogEntry>& catalog() {
  static const std::vector<CatalogEntry> entries = [] {
    std::vector<CatalogEntry> all;
    for (size_t i = 0; i < kCatalogFileCount; ++i) {
      all.push_back(parse_entry(kCatalogFiles[i].first, kCatalogFiles[i].second));
    }
    return all;
  }();
  return entries;
}

std::vector<OperationInfo> vocabulary() {
  std::vector<OperationInfo> all;
  for (const Operation* op : operations()) {
    if (!op->internal)
      all.push_back({std::string(op->name), std::string(op->summary), std::string(op->example)});
  }
  return all;
}

const char* version() { return UPWEAVE_VERSION; }

}  // namespace upweave
