#pragma once
#include <string_view>

#include "base/error.h"

// Values for a text's $names, as people give them.
namespace upweave {

// The names behind each $ of `text`, in order, without repetition.
std::vector<std::string> setting_names(std::string_view text);

// `given` laid over `defaults`, every name checked. Extents may be written 2,2,2 or 2x2x2 or axis by axis
// (stride_d, stride_h, stride_w: the last of `spatial` axes; a text, which has no rank yet, has none).
Settings merge_settings(const Settings& defaults, const Settings& given, size_t spatial);

// A setting that the text has no use for is still a size.
void check_unused(std::string_view text, const Settings& settings);

}  // namespace upweave
