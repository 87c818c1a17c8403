// models/tiny on a panel small enough for tests, in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/option_error.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/qualified_format.h"
#include "lab/qualify/qualify.h"
#include "lab/qualify/record.h"

namespace keel {

namespace fs = std::filesystem;

inline std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// All of a record but its times.
inline std::string without_times(const fs::path& record) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text_of(record));
  json.erase("times");
  return json.dump();
}

class QualifyTest : public testing::Test {
 protected:
  QualifyTest() : folder(fs::temp_directory_path() / ("keel_qualify_" + std::to_string(getpid()))) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    const char* device = std::getenv("KEEL_TEST_DEVICE");
    options.model = find_model(std::string(KEEL_SOURCE_DIR) + "/models/tiny");
    options.device = device == nullptr ? "cpu" : device;
    options.candidate = "k16v8";
    options.threads = 2;
    options.output = folder / "record.json";
    options.version = "0.1.0";
    options.commit = "test";
    options.panel.documents = 16;
    options.panel.prompt_tokens = 48;
    options.panel.targets = 24;
    options.panel.needle_cases = 60;
    options.panel.needle_lengths = {160};
    options.panel.sums = 150;
  }
  ~QualifyTest() override { fs::remove_all(folder); }
  std::string refusal() const {
    try {
      qualify(options);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }
  QualifiedFormat automatic(const std::string& version = "0.1.7", std::int64_t longest_context = 0) const {
    const LoadedModel model = load_model(options.model, options.load);
    return qualified_format(folder, {.path = options.model, .load = options.load, .model = model, .kv_scales = {}, .device = options.device, .version = version, .longest_context = longest_context});
  }

  fs::path folder;
  QualifyOptions options;
};

}  // namespace keel
