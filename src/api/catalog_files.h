#pragma once
#include <cstddef>
#include <string_view>
#include <utility>

// pipelines/*.upw as the build embeds them: (the file's name without .upw, its lines `key: value`), by name.
namespace upweave {

extern const std::pair<std::string_view, std::string_view> kCatalogFiles[];
extern const std::size_t kCatalogFileCount;

}  // namespace upweave
