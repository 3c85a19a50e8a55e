#pragma once
#include <cstddef>
#include <string_view>

// pipelines/*.upw as the build embeds them (cmake writes the definitions), in the order of their names.
namespace upweave {

struct CatalogFile {
  std::string_view slug;     // the file's name without .upw
  std::string_view content;  // lines `key: value`
};

extern const CatalogFile kCatalogFiles[];
extern const size_t kCatalogFileCount;

}  // namespace upweave
