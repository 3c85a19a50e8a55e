#include <cstdio>
#include <new>

#include "base/error.h"
#include "commands.h"
#include "print.h"

int main(int argc, char** argv) {
  using namespace upweave;
  const auto fail_with = [](const char* sentence) {
    std::fprintf(stderr, "upweave: %s\n", sentence);
    return 2;
  };
  try {
    CLI::App app("Runs a transposed convolution together with everything around it as one fused pipeline.",
                 "upweave");
    app.footer(
        "Start here:\n"
        "  upweave demo                              the five pipelines, checked and timed\n"
        "  upweave list                              what comes with the library\n"
        "  upweave explain max-max-sum               what becomes of a pipeline, and why\n"
        "  upweave verify 'conv_transpose kernel 8 k3 s2 | gelu' --input 2x4x5x6\n"
        "Each command's --help has examples. Errors exit with 2, wrong answers with 1.");
    app.set_version_flag("--version", std::string("upweave ") + version());
    app.require_subcommand(1);
    int exit_code = 0;
    cli::add_demo(app, exit_code);
    cli::add_list(app);
    cli::add_explain(app);
    cli::add_run(app);
    cli::add_verify(app, exit_code);
    cli::add_bench(app, exit_code);
    const auto is_asked = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked).empty()) {
      return fail_with(
          fmt::format("no command is called '{}'; `upweave --help` shows them", excerpt(argv[1])).c_str());
    }
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& e) {  // --help, --version
      app.exit(e);
    } catch (const CLI::ParseError& e) {
      return fail_with(excerpt(e.what()).c_str());
    }
    cli::flush_output();
    return exit_code;
  } catch (const std::bad_alloc&) {
    return fail_with("the memory that this needs cannot be had");
  } catch (const std::exception& e) {
    return fail_with(e.what());
  }
}
