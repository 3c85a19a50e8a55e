#pragma once
// What the commands have in common: which pipeline, at which sizes, on which engine.
#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace upweave::cli {

struct Request {
  std::string pipeline;            // a name or a text
  std::vector<std::string> set;    // name=value
  std::vector<std::string> shape;  // name=2x3x4
  std::vector<std::string> input;  // 2x32x16x32x32, or name=2x3x4; of `run` files
  std::string dtype, engine = "cpu", precision = "strict", algorithm = "auto";
  int threads = 0;
  bool json = false;
};

void add_pipeline(CLI::App& command, Request& request);  // NAME_OR_TEXT, --set
void add_sizes(CLI::App& command, Request& request);     // --input, --shape
void add_engine(CLI::App& command, Request& request);    // --engine, --dtype, --precision, ...

// The catalog's entry if the request names one, by its name or a part that only one of them has.
const CatalogEntry* entry_of(const Request& request);
bool is_one_of_five(const CatalogEntry& entry);  // the pipelines with a C function of their own
Pipeline pipeline_of(const Request& request);
Options options_of(const Request& request);

// How large a named pipeline is when nobody says.
enum class Size { kFull, kThird, kSmall };
Shapes shapes_of(const Request& request, Size size);

// What --input says of each of the pipeline's inputs, by name: VALUE of the only one, NAME=VALUE of any.
std::map<std::string, std::string> by_input(const std::vector<std::string>& options,
                                            const std::vector<std::string>& inputs);
std::pair<std::string, std::string> split_pair(const std::string& text, const char* option);
Shape parse_shape(const std::string& text, const char* option);

}  // namespace upweave::cli
