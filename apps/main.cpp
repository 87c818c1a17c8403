// keel: one program, a command each in its own file.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/log.h"
#include "options.h"

namespace {

// llama.cpp's two long flags with one dash, which no option parser reads as such.
std::vector<std::string> with_long_flags(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (word == "-ctk") word = "--cache-type-k";
    if (word == "-ctv") word = "--cache-type-v";
  }
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("LLM inference and serving with keys and values cached in types of their own.", "keel");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("keel " KEEL_VERSION));
  bool quiet = false;
  app.add_flag("--quiet", quiet, "Warnings and errors only");
  app.fallthrough();
  app.parse_complete_callback([&] { keel::set_quiet(quiet); });
  keel::add_serve(app);
  keel::add_generate(app);
  keel::add_chat(app);
  keel::add_inspect(app);
  keel::add_tokenize(app);
  keel::add_calibrate(app);
  try {
    std::vector<std::string> words = with_long_flags(argc, argv);
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 takes them
    app.parse(reversed);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    keel::log_line("error", error.what());
    return 1;
  }
}
