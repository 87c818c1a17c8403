// keel: one program, a command each in its own file.
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/option_error.h"
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

// Leaves CLI11's "{false}" out of the names of flags that switch something off.
class HelpText : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string text = CLI::Formatter::make_option_name(option, positional);
    if (const auto at = text.find("{false}"); at != std::string::npos) text.erase(at, 7);
    return text;
  }
};

// Nothing that was printed may be lost in silence: a full disk is a failure.
int finished(int code) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::cout.good() && std::ferror(stdout) == 0) return code;
  keel::log_line("error", "standard output could not be written");
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // past a file's size limit a write fails, and whoever wrote says so
  CLI::App app("LLM inference and serving with keys and values cached in types of their own.", "keel");
  app.formatter(std::make_shared<HelpText>());
  app.footer("Exit codes: 0 done, 1 failed, 2 wrong command line or flag value.");
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
  keel::add_bench(app);
  keel::add_stats(app);
  keel::add_plan(app);
  keel::add_fit(app);
  keel::add_qualify(app);
  keel::add_scan(app);
  try {
    std::vector<std::string> words = with_long_flags(argc, argv);
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 takes them
    app.parse(reversed);
    return finished(0);
  } catch (const CLI::RuntimeError& error) {  // a command's own exit code
    return finished(error.get_exit_code());
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      std::cerr << "keel has no command '" << app.remaining().front() << "'\n";
    }
    return finished(app.exit(error) == 0 ? 0 : 2);
  } catch (const keel::OptionError& error) {
    keel::log_line("error", error.what());
    return finished(2);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    keel::log_line("error", error.what());
    return 1;
  }
}
