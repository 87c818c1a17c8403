#include "server/openai/sampling_params.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

constexpr std::int64_t kVocabulary = 100;

SamplingParams read(const std::string& text, const SamplingParams& defaults = {}) {
  const Json json = parse_json(text);
  JsonFields fields(json);
  SamplingParams sampling = read_sampling(fields, defaults);
  refuse_unsupported(fields);
  check_sampling(sampling, kVocabulary);
  EXPECT_TRUE(fields.unread().empty()) << fields.unread().front();
  return sampling;
}

TEST(SamplingFields, ReachTheEngine) {
  const SamplingParams sampling = read(R"({"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1,
      "repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 2, "seed": 7, "min_tokens": 3,
      "stop": ["a", "b"], "stop_token_ids": [1, 2], "logit_bias": {"5": -100, "6": 1.5}, "ignore_eos": true,
      "include_stop_str_in_output": true, "skip_special_tokens": false})");
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.top_p, 0.5);
  EXPECT_EQ(sampling.min_p, 0.1);
  EXPECT_EQ(sampling.repetition_penalty, 1.2);
  EXPECT_EQ(sampling.presence_penalty, -1);
  EXPECT_EQ(sampling.frequency_penalty, 2);
  EXPECT_EQ(sampling.seed, 7u);
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_EQ(sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(sampling.logit_bias, (std::map<TokenId, float>{{5, -100.f}, {6, 1.5f}}));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_TRUE(sampling.include_stop_str_in_output);
  EXPECT_FALSE(sampling.skip_special_tokens);
}

TEST(SamplingFields, TakeTheModelsDefaultsWhereTheRequestSaysNothing) {
  ModelConfig config;
  config.default_temperature = 0.6;
  config.default_top_k = 20;
  const SamplingParams sampling = read(R"({"top_k": 3, "temperature": null})", model_defaults(config));
  EXPECT_EQ(sampling.temperature, 0.6);
  EXPECT_EQ(sampling.top_k, 3);
  EXPECT_EQ(sampling.top_p, 1.0);
}

TEST(SamplingFields, BoundWhatIsLookedThroughForEveryToken) {
  const auto with_ids = [](std::size_t count) { return Json{{"stop_token_ids", std::vector<int>(count, 3)}}.dump(); };
  EXPECT_EQ(read(with_ids(1024)).stop_token_ids.size(), 1024u);
  EXPECT_THROW(read(with_ids(1025)), RequestError);
}

TEST(SamplingFields, RefuseWrongTypesAndRangesByName) {
  struct Case {
    const char* body;
    const char* param;
  };
  for (const Case& one : std::vector<Case>{
           {R"({"temperature": "hot"})", "temperature"},
           {R"({"temperature": -0.1})", "temperature"},
           {R"({"temperature": true})", "temperature"},
           {R"({"top_p": 0})", "top_p"},
           {R"({"top_p": 1.01})", "top_p"},
           {R"({"top_k": -2})", "top_k"},
           {R"({"top_k": 1.5})", "top_k"},
           {R"({"min_p": 2})", "min_p"},
           {R"({"repetition_penalty": 0})", "repetition_penalty"},
           {R"({"repetition_penalty": 1e-30})", "repetition_penalty"},  // divided by it no logit is finite
           {R"({"presence_penalty": 2.5})", "presence_penalty"},
           {R"({"frequency_penalty": -3})", "frequency_penalty"},
           {R"({"min_tokens": -1})", "min_tokens"},
           {R"({"min_tokens": 17})", "min_tokens"},
           {R"({"seed": "x"})", "seed"},
           {R"({"stop": 3})", "stop"},
           {R"({"stop": [""]})", "stop"},
           {R"({"stop": ["a", 1]})", "stop"},
           {R"({"stop_token_ids": 3})", "stop_token_ids"},
           {R"({"stop_token_ids": [100]})", "stop_token_ids"},
           {R"({"stop_token_ids": [-1]})", "stop_token_ids"},
           {R"({"logit_bias": [1]})", "logit_bias"},
           {R"({"logit_bias": {"x": 1}})", "logit_bias"},
           {R"({"logit_bias": {"1": 101}})", "logit_bias"},
           {R"({"logit_bias": {"100": 1}})", "logit_bias"},
           {R"({"ignore_eos": 1})", "ignore_eos"},
           {R"({"suffix": "end"})", "suffix"},
           {R"({"response_format": {"type": "json_object"}})", "response_format"},
           {R"({"use_beam_search": true})", "use_beam_search"},
           {R"({"guided_json": {"type": "object"}})", "guided_json"},
           {R"({"bad_words": ["x"]})", "bad_words"},
           {R"({"functions": [{}]})", "functions"},
           {R"({"modalities": ["audio"]})", "modalities"},
       }) {
    try {
      read(one.body);
      ADD_FAILURE() << "not refused: " << one.body;
    } catch (const RequestError& error) {
      EXPECT_EQ(error.error().status, 400u) << one.body;
      EXPECT_EQ(error.error().param, one.param) << error.what();
    }
  }
}

TEST(SamplingFields, PassUnsupportedOnesThatChangeNothing) {
  EXPECT_NO_THROW(read(R"({"suffix": null, "response_format": {"type": "text"}, "use_beam_search": false,
                           "bad_words": [], "modalities": ["text"], "functions": [], "guided_regex": ""})"));
}

}  // namespace
}  // namespace keel
