// Includes go one way, along the road: base <- graph <- rewrite <- plan <- engine <- api <- cli, python.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace upweave {
namespace {

namespace fs = std::filesystem;

// What each folder may see besides itself and the public headers.
const std::map<std::string, std::vector<std::string>> kSees = {
    {"include", {}},
    {"base", {}},
    {"io", {"base"}},
    {"graph", {"base"}},
    {"rewrite", {"base", "graph"}},
    {"plan", {"base", "graph", "rewrite"}},
    {"engine", {"base", "graph", "rewrite", "plan"}},
    {"api", {"base", "graph", "rewrite", "plan", "engine"}},
    {"cli", {"base", "io", "graph", "rewrite", "plan", "engine", "api"}},
    {"python", {"base", "io", "graph", "rewrite", "plan", "engine", "api"}},
};

std::string part(const std::string& path, int n) {
  std::string rest = path;
  for (; n > 0; --n) rest = rest.substr(std::min(rest.size(), rest.find('/') + 1));
  return rest.find('/') == rest.npos ? "" : rest.substr(0, rest.find('/'));
}

// Why a file of the repository must not include "header"; empty: it may.
std::string objection(std::string file, const std::string& header) {
  if (file.starts_with("src/")) file = file.substr(4);
  const std::string from = part(file, 0), to = part(header, 0);
  if (to == "upweave" || to == from) {
    // An engine sees its own folder, what engines share, and the reference, which judges them.
    const std::string engine = part(header, 1);
    const bool shared = to != "engine" || engine.empty() || engine == "reference" || engine == part(file, 1);
    return shared ? "" : "one engine sees another";
  }
  if (to.empty()) return from == "include" ? "a public header shows internals" : "";  // its own folder's
  if (!kSees.contains(to)) return from == "include" ? "a public header needs another library" : "";
  const auto& sees = kSees.at(from);
  return std::ranges::find(sees, to) != sees.end() ? "" : to + " lies ahead of " + from;
}

std::vector<std::string> sources() {
  std::vector<std::string> files;
  for (const char* folder : {"src", "include", "cli", "python"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(UPWEAVE_SOURCE_DIR) / folder)) {
      const std::string type = entry.path().extension();
      if (type == ".h" || type == ".hpp" || type == ".cpp" || type == ".inc")
        files.push_back(fs::relative(entry.path(), UPWEAVE_SOURCE_DIR));
    }
  }
  return files;
}

std::vector<std::string> includes(const std::string& file) {
  static const std::regex kInclude("^\\s*#\\s*include \"([^\"]+)\".*");
  std::vector<std::string> result;
  std::ifstream in(fs::path(UPWEAVE_SOURCE_DIR) / file);
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, kInclude)) result.push_back(match[1]);
  }
  return result;
}

TEST(Includes, GoAlongTheRoad) {
  ASSERT_GT(sources().size(), 100u);
  for (const std::string& file : sources()) {
    for (const std::string& header : includes(file))
      EXPECT_EQ(objection(file, header), "") << file << " includes " << header;
  }
}

// A .cpp's own header is its first; one without a header is one of several behind one, of its folder, the
// folder above or the public ones.
TEST(Includes, EverySourceHasItsHeader) {
  for (const std::string& file : sources()) {
    if (!file.starts_with("src/") || !file.ends_with(".cpp")) continue;
    const std::vector<std::string> all = includes(file);
    const std::string own = file.substr(4, file.size() - 8) + ".h";
    if (fs::exists(fs::path(UPWEAVE_SOURCE_DIR) / "src" / own)) {
      ASSERT_FALSE(all.empty()) << file;
      EXPECT_EQ(all.front(), own) << "first in " << file;
      continue;
    }
    const fs::path folder = fs::path(own).parent_path();
    EXPECT_TRUE(std::ranges::any_of(all,
                                    [&](const std::string& header) {
                                      const fs::path home = fs::path(header).parent_path();
                                      return home == folder || home == folder.parent_path() ||
                                             home == "upweave";
                                    }))
        << file << " has no header that declares what it defines";
  }
}

TEST(Includes, AreRefusedAgainstTheRoad) {
  for (const auto& [file, header] : std::vector<std::pair<std::string, std::string>>{
           {"src/base/error.h", "graph/graph.h"},
           {"src/graph/graph.cpp", "rewrite/rewrite.h"},
           {"src/plan/plan.cpp", "engine/engine.h"},
           {"src/engine/engine.cpp", "engine/cpu/conv/conv.h"},
           {"src/engine/cpu/program.cpp", "engine/cuda/driver.h"},
           {"src/engine/cuda/fuse.cpp", "engine/cpu/conv/conv.h"},
           {"src/engine/reference/reference.cpp", "engine/cpu/conv/conv.h"},
           {"src/engine/cpu/program.cpp", "api/road.h"},
           {"src/api/plan.cpp", "cli/request.h"},
           {"src/graph/parse.cpp", "io/npy.h"},
           {"include/upweave/upweave.hpp", "graph/graph.h"},
           {"include/upweave/upweave.hpp", "graph.h"},
           {"include/upweave/upweave.hpp", "fmt/format.h"},
       }) {
    EXPECT_NE(objection(file, header), "") << file << " includes " << header;
  }
  EXPECT_EQ(objection("src/engine/cpu/program.cpp", "engine/reference/verify.h"), "");
  EXPECT_EQ(objection("src/plan/plan.cpp", "rewrite/rewrite.h"), "");
}

}  // namespace
}  // namespace upweave
