// What Hugging Face's environment renders, byte for byte (tools/reference/chat_templates.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "text/chat_template.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream) << file;
  return (std::ostringstream() << stream.rdbuf()).str();
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    goldens_ = Json::parse(read(fs::path(KEEL_SOURCE_DIR) / "tests/golden/chat_templates.json"));
  }

  // `expected` is the text, or {"raises": message or true}.
  void expect_rendering(const ChatTemplate& chat_template, const Json& variables, const Json& expected) {
    const Result<std::string> rendered = chat_template.render(variables, goldens_["now"].get<std::time_t>());
    if (expected.is_string()) {
      ASSERT_TRUE(rendered.ok()) << rendered.error();
      EXPECT_EQ(rendered.value(), expected.get<std::string>());
    } else {
      ASSERT_FALSE(rendered.ok()) << "should have failed; rendered: " << rendered.value();
      if (expected["raises"].is_string()) {
        EXPECT_EQ(rendered.error(), expected["raises"].get<std::string>());
      }
    }
  }

  Json goldens_;
};

TEST_F(Golden, SmallTemplatesRenderAsInJinja) {
  for (const Json& unit : goldens_["units"]) {
    const std::string source = unit["template"];
    SCOPED_TRACE(source);
    // What keel refuses by name before rendering counts as raising; what Jinja renders must parse.
    try {
      expect_rendering(ChatTemplate(source), unit["variables"], unit["rendered"]);
    } catch (const Error& error) {
      EXPECT_TRUE(unit["rendered"].is_object()) << error.what();
    }
  }
}

TEST_F(Golden, ModelsTemplatesRenderAsInJinja) {
  const fs::path shared = KEEL_SHARED_DIR;
  if (!fs::exists(shared / "data/templates")) GTEST_SKIP() << "no templates in " << shared;
  for (const auto& [name, expected] : goldens_["templates"].items()) {
    const std::string source =
        name == "tiny" ? Json::parse(read(shared / "models/tiny/tokenizer_config.json"))["chat_template"].get<std::string>()
                       : read(shared / "data/templates" / name);
    const ChatTemplate chat_template(source);
    for (const auto& [title, text] : expected.items()) {
      SCOPED_TRACE(name + ": " + title);
      expect_rendering(chat_template, goldens_["conversations"][title], text);
    }
  }
}

}  // namespace
}  // namespace keel
