#pragma once
#include <CLI/CLI.hpp>

// One file per command. Each adds itself to the application; its callback throws on errors and sets
// `exit_code` to 1 when an answer is wrong.
namespace upweave::cli {

void add_list(CLI::App& app);
void add_explain(CLI::App& app);
void add_run(CLI::App& app);
void add_verify(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_demo(CLI::App& app, int& exit_code);

}  // namespace upweave::cli
