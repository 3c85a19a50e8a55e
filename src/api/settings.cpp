#include "api/settings.h"

#include <algorithm>
#include <cctype>

#include "graph/graph.h"

namespace upweave {
namespace {

std::string names_of(const Settings& settings) {
  std::string names;
  for (const auto& [name, value] : settings) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

// One word of text, with extents written as 2x2x2; a value must not smuggle in a stage.
std::string one_word(const std::string& name, std::string value) {
  std::replace(value.begin(), value.end(), ',', 'x');
  const auto stranger = [](unsigned char c) { return std::isspace(c) || c == '|' || c == '$' || c == '@'; };
  if (value.empty() || std::any_of(value.begin(), value.end(), stranger)) {
    throw invalid("setting {} is '{}'; it must be one number or word", name, value);
  }
  return value;
}

// `extents` ("2" or "2x2x2") with the extent of `axis` replaced.
std::string with_axis(const std::string& extents, size_t axis, size_t spatial, const std::string& value) {
  std::vector<std::string> parts(1);
  for (const char c : extents) {
    if (c == 'x') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  parts.resize(spatial, parts.back());
  parts[axis] = value;
  std::string joined = parts[0];
  for (size_t i = 1; i < spatial; ++i) joined += "x" + parts[i];
  return joined;
}

}  // namespace

std::vector<std::string> setting_names(std::string_view text) {
  std::vector<std::string> names;
  for (size_t i = text.find('$'); i != text.npos; i = text.find('$', i + 1)) {
    size_t end = i + 1;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
      ++end;
    std::string name(text.substr(i + 1, end - i - 1));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

Settings merge_settings(const Settings& defaults, const Settings& given, size_t spatial) {
  Settings merged = defaults;
  // Whole values first, so that stride=1 stride_h=2 means the same in any order.
  for (const auto& [name, value] : given) {
    if (defaults.contains(name)) merged[name] = one_word(name, value);
  }
  for (const auto& [name, value] : given) {
    if (defaults.contains(name)) continue;
    const auto known = [&, &key = name]() -> bool {
      for (size_t axis = 0; axis < spatial; ++axis) {
        const std::string suffix = std::string("_") + axis_suffix(axis, spatial);
        if (!key.ends_with(suffix)) continue;
        const auto it = merged.find(key.substr(0, key.size() - suffix.size()));
        if (it == merged.end()) continue;
        it->second = with_axis(it->second, axis, spatial, one_word(key, value));
        return true;
      }
      return false;
    };
    if (!known()) throw invalid("setting '{}' is none of the pipeline's: {}", name, names_of(defaults));
  }
  return merged;
}

void check_unused(std::string_view text, const Settings& settings) {
  const auto used = setting_names(text);
  for (const auto& [name, value] : settings) {
    if (std::find(used.begin(), used.end(), name) != used.end()) continue;
    const bool digits =
        std::all_of(value.begin(), value.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!digits || value.find_first_not_of('0') == value.npos) {
      throw invalid("{} is {}; it must be at least 1", name, value);
    }
  }
}

}  // namespace upweave
