#pragma once
// Compiled kernels on disk, one file a key. An entry carries a digest of its content and is believed only if
// it is whole, a regular file, the user's own and writable by nobody else; anything else is as if it were not
// there. A cache that cannot be read or written costs time, never correctness.
#include <optional>
#include <string>
#include <string_view>

namespace upweave::cuda {

std::string cache_path(std::string_view key);  // empty: there is no cache (no UPWEAVE_CACHE, no HOME)
std::optional<std::string> read_cache(std::string_view key);
void write_cache(std::string_view key, std::string_view content);

}  // namespace upweave::cuda
