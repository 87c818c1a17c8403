#include "files/model_path.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>

#include "files/mapped_file.h"
#include "files/test_files.h"

namespace keel {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::TempFolder;

TEST(ModelPath, TellsFoldersFilesAndConfigsApart) {
  const TempFolder temp;
  temp.write("hf/config.json", "{}");
  temp.write("tokenizer-only/tokenizer.json", "{}");
  temp.write("quantised/tiny-q4_0.gguf", "");
  temp.write("both/config.json", "{}");
  temp.write("both/model.safetensors", "");
  temp.write("both/model.gguf", "");

  const ModelPath hf = find_model((temp.path() / "hf/").string());
  EXPECT_EQ(hf.kind, ModelFiles::hf_folder);
  EXPECT_EQ(hf.name, "hf");
  EXPECT_EQ(find_model((temp.path() / "tokenizer-only").string()).kind, ModelFiles::hf_folder);
  const ModelPath config = find_model((temp.path() / "hf/config.json").string());
  EXPECT_EQ(config.kind, ModelFiles::config_json);
  EXPECT_EQ(config.name, "hf");
  const ModelPath file = find_model((temp.path() / "quantised/tiny-q4_0.gguf").string());
  EXPECT_EQ(file.kind, ModelFiles::gguf);
  EXPECT_EQ(file.name, "tiny-q4_0");
  const ModelPath only = find_model((temp.path() / "quantised").string());
  EXPECT_EQ(only.kind, ModelFiles::gguf);
  EXPECT_EQ(only.path, temp.path() / "quantised/tiny-q4_0.gguf");
  EXPECT_EQ(only.name, "quantised");
  EXPECT_EQ(find_model((temp.path() / "both").string()).kind, ModelFiles::hf_folder);
}

TEST(ModelPath, RefusesWhatItCannotTell) {
  const TempFolder temp;
  temp.write("two/a.gguf", "");
  temp.write("two/b.gguf", "");
  temp.write("other/readme.txt", "");
  temp.write("weights.safetensors", "");
  const auto refusal = [&](const char* name) {
    return error_of([&] { find_model((temp.path() / name).string()); });
  };
  expect_parts(refusal("two"), {"several GGUF files", "a.gguf, b.gguf"});
  expect_parts(refusal("other"), {"other", "config.json"});
  expect_parts(refusal("weights.safetensors"), {"name its folder"});
  expect_parts(refusal("absent"), {"absent", "not found"});
}

class HubCache : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      saved_.emplace_back(name, value == nullptr ? "" : value);
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  TempFolder temp_;

 private:
  std::vector<std::pair<std::string, std::string>> saved_;
};

TEST_F(HubCache, FollowsRefsMainToItsSnapshot) {
  ::setenv("HF_HUB_CACHE", temp_.path().c_str(), 1);
  temp_.write("models--org--name/snapshots/aaa/config.json", "{}");
  const ModelPath only = find_model("org/name");
  EXPECT_EQ(only.kind, ModelFiles::hf_folder);
  EXPECT_EQ(only.name, "org/name");
  EXPECT_EQ(only.path.filename(), "aaa");

  temp_.write("models--org--name/snapshots/bbb/config.json", "{}");
  expect_parts(error_of([] { find_model("org/name"); }), {"2 snapshots", "refs/main"});
  temp_.write("models--org--name/refs/main", "bbb\n");
  EXPECT_EQ(find_model("org/name").path.filename(), "bbb");
  temp_.write("models--org--name/refs/main", "ccc");
  expect_parts(error_of([] { find_model("org/name"); }), {"ccc", "not there"});
  temp_.write("models--org--name/refs/main", "../../evil");
  expect_parts(error_of([] { find_model("org/name"); }), {"wanted a commit"});
}

TEST_F(HubCache, LooksInEveryPlaceAndSaysWhere) {
  ::setenv("HF_HOME", (temp_.path() / "hf").c_str(), 1);
  ::setenv("HOME", temp_.path().c_str(), 1);
  const std::string message = error_of([] { find_model("org/name"); });
  expect_parts(message,
               {"hf/hub/models--org--name",
                ".cache/huggingface/hub/models--org--name",
                "Nothing is downloaded"});
  temp_.write(".cache/huggingface/hub/models--org--name/snapshots/a/config.json", "{}");
  EXPECT_EQ(find_model("org/name").name, "org/name");
  temp_.write("hf/hub/models--gpt2/snapshots/a/config.json", "{}");
  EXPECT_EQ(find_model("gpt2").name, "gpt2");
  for (const char* no_hub_name : {"", "org/name/more", "../name", "org/", "a b"}) {
    const std::string refused = error_of([&] { find_model(no_hub_name); });
    EXPECT_EQ(refused.find("models--"), std::string::npos) << refused;
  }
}

TEST(MappedFile, ShowsTheFileAndOutlivesAMove) {
  const TempFolder temp;
  MappedFile file(temp.write("some.txt", "hello"));
  ASSERT_EQ(file.bytes().size(), 5u);
  bring_into_memory(file.bytes().subspan(1));
  const MappedFile moved(std::move(file));
  EXPECT_EQ(moved.bytes()[4], std::byte{'o'});
  EXPECT_TRUE(MappedFile(temp.write("empty", "")).bytes().empty());
}

TEST(MappedFile, NoticesAFileThatBecameShorter) {
  const TempFolder temp;
  const auto path = temp.write("long", std::string(100'000, 'x'));
  const MappedFile file(path);
  if (::madvise(const_cast<std::byte*>(file.bytes().data()), 1, MADV_POPULATE_READ) != 0) {
    GTEST_SKIP() << "this kernel has no MADV_POPULATE_READ";
  }
  std::filesystem::resize_file(path, 10);
  expect_parts(error_of([&] { bring_into_memory(file.bytes()); }), {"shorter"});
}

}  // namespace
}  // namespace keel
